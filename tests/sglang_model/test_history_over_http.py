"""The promise over HTTP, on both transports with both renderers: each prompt begins with what was seen and sampled.

The engine's own record (`engine.samples`, `engine.requests`) is the truth that answers are held against.
"""

from __future__ import annotations

import asyncio
import json

import httpx
import orjson
import pytest

from sglang_model.testing import Abort, Engine, EngineSettings, Misbehaviour, Rule, create_engine_app
from tests.support.conversations import Agent, Answer, assert_extends, events
from tests.support.local_tokenizer import (
    RENDERERS,
    SETUPS,
    engine_with,
    make_server,
    served_by,
    tokenizer_folder,
    transport_of,
)
from tests.support.real_server import serving
from tests.support.turns import assistant, system, user

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "Weather of a city", "parameters": CITY}
TIME = {"name": "get_time", "description": "Time in a city", "parameters": CITY}
TOOLS = [{"type": "function", "function": WEATHER}]
OTHER_TOOLS = [{"type": "function", "function": TIME}]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Paris"}}\n</tool_call>'
OSLO = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"Oslo"}}\n</tool_call>'
"""No space behind the colon: the template writes one, so a rendered history is not what was sampled."""

END, NEWLINE = "<|im_end|>", "\n"
NEXT_USER = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def scripted(*replies: str | Rule, **settings: object) -> Engine:
    """An engine that says these one after the other, whatever it is asked."""
    rules = [reply if isinstance(reply, Rule) else Rule(reply=reply, times=1) for reply in replies]
    return engine_with(*rules, **{"reasoning_parser": None, **settings})


def text_behind(turn: Answer, following: Answer, engine: Engine) -> str:
    """What the next prompt has behind all that was sampled, as text."""
    return engine.tokenizer.decode(assert_extends(turn, following))


@SETUPS
async def test_every_prompt_of_a_tool_using_rollout_begins_with_all_that_was_sampled(transport, renderer):
    engine = scripted(PARIS, OSLO, "Both are sunny.", "You are welcome.")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, system("You are terse."), tools=TOOLS)
        turns = [await agent.ask("weather in Paris and Oslo")]
        turns.append(await agent.ask(*agent.results("sunny")))
        turns.append(await agent.ask(*agent.results("sunny too")))
        turns.append(await agent.ask("thanks"))
    assert [turn.choice["finish_reason"] for turn in turns] == ["tool_calls", "tool_calls", "stop", "stop"]
    assert turns[0].history == ("new", "new_conversation")
    response = "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert text_behind(turns[0], turns[1], engine) == response.format("sunny")
    assert text_behind(turns[1], turns[2], engine) == response.format("sunny too")
    assert text_behind(turns[2], turns[3], engine) == NEWLINE + NEXT_USER.format("thanks")


@SETUPS
async def test_ids_that_no_encoder_would_choose_are_kept_as_sampled(transport, renderer):
    engine = scripted("good")
    bytewise = tuple(engine.tokenizer.encode_bytewise("Hello there!"))
    engine.rules.insert(0, Rule(ids=bytewise, times=1))
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("say it")
        second = await agent.ask("again")
    assert first.message["content"] == "Hello there!"
    assert first.generation == [*bytewise, engine.tokenizer.eos_token_id]
    assert list(bytewise) != engine.tokenizer.encode("Hello there!")
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("again")


@SETUPS
async def test_thinking_that_the_template_would_strip_stays_in_the_prompt(transport, renderer):
    engine = scripted(
        "<think>\nsecret thought\n</think>\n\nHello.",
        "<think>\nx\n</think>\n\nBye.",
        reasoning_parser="qwen3",
    )
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("hi")
        second = await agent.ask("bye")
    assert first.message["content"] == "<think>\nsecret thought\n</think>\n\nHello."
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("bye")
    assert "secret thought" in engine.tokenizer.decode(second.prompt)


@SETUPS
async def test_parallel_calls_are_answered_in_one_turn_behind_their_ids(transport, renderer):
    engine = scripted(f"{PARIS}\n{OSLO}", "Done.")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("weather in Paris and Oslo")
        assert [json.loads(call["function"]["arguments"])["city"] for call in first.calls] == [
            "Paris",
            "Oslo",
        ]
        second = await agent.ask(*agent.results("sunny", "rain"))
    both = "\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response>"
    assert (
        text_behind(first, second, engine) == f"\n<|im_start|>user{both}<|im_end|>\n<|im_start|>assistant\n"
    )


@SETUPS
@pytest.mark.parametrize("sampled", [0, 1, 2])
async def test_the_turn_suffix_is_completed_and_never_doubled(transport, renderer, sampled):
    """Of the suffix <|im_end|> and newline none, one or both were sampled before the budget ran out."""
    engine = scripted("ok")
    suffix = (engine.tokenizer.eos_token_id, *engine.tokenizer.encode(NEWLINE))
    ids = (*engine.tokenizer.encode("hello"), *suffix[:sampled])
    engine.rules.insert(0, Rule(ids=ids, eos=False, times=1))
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a", max_tokens=len(ids), ignore_eos=True)
        second = await agent.ask("b")
    assert first.choice["finish_reason"] == "length"
    assert first.message["content"].rstrip(NEWLINE) == "hello"
    assert first.generation == list(ids)
    expected = [*suffix[sampled:], *engine.tokenizer.encode(NEXT_USER.format("b"))]
    assert assert_extends(first, second) == expected


@SETUPS
async def test_an_answer_cut_by_the_budget_in_the_middle_is_closed_in_the_next_prompt(transport, renderer):
    engine = scripted("one two three four five six", "ok")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("count", max_tokens=3)
        second = await agent.ask("go on")
    assert first.choice["finish_reason"] == "length"
    assert text_behind(first, second, engine) == END + NEWLINE + NEXT_USER.format("go on")
    assert second.choice["sglang"]["flags"] == ["unterminated_generation"]


@SETUPS
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_an_end_token_on_the_last_token_of_the_budget_ends_the_turn(transport, renderer, version):
    """Before 0.5.23 SGLang says "length" for it."""
    engine = scripted("hello", "ok", version=version)
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a", max_tokens=len(engine.tokenizer.encode("hello")) + 1)
        second = await agent.ask("b")
    assert first.generation[-1] == engine.tokenizer.eos_token_id
    assert first.message["content"] == "hello"
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("b")


@SETUPS
async def test_a_stop_string_leaves_the_text_and_stays_in_the_ids(transport, renderer):
    engine = scripted("one two\nObservation: three", "ok")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a", stop=["Observation:"])
        second = await agent.ask("b")
    assert first.message["content"].rstrip(NEWLINE) == "one two"
    assert engine.tokenizer.decode(first.generation).endswith("Observation:")
    assert text_behind(first, second, engine) == END + NEWLINE + NEXT_USER.format("b")


@SETUPS
async def test_a_tool_call_with_stop_strings_in_the_request_ends_at_its_end_token(transport, renderer):
    """On chat the tool parser makes SGLang forget what matched: it could have been a stop string."""
    engine = scripted(PARIS, "ok")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS, stop=["Observation:"])
        first = await agent.ask("weather")
        second = await agent.ask(*agent.results("sunny"))
    behind = text_behind(first, second, engine)
    assert behind.startswith("\n<|im_start|>user\n<tool_response>")
    assert second.choice["sglang"]["flags"] == []


@SETUPS
async def test_a_call_without_an_end_token_is_closed_in_the_next_prompt(transport, renderer):
    """The budget ran out behind the call, or a stop string was its closing tag.

    The engine's own rendering shows no conversation that ends with the call; the end of a turn before tells it.
    """
    engine = scripted("Hello there!", PARIS + "\nand more", "ok")
    budget = len(engine.tokenizer.encode(PARIS))
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        await agent.ask("hi")
        first = await agent.ask("weather", max_tokens=budget)
        second = await agent.ask(*agent.results("sunny"))
    assert engine.tokenizer.decode(first.generation).endswith("</tool_call>")
    assert first.choice["finish_reason"] == "length"
    assert text_behind(first, second, engine).startswith("<|im_end|>\n<|im_start|>user\n<tool_response>")


@pytest.mark.parametrize("transport", ["generate", "chat"])
async def test_with_the_engines_rendering_a_first_call_without_an_end_token_starts_a_new_segment(transport):
    """Nothing has shown yet which token ends turns, so the end of this one cannot be proved."""
    engine = scripted(PARIS + "\nand more", "ok")
    budget = len(engine.tokenizer.encode(PARIS))
    async with served_by(engine, transport, "server") as client:
        agent = Agent(client, engine, tools=TOOLS)
        await agent.ask("weather", max_tokens=budget)
        second = await agent.ask(*agent.results("sunny"))
    assert second.history == ("rerendered", "turn_end_not_found")


@pytest.mark.parametrize("transport", ["generate", "chat"])
async def test_with_the_engines_rendering_another_end_token_takes_the_place_of_the_templates(transport):
    """The template's own end must not follow the one that was sampled, as with a tokenizer here."""
    [other] = engine_with().tokenizer.encode("<|endoftext|>")
    bye = Rule(ids=(*engine_with().tokenizer.encode("Bye."), other), eos=False, times=1)
    engine = scripted("Hello there!", bye, "ok", eos_token_ids=(other,))
    async with served_by(engine, transport, "server") as client:
        agent = Agent(client, engine)
        await agent.ask("hi")
        first = await agent.ask("bye")
        second = await agent.ask("again")
    assert first.generation[-1] == other
    assert second.choice["sglang"]["flags"] == ["stop_substituted"]
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("again")


@SETUPS
@pytest.mark.parametrize("after_tokens", [None, 0, 2])
async def test_an_aborted_turn_leaves_the_session_as_it_was(transport, renderer, after_tokens):
    engine = scripted("Hello there!", "ok")
    abort = Rule(
        reply="one two three", times=1, misbehave=Misbehaviour(abort=Abort(), after_tokens=after_tokens)
    )
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        engine.rules.insert(0, abort)
        aborted = await agent.ask("b")
        assert aborted.status == 503
        assert aborted.history == ("spliced", "matched")
        second = await agent.ask()
        counted = events((await client.get("/metrics")).text)
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("b")
    assert counted["history_commit_committed"] == 2
    assert counted["generation_aborted"] == 1


@SETUPS
async def test_a_failed_call_leaves_the_session_as_it_was(transport, renderer):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        engine.misbehaviours.append(Misbehaviour(path="chat/completions|generate", status=500, times=1))
        failed = await agent.ask("b")
        assert failed.status == 500
        assert failed.history == ("spliced", "matched")
        second = await agent.ask()
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("b")


@SETUPS
async def test_an_answer_that_cannot_be_used_is_never_remembered(transport, renderer):
    engine = scripted("Hello there!", "garbled", "ok")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        engine.misbehaviours.append(
            Misbehaviour(path="chat/completions|generate", logprob_entries=-1, times=1)
        )
        refused = await agent.ask("b")
        assert refused.status == 500
        second = await agent.ask()
        counted = events((await client.get("/metrics")).text)
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("b")
    assert counted["history_commit_committed"] == 2


@pytest.mark.parametrize("transport", ["generate", "chat"])
async def test_a_client_that_disconnects_leaves_the_session_as_it_was(transport):
    engine = scripted("Hello there!", "never read", "ok")
    server = make_server(engine, transport)
    headers = {"X-Session-Id": "one"}
    async with serving(server.setup_webserver()) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url) as client:
            agent = Agent(client, engine, headers=headers)
            first = await agent.ask("a")
            engine.misbehaviours.append(Misbehaviour(path="chat/completions|generate", gate="held", times=1))
            async with httpx.AsyncClient(base_url=url) as impatient:
                messages = [*agent.messages, user("b")]
                request = asyncio.create_task(Agent(impatient, engine, headers=headers).send(messages))
                await engine.gate("held").until_waiting(1)
                request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            engine.gate("held").open()
            second = await agent.ask("b")
            counted = events((await client.get("/metrics")).text)
    assert_extends(first, second)
    assert counted["history_commit_committed"] == 2


@SETUPS
async def test_a_follow_up_that_overflows_ends_with_length_keeps_its_ids_and_the_session(transport, renderer):
    engine = scripted("ok", context_length=64)
    engine.rules.insert(0, Rule(ids=tuple(engine.tokenizer.encode_bytewise("Hello there!")), times=1))
    window = {"context_length": 64} if transport == "generate" else {}
    async with served_by(engine, transport, renderer, **window) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        overflow = await agent.send([*agent.messages, user("word " * 80)])
        second = await agent.ask("b")
    assert overflow.history == ("spliced", "matched")
    assert overflow.choice["finish_reason"] == "length"
    assert overflow.generation == []
    seen = [*first.prompt, *first.generation]
    assert overflow.prompt[: len(seen)] == seen
    assert len(overflow.prompt) > 64
    assert text_behind(first, second, engine) == NEWLINE + NEXT_USER.format("b")


@SETUPS
async def test_an_overflow_can_be_an_error_that_still_says_what_its_prompt_was_made_of(transport, renderer):
    engine = scripted("Hello there!", context_length=64)
    window = {"context_length": 64} if transport == "generate" else {}
    async with served_by(engine, transport, renderer, on_context_overflow="error", **window) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        overflow = await agent.ask("word " * 80)
    assert overflow.status == 400
    assert overflow.body["error"]["code"] == "context_length_exceeded"
    assert overflow.history == ("spliced", "matched")


@SETUPS
@pytest.mark.parametrize("change", ["tools", "no tools", "kwargs", "tool_choice none"])
async def test_other_rendering_inputs_start_a_new_segment_and_say_so(transport, renderer, change):
    engine = scripted("Hello there!", "changed", "back again")
    changed: dict[str, object] = {
        "tools": {"tools": OTHER_TOOLS},
        "no tools": {"tools": None},
        "kwargs": {"chat_template_kwargs": {"enable_thinking": False}},
        "tool_choice none": {"tool_choice": "none"},
    }[change]
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("a")
        other = await agent.send([*agent.messages, user("b")], **changed)
        back = await agent.ask("b")
        counted = events((await client.get("/metrics")).text)
    assert other.history == ("rerendered", "rendering_changed")
    assert other.choice["sglang"]["kept_tokens"] == 0
    shown = engine.tokenizer.decode(other.prompt)
    assert ("get_weather" in shown) is (change == "kwargs")
    assert counted["history_broken_rendering_changed"] == 1
    assert_extends(first, back)


@SETUPS
async def test_the_new_segment_of_changed_tools_is_spliced_from_there_on(transport, renderer):
    engine = scripted("Hello there!", "changed", "more")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        await agent.ask("a")
        agent.fields["tools"] = OTHER_TOOLS
        second = await agent.ask("b")
        third = await agent.ask("c")
    assert second.history == ("rerendered", "rendering_changed")
    assert text_behind(second, third, engine) == NEWLINE + NEXT_USER.format("c")


@SETUPS
@pytest.mark.parametrize(
    "change", [{"tools": OTHER_TOOLS}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
async def test_changed_rendering_inputs_can_be_an_error(transport, renderer, change):
    engine = scripted("Hello there!", "back again")
    async with served_by(engine, transport, renderer, on_broken_prefix="error") as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("a")
        refused = await agent.send([*agent.messages, user("b")], **change)
        back = await agent.ask("b")
    assert refused.status == 400
    assert "session tools or chat-template" in refused.body["error"]["message"]
    assert refused.body["error"]["code"] == "broken_prefix"
    assert refused.history == ("rerendered", "rendering_changed")
    assert_extends(first, back)


@SETUPS
async def test_a_new_conversation_with_other_tools_is_no_error_even_then(transport, renderer):
    """A judge or a sub-agent in the same session (W63)."""
    engine = scripted("Hello there!", "judged", "back again")
    async with served_by(engine, transport, renderer, on_broken_prefix="error") as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("a")
        judge = await agent.send([system("Judge."), user("Was it good?")], tools=[])
        back = await agent.ask("b")
    assert judge.status == 200
    assert judge.history == ("new", "new_conversation")
    assert_extends(first, back)


@SETUPS
async def test_a_conversation_that_was_not_sampled_here_can_be_an_error(transport, renderer):
    engine = scripted("ok")
    async with served_by(engine, transport, renderer, on_broken_prefix="error") as client:
        refused = await Agent(client, engine).ask("a", assistant("made up"), user("b"))
    assert refused.status == 400
    assert "no_session" in refused.body["error"]["message"]
    assert refused.history == ("rerendered", "no_session")
    assert engine.samples == []


@SETUPS
@pytest.mark.parametrize(("bound", "size"), [("max_tokens", 40), ("max_sessions", 1)])
async def test_a_session_that_had_to_make_room_says_so_and_is_counted(transport, renderer, bound, size):
    engine = scripted("Hello there!", "Hello there!", "ok", "fine")
    async with served_by(engine, transport, renderer, **{f"session_{bound}": size}) as client:
        first = Agent(client, engine, headers={"X-Session-Id": "first"})
        second = Agent(client, engine, headers={"X-Session-Id": "second"})
        client.cookies.clear()
        await first.ask("a " * 16)
        await second.ask("b " * 16)
        evicted = await first.ask("c")
        counted = events((await client.get("/metrics")).text)
    assert evicted.status == 200
    assert evicted.history == ("rerendered", "evicted")
    assert counted[f"session_evicted_{bound}"] >= 1
    assert counted["history_broken_evicted"] == 1


@SETUPS
async def test_a_turn_larger_than_the_store_is_not_remembered_and_is_counted(transport, renderer):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, transport, renderer, session_max_tokens=5) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        second = await agent.ask("b")
        counted = events((await client.get("/metrics")).text)
    assert second.history == ("rerendered", "no_session")
    assert counted["history_commit_too_large"] == 2


@SETUPS
async def test_sessions_are_told_apart_by_cookie_path_prefix_and_header(transport, renderer):
    engine = scripted(*["Hello there!"] * 12)
    server = make_server(engine, transport, renderer)
    app = httpx.ASGITransport(app=server.setup_webserver(), raise_app_exceptions=False)

    def new_client() -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=app, base_url="http://model-server")

    prefix = "/ng-rollout/{}/v1/chat/completions"
    async with new_client() as one, new_client() as other:
        named = [
            Agent(one, engine),
            Agent(other, engine),
            Agent(new_client(), engine, headers={"X-Session-Id": "x"}),
            Agent(new_client(), engine, headers={"X-Session-Id": "y"}),
            Agent(new_client(), engine, path=prefix.format("r1")),
            Agent(new_client(), engine, path=prefix.format("r2")),
        ]
        turns = [await agent.ask("hi") for agent in named]
        for agent, first in zip(named, turns, strict=True):
            assert_extends(first, await agent.ask("more"))
        stranger = await Agent(new_client(), engine, *named[0].messages).ask("more")
    assert stranger.history == ("rerendered", "no_session")


@SETUPS
async def test_a_server_that_starts_anew_says_that_it_knows_no_session(transport, renderer):
    engine = scripted("Hello there!", "ok")
    headers = {"X-Session-Id": "x"}
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, headers=headers)
        await agent.ask("a")
    async with served_by(engine, transport, renderer) as client:
        second = await Agent(client, engine, *agent.messages, headers=headers).ask("b")
    assert second.history == ("rerendered", "no_session")


@SETUPS
async def test_tool_choice_none_shows_no_tools_and_finds_no_calls(transport, renderer):
    engine = scripted(PARIS)
    async with served_by(engine, transport, renderer) as client:
        answer = await Agent(client, engine, tools=TOOLS, tool_choice="none").ask("weather")
    assert "get_weather" not in engine.tokenizer.decode(answer.prompt)
    assert answer.calls == []
    assert answer.message["content"] == PARIS
    assert answer.choice["finish_reason"] == "stop"


@SETUPS
async def test_a_named_tool_choice_shows_only_that_tool(transport, renderer):
    engine = scripted("ok")
    named = {"type": "function", "function": {"name": "get_time"}}
    async with served_by(engine, transport, renderer) as client:
        answer = await Agent(client, engine, tools=[*TOOLS, *OTHER_TOOLS], tool_choice=named).ask("when")
    shown = engine.tokenizer.decode(answer.prompt)
    assert "get_time" in shown
    assert "get_weather" not in shown


@SETUPS
async def test_the_responses_api_keeps_the_same_promise(transport, renderer):
    think = "<think>\nneed it\n</think>\n\n"
    engine = scripted(
        think + PARIS, think + "Sunny.", "<think>\nk\n</think>\n\nBye.", reasoning_parser="qwen3"
    )
    tools = [{"type": "function", **WEATHER, "strict": True}]
    conversation: list[object] = [{"role": "user", "content": "weather in Paris"}]
    kept = []
    async with served_by(engine, transport, renderer) as client:
        for new in ("sunny", "thanks", ""):
            body = {"input": conversation, "tools": tools, "instructions": "Be terse."}
            response = await client.post("/v1/responses", json=body)
            output = response.json()["output"]
            kept.append((response.headers["x-sglang-history"], response.json()["sglang"]))
            sample = engine.samples[-1]
            assert output[-1]["prompt_token_ids"] == sample.prompt_token_ids
            assert output[-1]["generation_token_ids"] == sample.token_ids
            conversation += output
            calls = [item for item in output if item["type"] == "function_call"]
            conversation += (
                [{"type": "function_call_output", "call_id": calls[0]["call_id"], "output": new}]
                if calls
                else [{"role": "user", "content": new}]
            )
    assert [history for history, _ in kept] == ["new", "spliced", "spliced"]
    for before, after, (_, field) in zip(engine.samples, engine.samples[1:], kept[1:], strict=False):
        seen = [*before.prompt_token_ids, *before.token_ids]
        assert after.prompt_token_ids[: len(seen)] == seen
        assert field["kept_tokens"] == len(seen)


@SETUPS
async def test_the_messages_api_keeps_the_same_promise(transport, renderer):
    engine = scripted(PARIS, "Sunny.", "Bye.")
    tools = [{"name": "get_weather", "description": "d", "input_schema": CITY}]
    conversation: list[object] = [{"role": "user", "content": "weather in Paris"}]
    history = []
    async with served_by(engine, transport, renderer) as client:
        for new in ("sunny", "thanks", ""):
            body = {"model": "m", "max_tokens": 100, "messages": conversation, "tools": tools}
            response = await client.post("/v1/messages", json=body)
            assert response.status_code == 200, response.text
            history.append(response.headers["x-sglang-history"])
            content = response.json()["content"]
            conversation.append({"role": "assistant", "content": content})
            calls = [block for block in content if block["type"] == "tool_use"]
            answer = [{"type": "tool_result", "tool_use_id": block["id"], "content": new} for block in calls]
            conversation.append({"role": "user", "content": answer or new})
    assert history == ["new", "spliced", "spliced"]
    for before, after in zip(engine.samples, engine.samples[1:], strict=False):
        seen = [*before.prompt_token_ids, *before.token_ids]
        assert after.prompt_token_ids[: len(seen)] == seen


@RENDERERS
async def test_without_ids_in_its_answers_generate_splices_all_the_same(renderer):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, "generate", renderer, return_token_id_information=False) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        second = await agent.ask("b")
    assert "generation_token_ids" not in first.message
    assert "prompt_token_ids" not in second.message
    assert_extends(first, second)


@SETUPS
async def test_reasoning_that_is_not_sent_back_is_still_in_the_prompt(transport, renderer):
    """`uses_interleaved_reasoning: false` takes it out of the messages; the ids stay what they were."""
    engine = scripted(
        "<think>\nsecret\n</think>\n\nHello.", "<think>\nx\n</think>\n\nok", reasoning_parser="qwen3"
    )
    async with served_by(engine, transport, renderer, uses_interleaved_reasoning=False) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        second = await agent.ask("b")
    assert_extends(first, second)


@SETUPS
async def test_a_developer_is_the_same_system_in_every_turn(transport, renderer):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, transport, renderer, replace_developer_role_with_system=True) as client:
        agent = Agent(client, engine, {"role": "developer", "content": "Be terse."})
        first = await agent.ask("a")
        second = await agent.ask("b")
    assert "<|im_start|>system\nBe terse." in engine.tokenizer.decode(first.prompt)
    assert_extends(first, second)


@pytest.mark.parametrize("transport", ["chat", "generate"])
async def test_without_splicing_the_answer_says_that_it_is_off(transport):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, transport, sglang_splice_history=False) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        second = await agent.ask("b")
        counted = events((await client.get("/metrics")).text)
    assert first.history == ("new", "splicing_off")
    assert second.history == ("rerendered", "splicing_off")
    assert "history_commit_committed" not in counted
    assert "input_ids" not in engine.requests[-2].body or transport == "generate"


@SETUPS
async def test_a_template_that_loses_a_new_message_is_a_new_segment_with_that_reason(
    transport, renderer, tmp_path
):
    shown = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    template = "{% for m in messages if m.role != 'system' %}" + shown + "{% endfor %}<|im_start|>assistant\n"
    path = tmp_path / "template.jinja"
    path.write_text(template)
    engine = scripted("Hello there!", "ok", chat_template_path=path)
    local = {"sglang_tokenizer": str(tokenizer_folder(template))} if renderer == "local" else {}
    async with served_by(engine, transport, renderer, **local) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        second = await agent.ask("b", system("Stop now."))
    assert second.history == ("rerendered", "new_message_dropped")


class _DropsInputIds(httpx.AsyncBaseTransport):
    """A router with a typed request model of its own: chat bodies lose what it does not know."""

    def __init__(self, engine: Engine) -> None:
        self._inner = transport_of(engine)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = orjson.loads(await request.aread())
        if request.url.path.endswith("/chat/completions"):
            body.pop("input_ids", None)
        sent = httpx.Request(request.method, request.url, json=body)
        return await self._inner.handle_async_request(sent)


@RENDERERS
async def test_a_prompt_made_of_messages_instead_of_the_spliced_ids_is_refused_with_the_remedy(renderer):
    engine = scripted("<think>\nx\n</think>\n\nHello", "ok", "ok")
    async with served_by(_DropsInputIds(engine), "chat", renderer) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        second = await agent.ask("b")
        counted = events((await client.get("/metrics")).text)
    assert second.status == 500
    error = second.body["error"]
    assert error["code"] == "upstream_contract"
    assert "transport: generate" in error["message"]
    assert second.history == ("spliced", "matched")
    assert counted["history_commit_committed"] == 1


async def test_an_old_engine_is_refused_on_chat_before_anything_is_spliced():
    engine = create_engine_app(EngineSettings(version="0.5.12"))
    async with served_by(engine, "chat") as client:
        answer = await Agent(client, engine).ask("a")
    assert answer.status == 500
    assert "0.5.13" in answer.body["error"]["message"]
    assert "transport: generate" in answer.body["error"]["message"]


@RENDERERS
async def test_an_old_engine_serves_generate_with_exact_prefixes(renderer):
    engine = scripted(PARIS, "Sunny.", version="0.5.12")
    async with served_by(engine, "generate", renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("weather")
        second = await agent.ask(*agent.results("sunny"))
    assert_extends(first, second)


async def test_what_is_kept_for_later_turns_is_reported():
    engine = scripted("good", "bye")
    async with served_by(engine, "generate", "local") as client:
        agent = Agent(client, engine)
        await agent.ask("hi")
        last = await agent.ask("thanks")
        reported = (await client.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in reported.splitlines() if not line.startswith("#"))
    assert float(values['nemo_gym_sessions{worker="main"}']) == 1
    assert float(values['nemo_gym_session_tokens{worker="main"}']) == len(last.prompt) + len(last.generation)
    assert float(values['nemo_gym_session_text_bytes{worker="main"}']) > 0
    assert float(values['nemo_gym_segment_cache_misses{worker="main"}']) >= 1
    assert float(values['nemo_gym_segment_cache_bytes{worker="main"}']) > 0
