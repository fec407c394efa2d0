"""For the same sampled ids both transports show the same, but for the differences that are written down."""

from __future__ import annotations

import pytest

from sglang_model.testing import Rule
from tests.sglang_model.transport_differences import (
    ALIKE,
    CHAT_OF_0_5_23,
    DIFFERENT,
    Reply,
    Shown,
    as_markdown,
)
from tests.support.local_tokenizer import engine_with, post
from tests.support.turns import user

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
WAYS = [("chat", "server"), ("generate", "server"), ("generate", "local")]


async def sample(
    reply: Reply, transport: str, renderer: str, version: str = "0.5.13"
) -> tuple[Shown, list[int]]:
    """What an agent sees, and what was sampled."""
    engine = engine_with(Rule(reply=reply.text), version=version)
    body: dict[str, object] = {"messages": [user("hi")], **reply.fields}
    if reply.tools:
        body["tools"] = [WEATHER]
    if reply.cut_behind is not None:
        end = reply.text.index(reply.cut_behind) + len(reply.cut_behind)
        body["max_tokens"] = len(engine.tokenizer.encode(reply.text[:end]))
    response = await post(engine, body, transport=transport, renderer=renderer)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    message = choice["message"]
    calls = tuple(
        (call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"] or ()
    )
    assert message["generation_token_ids"] == engine.samples[-1].token_ids
    return Shown(message["content"], calls, choice["finish_reason"]), engine.samples[-1].token_ids


@pytest.mark.parametrize("name", ALIKE)
async def test_an_agent_sees_the_same_on_both_transports(name):
    seen = [await sample(ALIKE[name], transport, renderer) for transport, renderer in WAYS]
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


@pytest.mark.parametrize("name", DIFFERENT)
async def test_what_an_agent_sees_otherwise_is_what_is_written_down(name):
    difference = DIFFERENT[name]
    chat, generate, local = [await sample(difference.reply, *way) for way in WAYS]
    assert chat[0] == difference.chat
    assert generate[0] == local[0] == difference.generate
    assert chat[1] == generate[1] == local[1]


@pytest.mark.parametrize("name", [*ALIKE, *DIFFERENT])
async def test_what_chat_shows_otherwise_with_0_5_23_is_what_is_written_down(name):
    reply = ALIKE[name] if name in ALIKE else DIFFERENT[name].reply
    before, ids = await sample(reply, "chat", "server")
    shown, same_ids = await sample(reply, "chat", "server", "0.5.23")
    assert shown == CHAT_OF_0_5_23.get(name, before)
    assert same_ids == ids


def test_a_difference_differs_and_has_a_reason():
    for difference in DIFFERENT.values():
        assert difference.chat != difference.generate
        assert difference.reason
    assert not ALIKE.keys() & DIFFERENT.keys()


def test_the_table_has_a_row_for_each_difference():
    head, _, *rows = as_markdown().splitlines()
    assert head == "| sampled | chat shows | generate shows | why |"
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(DIFFERENT)
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
