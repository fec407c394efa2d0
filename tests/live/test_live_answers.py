"""What an agent sees of the same sampled ids over each transport, with SGLang's own HTTP server and its parsers.

The data are those that the embedded engine is held to: here they are held to the engine that they are about.
"""

from __future__ import annotations

from dataclasses import dataclass

import httpx
import pytest

from tests.live.policy import asking_for
from tests.live.rollout import CHAT_TOOLS
from tests.live.servers import encoded, settings_of, version_of
from tests.sglang_model.transport_differences import ALIKE, CHAT_OF_0_5_23, DIFFERENT, Reply, Shown
from tests.support.model_servers import agent, make_sglang
from tests.support.recorder import Recorder

pytestmark = [pytest.mark.live]

FORCED = {"no thinking tags, thinking on", "only a closing thinking tag, thinking on"}
"""Chat tells its qwen3 parser that the model thinks; /separate_reasoning has no way to."""


@dataclass(frozen=True)
class Seen:
    """What an agent sees, and what was sampled."""

    shown: Shown
    ids: list[int]


async def seen(client: httpx.AsyncClient, engine: str, name: str, reply: Reply) -> Seen:
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
    return Seen(shown, message["generation_token_ids"])


async def all_seen(
    engine: str, replies: dict[str, Reply], transport: str, **settings: object
) -> dict[str, Seen]:
    recorder = Recorder()
    async with agent(make_sglang(recorder, **settings_of(transport, "server", engine, **settings))) as client:
        found = {name: await seen(client, engine, name, reply) for name, reply in replies.items()}
    await recorder.inner.aclose()
    return found


def replies_of(version: str) -> dict[str, tuple[Reply, Shown | None, Shown | None]]:
    """Each reply with what chat and generate show of it; None where they only have to show the same."""
    later = CHAT_OF_0_5_23 if version == "0.5.23" else {}
    alike = {name: (reply, later.get(name), None) for name, reply in ALIKE.items()}
    different = {
        name: (difference.reply, later.get(name, difference.chat), difference.generate)
        for name, difference in DIFFERENT.items()
    }
    return {**alike, **different}


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_what_an_agent_sees_over_the_transports_is_what_is_written_down(live_engine):
    replies = replies_of(version_of(live_engine))
    sampled = {name: reply for name, (reply, _, _) in replies.items()}
    over_chat = await all_seen(live_engine, sampled, "chat")
    over_generate = await all_seen(live_engine, sampled, "generate")
    for name, (_, chat, generate) in replies.items():
        assert over_generate[name].ids == over_chat[name].ids, name
        assert over_chat[name].shown == (chat or over_generate[name].shown), name
        assert generate in (None, over_generate[name].shown), name


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_the_engines_own_parsers_show_on_generate_what_chat_shows(live_engine):
    """But for what chat of 0.5.23 drops: text in which a parser finds no call is text here."""
    version = version_of(live_engine)
    dropped = {name for name in CHAT_OF_0_5_23 if version == "0.5.23" and not CHAT_OF_0_5_23[name].calls}
    sampled = {
        name: reply for name, (reply, _, _) in replies_of(version).items() if name not in {*FORCED, *dropped}
    }
    over_chat = await all_seen(live_engine, sampled, "chat")
    assert await all_seen(live_engine, sampled, "generate", sglang_tool_format="server") == over_chat
