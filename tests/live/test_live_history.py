"""Whole rollouts against SGLang's own HTTP server: the promise of this project, checked on what the engine received.

The servers run the script `rules.json` (see `policy`), with a window of at least 2048 tokens.
SGLANG_LIVE_TOKENIZER names the folder of the model's tokenizer; without it nothing is rendered here.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import orjson
import pytest

from tests.live.policy import STEPS
from tests.live.rollout import AGENTS, Turn, run_rollout
from tests.support.model_servers import agent, make_sglang
from tests.support.recorder import Recorder

pytestmark = [pytest.mark.live]

TOKENIZER = os.environ.get("SGLANG_LIVE_TOKENIZER", "")
LOCAL = pytest.param(
    "local", marks=pytest.mark.skipif(not TOKENIZER, reason="SGLANG_LIVE_TOKENIZER names no tokenizer")
)
RULES = {rule["when"]: rule for rule in orjson.loads(Path(__file__).with_name("rules.json").read_bytes())}
SCRIPT = [RULES[f"step {number}:"]["ids"] for number in range(1, len(STEPS) + 1)]


def settings_of(transport: str, renderer: str, live_engine: str, **settings: object) -> dict[str, object]:
    made: dict[str, object] = {"base_url": live_engine, "transport": transport, "sglang_renderer": renderer}
    if renderer == "local":
        made["sglang_tokenizer"] = TOKENIZER
    if transport == "generate":
        made["context_length"] = window_of(live_engine)
    else:
        made["sglang_splice_history"] = True
    return {**made, **settings}


def window_of(live_engine: str) -> int:
    return httpx.get(f"{live_engine}/v1/models", timeout=30).json()["data"][0]["max_model_len"]


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    yield made
    await made.inner.aclose()


async def rollout_of(
    recorder: Recorder, live_engine: str, api: str, settings: dict[str, object]
) -> list[Turn]:
    async with agent(make_sglang(recorder, **settings)) as client:
        return await run_rollout(AGENTS[api](client), live_engine)


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("renderer", [LOCAL, "server"])
@pytest.mark.parametrize("transport", ["chat", "generate"])
@pytest.mark.sglang_versions("0.5.12", "0.5.13", "0.5.23")
async def test_every_prompt_of_a_rollout_extends_what_was_seen_and_sampled(
    live_engine, recorder, transport, renderer, api
):
    turns = await rollout_of(recorder, live_engine, api, settings_of(transport, renderer, live_engine))
    calls = recorder.generations
    finished = [call for call in calls if call.finish != "abort"]
    assert len(calls) == len(finished) + 1 == len(STEPS) + 1
    for turn, call, step, script in zip(turns, finished, STEPS, SCRIPT, strict=True):
        assert turn.triple == call.triple()
        assert turn.triple["generation_token_ids"] == script[: step.max_tokens]
    seen = [turn.triple["prompt_token_ids"] + turn.triple["generation_token_ids"] for turn in turns]
    for before, turn, report in zip(seen, turns[1:], [turn.report for turn in turns[1:]], strict=False):
        assert turn.triple["prompt_token_ids"][: len(before)] == before
        assert (turn.history, turn.reason, report["kept_tokens"]) == ("spliced", "matched", len(before))
    assert turns[0].history == "new"
