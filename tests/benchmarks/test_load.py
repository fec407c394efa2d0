"""The load generator against a floor on real sockets, and what it does with answers that are none."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.engine_stub import EngineStub, listening
from benchmarks.floor import make_app, make_floor
from benchmarks.load import LoadError, LoadRun
from benchmarks.load_types import LoadSpec
from tests.support.real_server import serving


@pytest.fixture
def spec(corpus, tmp_path: Path) -> LoadSpec:
    return LoadSpec(
        port=0,
        pid=os.getpid(),
        engine_pid=os.getpid(),
        dialect="agent",
        corpus=str(corpus.save(tmp_path / "corpus.json")),
        seed=1,
        prompt_tokens=50,
        concurrency=2,
        sessions=4,
    )


@asynccontextmanager
async def floor(corpus, folder) -> AsyncIterator[int]:
    async with (
        listening(EngineStub(corpus, "sglang")) as engine,
        serving(make_app(make_floor("chat", folder), f"http://127.0.0.1:{engine}")) as port,
    ):
        yield port


async def test_every_turn_of_every_session_is_counted(corpus, folder, spec):
    async with floor(corpus, folder) as port:
        result = await LoadRun(replace(spec, port=port, turns=3)).run()
    assert result["requests"] == 12
    assert len(result["turn_ms"]) == 3
    assert 0 < result["p50_ms"] <= result["p95_ms"] <= result["p99_ms"]
    assert result["cpu_ms_per_request"] > 0


async def test_costs_are_taken_down_turn_by_turn(corpus, folder, spec):
    alone = replace(spec, concurrency=1, sessions=1, turns=3, cpu_per_turn=True)
    async with floor(corpus, folder) as port:
        result = await LoadRun(replace(alone, port=port)).run()
    sizes = [cost["prompt_tokens"] for cost in result["turn_costs"]]
    assert sizes == sorted(set(sizes))
    assert all(cost["cpu_ms"] > 0 for cost in result["turn_costs"])


async def test_a_session_ends_when_its_prompt_is_long_enough(corpus, folder, spec):
    async with floor(corpus, folder) as port:
        result = await LoadRun(replace(spec, port=port, sessions=1, turns=50, longest_prompt=2_000)).run()
    # The stub's first prompt has 1,024 ids, and every turn adds 320.
    assert result["requests"] == 5


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b'{"error":"no"}', 500, "HTTP 500"),
        (b'{"output":[{"type":"message"}],"usage":{"input_tokens":1}}', 200, "no token ids"),
        (b"not json", 200, "turn 1"),
    ],
)
async def test_a_useless_answer_fails_the_whole_load(spec, body, status, reason):
    async def answer(_request: Request) -> Response:
        return Response(body, status)

    app = Starlette(routes=[Route("/v1/responses", answer, methods=["POST"])])
    async with serving(app) as port:
        with pytest.raises(LoadError, match=reason):
            await LoadRun(replace(spec, port=port, warm_up=1)).run()


async def test_a_follow_up_that_is_not_spliced_fails_where_it_must_be(corpus, folder, spec):
    async with floor(corpus, folder) as port:
        run = LoadRun(replace(spec, port=port, sessions=1, turns=2, must_splice=True))
        with pytest.raises(ExceptionGroup) as failure:
            await run.run()
    assert failure.group_contains(LoadError, match="spliced")
