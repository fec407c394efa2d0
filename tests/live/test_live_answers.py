"""What an agent sees of the same sampled ids over each transport, with SGLang's own HTTP server and its parsers.

The data are those that the embedded engine is held to: here they are held to the engine that they are about.
"""

from __future__ import annotations

import httpx
import pytest

from tests.live.policy import asking_for
from tests.live.rollout import CHAT_TOOLS
from tests.live.servers import encoded, settings_of
from tests.sglang_model.transport_differences import ALIKE, DIFFERENT, Reply, Shown
from tests.support.model_servers import agent, make_sglang
from tests.support.recorder import Recorder

pytestmark = [pytest.mark.live]


async def seen(client: httpx.AsyncClient, engine: str, name: str, reply: Reply) -> tuple[Shown, list[int]]:
    """What an agent sees, and what was sampled."""
    body: dict[str, object] = {"messages": [{"role": "user", "content": asking_for(name)}], **reply.fields}
    if reply.tools:
        body["tools"] = CHAT_TOOLS
    if "stop_token_ids" in body:
        body["stop_token_ids"] = encoded(engine, " two")
    if reply.cut_behind is not None:
        end = reply.text.index(reply.cut_behind) + len(reply.cut_behind)
        body["max_tokens"] = len(encoded(engine, reply.text[:end]))
    response = await client.post("/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    shown = Shown(
        message["content"],
        tuple((call["name"], call["arguments"]) for call in calls),
        choice["finish_reason"],
    )
    return shown, message["generation_token_ids"]


async def all_seen(
    engine: str, replies: dict[str, Reply], transport: str, **settings: object
) -> dict[str, tuple[Shown, list[int]]]:
    recorder = Recorder()
    async with agent(make_sglang(recorder, **settings_of(transport, "server", engine, **settings))) as client:
        found = {name: await seen(client, engine, name, reply) for name, reply in replies.items()}
    await recorder.inner.aclose()
    return found


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_an_agent_sees_the_same_on_both_transports(live_engine):
    over_chat = await all_seen(live_engine, ALIKE, "chat")
    assert await all_seen(live_engine, ALIKE, "generate") == over_chat


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_what_an_agent_sees_otherwise_is_what_is_written_down(live_engine):
    replies = {name: difference.reply for name, difference in DIFFERENT.items()}
    over_chat = await all_seen(live_engine, replies, "chat")
    over_generate = await all_seen(live_engine, replies, "generate")
    assert {name: shown for name, (shown, _) in over_generate.items()} == {
        name: difference.generate for name, difference in DIFFERENT.items()
    }
    assert {name: shown for name, (shown, _) in over_chat.items()} == {
        name: difference.chat for name, difference in DIFFERENT.items()
    }
    assert {name: ids for name, (_, ids) in over_chat.items()} == {
        name: ids for name, (_, ids) in over_generate.items()
    }


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_the_engines_own_parsers_show_on_generate_what_they_show_on_chat(live_engine):
    replies = {**ALIKE, **{name: difference.reply for name, difference in DIFFERENT.items()}}
    over_chat = await all_seen(live_engine, replies, "chat")
    assert await all_seen(live_engine, replies, "generate", sglang_tool_format="server") == over_chat
