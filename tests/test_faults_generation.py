"""Faults that users of other servers have met, between an agent and the engine: each must be impossible here.

Over HTTP with the embedded engine, on every transport that the fault could be on. What else guards against them is in
docs/verification.md.
"""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from sglang_model.testing import Abort, Engine, Misbehaviour, Rule
from sglang_model.testing.chat_template import BUILTIN_TEMPLATE
from tests.support.conversations import Agent, assert_extends, events
from tests.support.local_tokenizer import SETUPS, engine_with, post, served_by, tokenizer_folder, transport_of
from tests.support.model_servers import agent as agent_of
from tests.support.model_servers import make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion
from tests.support.turns import assistant, call, tool, user

TRANSPORTS = pytest.mark.parametrize("transport", ["chat", "generate"])
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PATHS = pytest.mark.parametrize("path", [CHAT, RESPONSES])
FUNCTION = {
    "name": "look",
    "description": "Look something up",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
LOOK = '<tool_call>\n{"name": "look", "arguments": {"a":1}}\n</tool_call>'


def scripted(*replies: str | Rule, **settings: object) -> Engine:
    rules = [reply if isinstance(reply, Rule) else Rule(reply=reply, times=1) for reply in replies]
    return engine_with(*rules, **{"reasoning_parser": None, **settings})


def body_for(path: str, text: str = "a", **fields: object) -> dict[str, object]:
    return {"messages": [user(text)], **fields} if path == CHAT else {"input": text, **fields}


def meta_of(transport: str) -> str:
    return "meta_info" if transport == "generate" else "choices.*.meta_info"


def sent_to(engine: Engine, *paths: str) -> list[dict[str, object]]:
    """The bodies of the calls that generate."""
    return [request.body for request in engine.requests if request.path in (paths or (CHAT, "/generate"))]


@TRANSPORTS
@pytest.mark.parametrize("logprobs", [[], None], ids=["empty", "null"])
async def test_an_abort_without_logprobs_is_an_abort(transport, logprobs):
    """verl#6675: reading the logprobs crashed before anybody looked at the finish."""
    wrong = Misbehaviour(abort=Abort(), replace={f"{meta_of(transport)}.output_token_logprobs": logprobs})
    response = await post(scripted(Rule(reply="x", misbehave=wrong)), body_for(CHAT), transport=transport)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "generation_aborted"


@SETUPS
async def test_when_everything_is_aborted_each_session_goes_on_from_its_own_last_turn(transport, renderer):
    """miles#2296, miles#1323: new weights abort all that runs."""
    engine = engine_with(reasoning_parser=None, tool_call_parser=None)
    async with served_by(engine, transport, renderer) as client:
        agents = [
            Agent(client, engine, headers={"X-Session-Id": name}, max_tokens=6) for name in ("x", "y", "z")
        ]
        client.cookies.clear()
        firsts = [await agent.ask("a") for agent in agents]
        engine.rules.append(
            Rule(when="held", misbehave=Misbehaviour(gate="door", after_tokens=2, times=3), times=3)
        )
        client.cookies.clear()
        held = [
            asyncio.create_task(
                client.post(
                    CHAT,
                    json={"messages": [*agent.messages, user("held")], "max_tokens": 6},
                    headers=agent.headers,
                )
            )
            for agent in agents
        ]
        await engine.gate("door").until_waiting(3)
        async with httpx.AsyncClient(transport=transport_of(engine), base_url="http://engine") as direct:
            await direct.post("/abort_request", json={"abort_all": True})
        aborted = [await one for one in held]
        client.cookies.clear()
        seconds = [await agent.ask("b") for agent in agents]
        counted = events((await client.get("/metrics")).text)
    assert [response.status_code for response in aborted] == [503] * 3
    assert counted["generation_aborted"] == 3
    for first, second in zip(firsts, seconds, strict=True):
        assert_extends(first, second)


async def test_the_logprob_is_that_of_the_sampled_token_and_not_of_a_likelier_one():
    """NeMo RL#3130."""
    likelier = [{"token": "token_id:8", "logprob": -0.01}, {"token": "token_id:7", "logprob": -3.0}]
    entry = {"token": "token_id:7", "logprob": -3.0, "top_logprobs": likelier}
    engine = ScriptedEngine([completion(choice={"logprobs": {"content": [entry]}})])
    async with agent_of(make_vllm(engine)) as client:
        message = (await client.post(CHAT, json=body_for(CHAT))).json()["choices"][0]["message"]
    assert (message["generation_token_ids"], message["generation_log_probs"]) == ([7], [-3.0])


@TRANSPORTS
async def test_asking_for_likelier_tokens_does_not_change_whose_logprobs_come(transport):
    engine = engine_with(reasoning_parser=None, tool_call_parser=None)
    async with served_by(engine, transport) as client:
        answer = await Agent(client, engine).ask("a", max_tokens=6, logprobs=True, top_logprobs=5)
    assert answer.sample is not None
    assert answer.message["generation_log_probs"] == answer.sample.logprobs
    assert answer.generation


@TRANSPORTS
async def test_logprobs_at_another_temperature_arrive_as_the_engine_gave_them(transport):
    """miles#1345: nothing is rescaled."""
    engine = engine_with(reasoning_parser=None, tool_call_parser=None)
    async with served_by(engine, transport) as client:
        answer = await Agent(client, engine).ask("a", max_tokens=6, temperature=0.7, seed=3)
    assert answer.sample is not None
    assert answer.message["generation_log_probs"] == answer.sample.logprobs
    body = sent_to(engine)[0]
    assert body.get("sampling_params", body)["temperature"] == 0.7


@TRANSPORTS
async def test_an_entry_behind_the_sampled_tokens_never_makes_ids_and_logprobs_differ_in_length(transport):
    """eval-protocol#457: an entry is one id with its logprob, and SGLang writes one for a token never sampled."""
    engine = scripted("Hello there!", misbehave=(Misbehaviour(logprob_entries=1, path="completions|gener"),))
    async with served_by(engine, transport) as client:
        answer = await Agent(client, engine).ask("a")
    assert answer.sample is not None
    assert answer.generation == answer.sample.token_ids
    assert len(answer.message["generation_log_probs"]) == len(answer.generation)


@PATHS
async def test_more_reasoning_tokens_than_tokens_are_no_crash(path):
    """sglang#39826: seen with speculative decoding."""
    usage = {"usage.reasoning_tokens": 999, "usage.completion_tokens_details": {"reasoning_tokens": 999}}
    engine = scripted("Hello there!", misbehave=(Misbehaviour(path=CHAT, replace=usage),))
    response = await post(engine, body_for(path), path, transport="chat")
    assert response.status_code == 200, response.text


EXTENSIONS: dict[str, object] = {
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "stop_token_ids": [5],
    "ignore_eos": False,
    "skip_special_tokens": True,
    "no_stop_trim": False,
    "regex": "[a-z]+",
}


@PATHS
async def test_sampling_extensions_reach_the_engines_chat_by_name(path):
    """W19: they were no fields of the request, and were dropped without a word."""
    engine = scripted("Hello there!")
    response = await post(engine, body_for(path, **EXTENSIONS), path, transport="chat")
    assert response.status_code == 200, response.text
    (sent,) = sent_to(engine)
    assert {name: sent.get(name) for name in EXTENSIONS} == EXTENSIONS


async def test_reasoning_effort_reaches_the_template_on_generate():
    """W21: it was dropped."""
    template = BUILTIN_TEMPLATE + "{{ reasoning_effort }}"
    engine = scripted("Hello there!")
    settings = {"sglang_tokenizer": str(tokenizer_folder(template)), "sglang_splice_history": False}
    response = await post(engine, body_for(CHAT, reasoning_effort="high"), **settings)
    assert response.status_code == 200, response.text
    assert engine.tokenizer.decode(engine.samples[-1].prompt_token_ids).endswith("high")


OPENS = BUILTIN_TEMPLATE.replace(
    "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking",
    "{{- '<|im_start|>assistant\\n<think>\\n' }}\n    {%- if enable_thinking",
)


@PATHS
async def test_an_opening_tag_by_template_and_model_is_one_thought_and_the_ids_stay(path, tmp_path):
    """TRL#6361: Qwen3.5's template opens the thinking, and the model does so again."""
    (template := tmp_path / "t.jinja").write_text(OPENS)
    reply = "<think>\nso\n</think>\n\nHello."
    engine = engine_with(Rule(reply=reply), chat_template_path=template)
    settings = {"sglang_tokenizer": str(tokenizer_folder(OPENS))}
    answer = (await post(engine, body_for(path), path, **settings)).json()
    if path == CHAT:
        message = answer["choices"][0]["message"]
        assert message["content"] == "<think>\nso\n</think>\n\nHello."
    else:
        reasoning, message = answer["output"]
        assert [part["text"] for part in reasoning["summary"]] == ["\nso\n"]
        assert message["content"][0]["text"] == "\n\nHello."
    assert engine.tokenizer.decode(message["prompt_token_ids"]).count("<think>") == 1
    assert message["generation_token_ids"] == [
        *engine.tokenizer.encode(reply),
        engine.tokenizer.eos_token_id,
    ]


@SETUPS
async def test_a_turn_that_is_nothing_but_reasoning_keeps_its_ids_when_the_user_goes_on(transport, renderer):
    """NeMo RL#1903: the template drops the whole message, or what is left of it."""
    engine = scripted(
        "<think>\nonly this\n</think>\n\n", "<think>\nx\n</think>\n\nok", reasoning_parser="qwen3"
    )
    async with served_by(engine, transport, renderer) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        second = await agent.ask("b")
    behind = engine.tokenizer.decode(assert_extends(first, second))
    assert behind == "\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    assert engine.tokenizer.decode(second.prompt).count("only this") == 1


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


async def test_ids_are_never_sent_in_place_of_an_image():
    """sglang#26555: a spliced prompt of text would leave the image out."""
    engine = scripted("Hello there!", "ok")
    async with served_by(engine, "chat", "server") as client:
        agent = Agent(client, engine)
        await agent.ask("a")
        looking = await agent.send([*agent.messages, user([{"type": "text", "text": "look"}, IMAGE])])
    assert looking.history == ("rerendered", "not_only_text")
    assert "input_ids" not in engine.requests[-1].body


@pytest.mark.parametrize("call_id", ["functions.look:0", "call_abc", "functions.look:abc", "0"])
async def test_the_engines_own_call_id_reaches_the_agent_and_comes_back_to_the_engine(call_id):
    """sglang#25358: Kimi's ids have a form of their own, and its template reads them."""
    made = {
        "choices.*.message.tool_calls": [call(call_id, "look", "{}")],
        "choices.*.finish_reason": "tool_calls",
    }
    engine = scripted(LOOK, "ok", misbehave=(Misbehaviour(path=CHAT, replace=made, times=1),))
    settings = {"transport": "chat", "sglang_splice_history": False}
    async with served_by(engine, **settings) as client:
        agent = Agent(client, engine, tools=TOOLS)
        first = await agent.ask("a")
        assert [made["id"] for made in first.calls] == [call_id]
        assert (await agent.ask(*agent.results("found"))).status == 200
    sent = sent_to(engine)[-1]["messages"]
    assert (sent[1]["tool_calls"][0]["id"], sent[2]["tool_call_id"]) == (call_id, call_id)


CALLED = {"role": "assistant", "tool_calls": [call("c1", "look", '{"a": 1}')]}
HISTORIES: dict[str, list[dict[str, object]]] = {
    "no content": [user("a"), CALLED, tool("c1", "found")],
    "null content": [user("a"), {**CALLED, "content": None}, tool("c1", "found")],
    "empty content": [user("a"), {**CALLED, "content": ""}, tool("c1", "found")],
    "no calls": [user("a"), assistant("b", tool_calls=[]), user("c")],
    "null calls": [user("a"), assistant("b", tool_calls=None), user("c")],
    "null everything": [
        user("a"),
        assistant("b", tool_calls=None, refusal=None, audio=None, function_call=None, reasoning_content=None),
        user("c"),
    ],
    "a refusal": [user("a"), assistant([{"type": "refusal", "refusal": "No."}]), user("c")],
    "arguments as text": [user("a"), CALLED, tool("c1", "found"), assistant("b"), user("c")],
    "no text in the result": [user("a"), CALLED, tool("c1", "")],
}


@SETUPS
@pytest.mark.parametrize("name", HISTORIES)
async def test_a_history_as_agents_write_it_is_understood(transport, renderer, name):
    """W49, Gym#2515, #1180, #2583: a KeyError, and a 500."""
    engine = scripted("ok")
    async with served_by(engine, transport, renderer) as client:
        body = {"messages": HISTORIES[name], "tools": TOOLS}
        response = await client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    shown = engine.tokenizer.decode(engine.samples[-1].prompt_token_ids)
    assert ("No." in shown) is (name == "a refusal")
    assert '"tool_calls": []' not in json.dumps(sent_to(engine)[-1].get("messages", []))


ITEMS: dict[str, list[dict[str, object]]] = {
    "a tool's message": [
        user("a"),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ],
    "a chat-shaped turn": [user("a"), {**CALLED, "content": None}, tool("c1", "found")],
    "an output as text": [
        user("a"),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
    ],
}


@TRANSPORTS
@pytest.mark.parametrize("name", ITEMS)
async def test_items_as_agents_write_them_are_understood(transport, name):
    """Gym#2490, #2489, #2493."""
    engine = scripted("ok")
    response = await post(engine, {"input": ITEMS[name]}, RESPONSES, transport=transport)
    assert response.status_code == 200, response.text
    assert "found" in engine.tokenizer.decode(engine.samples[-1].prompt_token_ids)


@TRANSPORTS
@PATHS
@pytest.mark.parametrize("choice", ["auto", "none", None])
async def test_a_tool_choice_without_tools_is_no_reason_to_refuse(transport, path, choice):
    """Gym#1925."""
    engine = scripted("ok")
    body = body_for(path, tool_choice=choice, parallel_tool_calls=True)
    response = await post(engine, body, path, transport=transport)
    assert response.status_code == 200, response.text
    assert "tool_choice" not in sent_to(engine)[0]


@TRANSPORTS
@PATHS
@pytest.mark.parametrize(
    "metadata", [None, {}, {"k": None}, {"extra_body": None, "chat_template_kwargs": None}]
)
async def test_metadata_that_says_nothing_is_accepted(transport, path, metadata):
    """Gym#2139, #2171: a 500."""
    response = await post(scripted("ok"), body_for(path, metadata=metadata), path, transport=transport)
    assert response.status_code == 200, response.text


@TRANSPORTS
async def test_a_plain_reply_that_the_engines_forcing_parser_took_for_thinking_keeps_its_ids(transport):
    """sglang#4539: the parser decides the text alone."""
    engine = engine_with(Rule(reply="plain"), reasoning_parser="deepseek-r1")
    async with served_by(engine, transport) as client:
        answer = await Agent(client, engine).ask("a")
    assert answer.generation == [*engine.tokenizer.encode("plain"), engine.tokenizer.eos_token_id]
    expected = "plain" if transport == "generate" else "<think>plain</think>"
    assert answer.message["content"] == expected


@TRANSPORTS
@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_the_weights_that_sampled_a_turn_are_told(transport, version):
    """W27: /generate's answer named them, and they were dropped."""
    engine = scripted("Hello there!", version=version, weight_version="step-7")
    completion = (await post(engine, body_for(CHAT), transport=transport)).json()
    spans = {"weight_versions": [{"version": "step-7", "start": 0, "end": len(engine.samples[-1].token_ids)}]}
    assert completion["metadata"] == {"weight_version": "step-7", **(spans if version == "0.5.23" else {})}
