"""Conversations that are no straight line: retries, regenerated turns, branches, resets, edits, side by side requests.

Each finds its own exact prefix or says why it has none; no answer ever mixes the ids of two turns.
"""

from __future__ import annotations

import asyncio
import copy
import json

import pytest

from sglang_model.testing import Engine, Misbehaviour, Rule
from tests.support.conversations import Agent, Answer, assert_extends, events
from tests.support.local_tokenizer import RENDERERS, SETUPS, engine_with, served_by, tokenizer_folder
from tests.support.turns import Message, assistant, system, tool, user

FUNCTION = {
    "name": "look",
    "description": "Look something up",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
LOOK = '<tool_call>\n{"name": "look", "arguments": {"a":1,"b":"é"}}\n</tool_call>'
THOUGHT = "<think>\nwhy not\n</think>\n\n"


def scripted(*replies: str | Rule, **settings: object) -> Engine:
    """An engine that says these one after the other, whatever it is asked."""
    rules = [reply if isinstance(reply, Rule) else Rule(reply=reply, times=1) for reply in replies]
    return engine_with(*rules, **{"reasoning_parser": None, **settings})


def echoing(**settings: object) -> Engine:
    """An engine whose replies differ from prompt to prompt: the seeded sampler, in few tokens."""
    return engine_with(**{"reasoning_parser": None, "tool_call_parser": None, **settings})


@SETUPS
async def test_a_retried_first_turn_gives_two_turns_that_both_go_on_with_their_own_ids(transport, renderer):
    engine = scripted("one", "two", "on one", "on two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        question = [user("a")]
        tries = [await agent.send(question), await agent.send(question)]
        follow_ups = [await agent.send([*question, turn.message, user("b")]) for turn in tries]
    assert [turn.history for turn in tries] == [("new", "new_conversation")] * 2
    assert tries[0].prompt == tries[1].prompt
    for turn, follow_up in zip(tries, follow_ups, strict=True):
        assert_extends(turn, follow_up)


@SETUPS
async def test_the_same_answer_sampled_twice_is_one_turn(transport, renderer):
    engine = scripted("one", "one", "more")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        await agent.send([user("a")])
        again = await agent.ask("a")
        assert_extends(again, await agent.ask("b"))


@SETUPS
async def test_answers_that_read_alike_are_told_apart_by_their_reasoning(transport, renderer):
    engine = scripted(
        "<think>\nfirst\n</think>\n\nYes.",
        "<think>\nsecond\n</think>\n\nYes.",
        THOUGHT + "x",
        THOUGHT + "y",
        reasoning_parser="qwen3",
    )
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        tries = [await agent.send([user("a")]) for _ in range(2)]
        follow_ups = [await agent.send([user("a"), turn.message, user("b")]) for turn in tries]
    for turn, follow_up in zip(tries, follow_ups, strict=True):
        assert_extends(turn, follow_up)


@SETUPS
async def test_an_answer_that_could_be_either_of_two_turns_is_the_latest_and_called_ambiguous(
    transport, renderer
):
    engine = scripted("more")
    bytewise = tuple(engine.tokenizer.encode_bytewise("hello"))
    engine.rules[:0] = [Rule(reply="hello", times=1), Rule(ids=bytewise, times=1)]
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.send([user("a")])
        second = await agent.ask("a")
        third = await agent.ask("b")
    assert first.message["content"] == second.message["content"]
    assert first.generation != second.generation
    assert third.history == ("spliced", "ambiguous")
    seen = [*second.prompt, *second.generation]
    assert third.prompt[: len(seen)] == seen


@SETUPS
async def test_a_regenerated_turn_is_a_sibling_of_the_one_it_replaces(transport, renderer):
    engine = scripted("one", "two", "other two", "on two", "on other two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        start = [*agent.messages, user("b")]
        second = await agent.send(start)
        regenerated = await agent.send(start)
        assert_extends(first, second)
        assert_extends(first, regenerated)
        assert_extends(second, await agent.send([*start, second.message, user("c")]))
        assert_extends(regenerated, await agent.send([*start, regenerated.message, user("c")]))


@SETUPS
async def test_two_branches_that_take_turns_never_mix(transport, renderer):
    engine = echoing()
    async with served_by(engine, transport, renderer) as client:
        root = Agent(client, engine, max_tokens=8)
        first = await root.ask("a")
        left, right = (Agent(client, engine, *root.messages, max_tokens=8) for _ in range(2))
        last = {"left": first, "right": first}
        for turn in range(3):
            for name, branch in (("left", left), ("right", right)):
                following = await branch.ask(f"{name} {turn}")
                assert_extends(last[name], following)
                last[name] = following
    assert last["left"].prompt != last["right"].prompt


@SETUPS
async def test_a_context_reset_starts_anew_and_the_old_conversation_can_still_go_on(transport, renderer):
    engine = scripted("one", "fresh", "on one", "on fresh")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, system("Be brief."))
        first = await agent.ask("a")
        reset = Agent(client, engine, system("Be brief."))
        fresh = await reset.ask("Summary of what was: a, one. Go on.")
        assert fresh.history == ("new", "new_conversation")
        assert_extends(first, await agent.ask("b"))
        assert_extends(fresh, await reset.ask("b"))


@SETUPS
async def test_a_sub_agent_with_its_own_system_prompt_and_tools_keeps_to_its_own_ids(transport, renderer):
    engine = scripted("one", LOOK, "sub two", "on one")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, system("You are the boss."))
        first = await agent.ask("a")
        sub = Agent(client, engine, system("You look things up."), tools=TOOLS)
        look = await sub.ask("a")
        assert look.history == ("new", "new_conversation")
        assert_extends(look, await sub.ask(*sub.results("found")))
        assert_extends(first, await agent.ask("b"))


EDITS: dict[str, dict[str, object]] = {
    "other text": {"content": "Something else."},
    "more text": {"content": "Hello there! And more."},
    "no text": {"content": ""},
    "a call that was not made": {
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    },
}


@SETUPS
@pytest.mark.parametrize("edit", EDITS)
async def test_an_edited_answer_never_inherits_the_ids_of_what_was_said(transport, renderer, edit):
    engine = scripted("Hello there!", "ok", "back")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        changed = {**first.message, **EDITS[edit]}
        if edit == "a call that was not made":
            messages = [user("a"), changed, tool("c1", "found"), user("b")]
        else:
            messages = [user("a"), changed, user("b")]
        edited = await agent.send(messages)
        back = await agent.ask("b")
    assert edited.history == ("rerendered", "assistant_edited")
    assert edited.choice["sglang"]["kept_tokens"] == 0
    shown = engine.tokenizer.decode(edited.prompt)
    assert ("Hello there!" in shown) is (edit in ("more text", "a call that was not made"))
    assert_extends(first, back)


@SETUPS
@pytest.mark.parametrize("what", ["arguments", "name", "id"])
async def test_an_edited_call_never_inherits_the_ids_of_the_call_that_was_made(transport, renderer, what):
    engine = scripted(LOOK, "ok")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("a")
        changed = copy.deepcopy(first.message)
        call = changed["tool_calls"][0]
        if what == "id":
            call["id"] = "call_other"
        else:
            call["function"][what] = {"arguments": '{"a": 2}', "name": "see"}[what]
        edited = await agent.send([user("a"), changed, tool(call["id"], "found")])
    assert edited.history == ("rerendered", "assistant_edited")


@SETUPS
async def test_an_edit_of_an_earlier_turn_is_found_too(transport, renderer):
    engine = scripted("one", "two", "three")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        await agent.ask("b")
        question, _, *rest = agent.messages
        edited = await agent.send([question, assistant("no one"), *rest, user("c")])
    assert edited.history[0] == "rerendered"
    assert "no one" in engine.tokenizer.decode(edited.prompt)


@SETUPS
async def test_an_edited_question_is_another_conversation(transport, renderer):
    engine = scripted("one", "two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        edited = await agent.send([user("A!"), first.message, user("b")])
    assert edited.history == ("rerendered", "no_matching_turn")
    assert "A!" in engine.tokenizer.decode(edited.prompt)


@RENDERERS
async def test_a_new_segment_on_generate_is_the_whole_conversation_rendered(renderer):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, "generate", renderer) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        edited = await agent.send([user("a"), assistant("Other."), user("b")])
    rendered = (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nOther.<|im_end|>\n"
        "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )
    assert edited.prompt == engine.tokenizer.encode(rendered)


@RENDERERS
async def test_a_new_segment_on_chat_is_left_to_the_engine(renderer):
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, "chat", renderer) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        await agent.send([user("a"), assistant("Other."), user("b")])
    chats = [request for request in engine.requests if request.path.endswith("completions")]
    assert "input_ids" not in chats[-1].body


def as_parts(message: Message) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def without(message: Message, *names: str) -> Message:
    return {key: value for key, value in message.items() if key not in names}


def reordered(message: Message) -> Message:
    """The calls as a client that parsed and wrote them again sends them."""
    calls = copy.deepcopy(message["tool_calls"])
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), ensure_ascii=True)
    return {**message, "tool_calls": calls}


def without_reasoning(message: Message) -> Message:
    return {**message, "content": message["content"].partition("</think>")[2]}


TRIPLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")
SAME = {
    "as it came": lambda message: message,
    "without ids": lambda message: without(message, *TRIPLE),
    "without nulls": lambda message: {k: v for k, v in message.items() if v is not None},
    "as text parts": as_parts,
    "calls written anew": reordered,
    "without reasoning": without_reasoning,
    "reasoning in a field": lambda message: {
        **without_reasoning(message),
        "reasoning_content": "\nwhy not\n",
    },
    "only role, content and calls": lambda message: {
        key: message[key] for key in ("role", "content", "tool_calls")
    },
}


@SETUPS
@pytest.mark.parametrize("form", SAME)
async def test_the_same_turn_written_otherwise_is_the_same_turn(transport, renderer, form):
    engine = scripted(THOUGHT + "So:\n" + LOOK, THOUGHT + "Found.", reasoning_parser="qwen3")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("a")
        returned = SAME[form](first.message)
        second = await agent.send([user("a"), returned, tool(first.calls[0]["id"], "found")])
    assert_extends(first, second)


@SETUPS
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("parser", [None, "qwen3"])
@pytest.mark.parametrize(
    "reply",
    [
        "<think>\na\n</think>\n\nb</think>c",
        "<think>a</think></think>",
        "<think><think>x</think>y</think>z",
        "b <think> c </think> d </think> e",
        "a</think>b</think>c",
    ],
)
async def test_a_tag_of_thinking_too_many_is_no_edit(transport, renderer, path, parser, reply):
    engine = scripted(reply, "more", reasoning_parser=parser)
    settings = {"uses_reasoning_parser": True}
    async with served_by(engine, transport, renderer, **settings) as client:
        if path.endswith("responses"):
            items: list[Message] = [user("a")]
            for question in ("b", None):
                answer = await client.post(path, json={"input": items})
                items += [*answer.json()["output"], *([user(question)] if question else [])]
            assert answer.headers["x-sglang-history"] == "spliced"
        else:
            agent = Agent(client, engine)
            first = await agent.ask("a")
            assert_extends(first, await agent.ask("b"))


@SETUPS
async def test_text_that_comes_as_parts_is_the_text(transport, renderer):
    engine = scripted("one", "two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        parts = user([{"type": "text", "text": "a"}])
        new = user([{"type": "text", "text": "b"}])
        second = await agent.send([parts, first.message, new])
    behind = engine.tokenizer.decode(assert_extends(first, second))
    assert behind == "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"


async def test_text_that_comes_as_parts_is_text_to_a_template_that_writes_nothing_else():
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if m.content is string }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    engine = scripted("one", "two")
    async with served_by(engine, sglang_tokenizer=str(tokenizer_folder(template))) as client:
        agent = Agent(client, engine)
        first = await agent.ask(user([{"type": "text", "text": "brim"}, {"type": "text", "text": "tolka"}]))
        second = await agent.ask(user([{"type": "text", "text": "drasnivel"}]))
    assert "brim tolka" in engine.tokenizer.decode(first.prompt)
    assert "drasnivel" in engine.tokenizer.decode(assert_extends(first, second))


@SETUPS
@pytest.mark.parametrize("calls", [None, []])
async def test_no_calls_are_no_calls(transport, renderer, calls):
    engine = scripted("one", "two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        second = await agent.send([user("a"), {**first.message, "tool_calls": calls}, user("b")])
    assert_extends(first, second)


@SETUPS
async def test_requests_of_one_session_side_by_side_keep_their_own_ids(transport, renderer):
    """All three are in the engine at once, and end in another order than they came."""
    engine = echoing()
    fields = {"max_tokens": 8}
    async with served_by(engine, transport, renderer) as client:
        root = Agent(client, engine, **fields)
        first = await root.ask("a")
        gates = [
            Rule(when=f"branch {name}", misbehave=Misbehaviour(gate=name, times=1))
            for name in ("x", "y", "z")
        ]
        engine.rules.extend(gates)

        async def branch(name: str) -> Answer:
            messages = [*root.messages, user(f"branch {name}")]
            response = await client.post("/v1/chat/completions", json={"messages": messages, **fields})
            return Answer(response.status_code, response.headers, response.json(), None)

        running = {name: asyncio.create_task(branch(name)) for name in ("x", "y", "z")}
        for name in running:
            await engine.gate(name).until_waiting(1)
        for name in ("z", "x", "y"):
            engine.gate(name).open()
            await running[name]
        answers = dict(zip(running, await asyncio.gather(*running.values()), strict=True))
        seen = [*first.prompt, *first.generation]
        for name, answer in answers.items():
            assert answer.prompt[: len(seen)] == seen
            sample = next(s for s in engine.samples if s.prompt_token_ids == answer.prompt)
            assert answer.generation == sample.token_ids
            assert f"branch {name}" in engine.tokenizer.decode(answer.prompt)
            messages = [*root.messages, user(f"branch {name}"), answer.message, user("on")]
            following = await root.send(messages)
            kept = [*answer.prompt, *answer.generation]
            assert following.prompt[: len(kept)] == kept
            assert following.history == ("spliced", "matched")
        counted = events((await client.get("/metrics")).text)
    assert counted["history_commit_committed"] == 1 + 3 + 3


@SETUPS
async def test_first_turns_of_one_session_side_by_side_do_not_meet(transport, renderer):
    engine = echoing()
    async with served_by(engine, transport, renderer) as client:
        agents = [Agent(client, engine, max_tokens=8, headers={"X-Session-Id": "x"}) for _ in range(4)]
        engine.rules.append(Rule(when="start", misbehave=Misbehaviour(gate="all", times=4)))

        async def start(agent: Agent, number: int) -> Answer:
            body = {"messages": [user(f"start {number}")], **agent.fields}
            response = await client.post(agent.path, json=body, headers=agent.headers)
            agent.messages = [*body["messages"], response.json()["choices"][0]["message"]]
            return Answer(response.status_code, response.headers, response.json(), None)

        turns = [asyncio.create_task(start(agent, number)) for number, agent in enumerate(agents)]
        await engine.gate("all").until_waiting(4)
        engine.gate("all").open()
        firsts = await asyncio.gather(*turns)
        for agent, first in zip(agents, firsts, strict=True):
            second = await agent.ask("on")
            kept = [*first.prompt, *first.generation]
            assert second.prompt[: len(kept)] == kept


@SETUPS
async def test_a_turn_whose_session_is_evicted_while_it_runs_is_remembered_on_its_own(transport, renderer):
    engine = scripted(
        "one", Rule(when="b<.im_end", reply="two", misbehave=Misbehaviour(gate="held", times=1), times=1)
    )
    engine.rules.extend([Rule(when="other", reply="x"), Rule(reply="three")])
    async with served_by(engine, transport, renderer, session_max_sessions=1) as client:
        agent = Agent(client, engine, headers={"X-Session-Id": "mine"})
        first = await agent.ask("a")
        running = asyncio.create_task(agent.send([*agent.messages, user("b")]))
        await engine.gate("held").until_waiting(1)
        await Agent(client, engine, headers={"X-Session-Id": "other"}).ask("other")
        engine.gate("held").open()
        second = await running
        third = await agent.send([*agent.messages, user("b"), second.message, user("c")])
        counted = events((await client.get("/metrics")).text)
    assert_extends(first, second)
    assert_extends(second, third)
    assert counted["history_commit_stale"] == 1
    assert counted["session_evicted_max_sessions"] == 2


@SETUPS
async def test_a_conversation_that_ends_with_the_assistant_is_no_continuation_of_its_ids(transport, renderer):
    engine = scripted("one", "two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        second = await agent.ask()
    assert second.status == 200
    assert second.history == ("rerendered", "no_new_messages")


@SETUPS
async def test_assistant_turns_of_others_in_between_are_named(transport, renderer):
    engine = scripted("one", "two")
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        second = await agent.ask("b", assistant("from somewhere else"), user("c"))
    assert second.history == ("rerendered", "no_matching_turn")
