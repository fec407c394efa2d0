"""The servers that are measured, over real sockets: they take the stub's answers, and the floor does the same work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from benchmarks.conversation import AgentConversation, Conversation
from benchmarks.engine_stub import EngineStub, listening
from benchmarks.floor import make_app, make_floor
from benchmarks.stub_answers import Mode, Shape
from benchmarks.stub_tokenizer import StubTokenizer
from benchmarks.tokenizer import Corpus
from tests.support.model_servers import make_sglang, make_vllm
from tests.support.real_server import serving

SHAPE = Shape(prompt_tokens=200, reply_tokens=40)
FIRST = "The harbour opens in the evening, then count every boat."
THEN = ("And the market?", "And the river?")

Turn = dict[str, object]


@asynccontextmanager
async def engine_stub(
    corpus: Corpus, folder: Path, mode: Mode = "sglang", shape: Shape = SHAPE
) -> AsyncIterator[str]:
    stub = EngineStub(corpus, mode, StubTokenizer(folder))
    stub.configure(shape)
    async with listening(stub) as port:
        yield f"http://127.0.0.1:{port}"


async def turns_of(port: int, conversation: Conversation) -> list[Turn]:
    """The last output item of three turns, as the load generator plays them."""
    turns = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for text in (*THEN, "Thanks."):
            answer = await client.post(conversation.path, content=conversation.body())
            assert answer.status_code == 200, answer.text
            conversation.go_on(answer.content, text)
            turns.append({**answer.json()["output"][-1], "history": conversation.history})
    return turns


def agent() -> AgentConversation:
    return AgentConversation(FIRST, echo_ids=True, with_tool=False)


def triple(turn: Turn) -> dict[str, object]:
    return {key: turn[key] for key in ("prompt_token_ids", "generation_token_ids", "generation_log_probs")}


CHAT = {"sglang_splice_history": False}
SPLICED = {"sglang_splice_history": True}
GENERATE = {"transport": "generate", "context_length": 100_000}


@pytest.mark.parametrize(
    ("settings", "splices"),
    [
        (CHAT, False),
        (SPLICED, True),
        ({**SPLICED, "sglang_renderer": "server"}, True),
        (GENERATE, True),
    ],
    ids=["chat", "chat, spliced", "chat, training config", "generate"],
)
async def test_every_server_of_ours_takes_the_stubs_answers(corpus, folder, settings, splices):
    async with engine_stub(corpus, folder) as url:
        server = make_sglang(real_sockets=True, base_url=url, sglang_tokenizer=str(folder), **settings)
        async with serving(server.setup_webserver()) as port:
            turns = await turns_of(port, agent())
    for turn in turns:
        assert turn["generation_token_ids"] == [*corpus.reply_ids[:39], corpus.end_id]
    if splices:
        assert [turn["history"] for turn in turns] == ["new", "spliced", "spliced"]
        seen = [*turns[0]["prompt_token_ids"], *turns[0]["generation_token_ids"]]
        assert turns[1]["prompt_token_ids"][: len(seen)] == seen


async def test_a_vllm_server_takes_the_stubs_answers(corpus, folder):
    async with engine_stub(corpus, folder, "vllm") as url, httpx.AsyncHTTPTransport() as transport:
        server = make_vllm(transport, base_url=url)
        async with serving(server.setup_webserver()) as port:
            turns = await turns_of(port, agent())
    assert [len(turn["prompt_token_ids"]) for turn in turns] == [200, 304, 408]


@pytest.mark.parametrize(
    ("transport", "settings"),
    [("chat", CHAT), ("generate", GENERATE)],
)
async def test_the_floor_makes_the_same_token_triple(corpus, folder, transport, settings):
    async with engine_stub(corpus, folder) as url:
        server = make_sglang(real_sockets=True, base_url=url, sglang_tokenizer=str(folder), **settings)
        floor = make_app(make_floor(transport, folder), url)
        async with serving(server.setup_webserver()) as port, serving(floor) as floor_port:
            ours = await turns_of(port, agent())
            floors = await turns_of(floor_port, agent())
    assert [triple(turn) for turn in floors] == [triple(turn) for turn in ours]
    texts = [[turn["content"][0]["text"] for turn in turns] for turns in (ours, floors)]
    assert texts[0] == texts[1]


async def test_tools_are_called_and_answered(corpus, folder):
    conversation = AgentConversation(FIRST, echo_ids=False, with_tool=True)
    async with engine_stub(corpus, folder, shape=replace(SHAPE, reply="tool")) as url:
        server = make_sglang(real_sockets=True, base_url=url, sglang_tokenizer=str(folder), **GENERATE)
        async with serving(server.setup_webserver()) as port:
            turns = await turns_of(port, conversation)
    assert [turn["type"] for turn in turns] == ["function_call"] * 3
    assert [turn["history"] for turn in turns] == ["new", "spliced", "spliced"]
    body = conversation.body()
    assert body.count(b'"type":"function_call_output"') == 3
    assert b"token_ids" not in body
