"""Reasoning between think spans and the engine's field, both ways and over several turns."""

from __future__ import annotations

import pytest

from tests.support.model_servers import agent, make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion, tool_call

USER = {"role": "user", "content": "x"}
NO_IDS = {"return_token_id_information": False}


async def sent_assistant(message: dict[str, object], **settings: object) -> dict[str, object]:
    """The assistant message of the history as the engine gets it."""
    engine = ScriptedEngine([completion()])
    async with agent(make_vllm(engine, **{**NO_IDS, **settings})) as client:
        body = {"messages": [USER, {"role": "assistant", **message}, USER]}
        response = await client.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
    return engine.bodies()[0]["messages"][1]


async def answered(message: dict[str, object], **settings: object) -> dict[str, object]:
    engine = ScriptedEngine([completion(**message)])
    async with agent(make_vllm(engine, **{**NO_IDS, **settings})) as client:
        return (await client.post("/v1/chat/completions", json={"messages": [USER]})).json()


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize(
    ("content", "expected"), [("hi", "<think>why</think>hi"), (None, "<think>why</think>")]
)
async def test_the_engines_reasoning_becomes_a_think_span(field, content, expected):
    message = (await answered({"content": content, field: "why"}))["choices"][0]["message"]
    assert message["content"] == expected
    assert message.get("reasoning_content") is None
    assert message.get("reasoning") is None


@pytest.mark.parametrize("empty", ["", None])
async def test_empty_reasoning_adds_no_span(empty):
    message = (await answered({"content": "hi", "reasoning_content": empty}))["choices"][0]["message"]
    assert message["content"] == "hi"
    assert "reasoning_content" not in message


async def test_reasoning_from_an_engine_that_should_not_parse_is_an_error_with_the_setting():
    answer = await answered({"content": "hi", "reasoning": "why"}, uses_reasoning_parser=False)
    assert answer["error"]["code"] == "upstream_contract"
    assert "uses_reasoning_parser" in answer["error"]["message"]


async def test_a_span_in_the_history_moves_into_both_fields_with_its_whitespace():
    message = await sent_assistant({"content": "<think>\n why \n</think>\n\nbecause\n"})
    assert message == {
        "role": "assistant",
        "content": "\n\nbecause\n",
        "reasoning_content": "\n why \n",
        "reasoning": "\n why \n",
    }


async def test_several_spans_are_all_kept():
    message = await sent_assistant({"content": "<think>a</think>b<think>c</think>d"})
    assert (message["content"], message["reasoning_content"]) == ("bd", "a\nc")


async def test_spans_in_parts_are_all_kept_and_other_parts_stay():
    refusal = {"type": "refusal", "refusal": "no"}
    parts = [
        {"type": "text", "text": "<think>a</think>b"},
        refusal,
        {"type": "text", "text": "plain"},
        {"type": "text", "text": "<think>c</think>"},
    ]
    message = await sent_assistant({"content": parts})
    assert message["content"] == [
        {"type": "text", "text": "b"},
        refusal,
        {"type": "text", "text": "plain"},
        {"type": "text", "text": ""},
    ]
    assert message["reasoning"] == "a\nc"


@pytest.mark.parametrize("content", [None, "", "no span", "</think>lone", "<think>open", []])
async def test_content_without_a_whole_span_is_not_touched(content):
    assert await sent_assistant({"content": content}) == {"role": "assistant", "content": content}


async def test_without_interleaved_reasoning_the_span_is_removed_and_not_sent():
    message = await sent_assistant({"content": "<think>why</think>because"}, uses_interleaved_reasoning=False)
    assert message == {"role": "assistant", "content": "because"}


async def test_without_a_reasoning_parser_the_history_is_left_alone():
    message = await sent_assistant({"content": "<think>why</think>because"}, uses_reasoning_parser=False)
    assert message == {"role": "assistant", "content": "<think>why</think>because"}


async def test_spans_of_other_roles_are_text():
    engine = ScriptedEngine([completion()])
    user = {"role": "user", "content": "<think>mine</think>"}
    async with agent(make_vllm(engine, **NO_IDS)) as client:
        await client.post("/v1/chat/completions", json={"messages": [user]})
    assert engine.bodies()[0]["messages"] == [user]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_reasoning_survives_several_turns_over_responses(field):
    call = tool_call("f", "{}")
    engine = ScriptedEngine(
        [
            completion(None, finish_reason="tool_calls", tool_calls=[call], **{field: "first"}),
            completion("done", **{field: "second"}),
            completion("end"),
        ]
    )
    items: list[dict[str, object]] = [USER]
    async with agent(make_vllm(engine, **NO_IDS)) as client:
        kinds = []
        for _ in range(3):
            tools = [{"type": "function", "name": "f", "parameters": {}, "strict": True}]
            output = (await client.post("/v1/responses", json={"input": items, "tools": tools})).json()[
                "output"
            ]
            kinds.append([item["type"] for item in output])
            items += output
            if output[-1]["type"] == "function_call":
                items.append(
                    {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "3"}
                )
            else:
                items.append(USER)
    assert kinds == [["reasoning", "function_call"], ["reasoning", "message"], ["message"]]
    history = engine.bodies()[2]["messages"]
    assert [message["role"] for message in history] == ["user", "assistant", "tool", "assistant", "user"]
    assert history[1]["reasoning_content"] == history[1]["reasoning"] == "first"
    assert history[1]["tool_calls"] == [call]
    assert (history[3]["reasoning"], history[3]["content"]) == ("second", "done")
