"""What is seen of an engine at start-up."""

from __future__ import annotations

import logging

import httpx
import pytest

from nemo_gym.errors import ConfigError
from sglang_model.preflight import check_engine_settings
from sglang_model.testing import EngineSettings, Misbehaviour, create_engine_app
from tests.support.model_servers import make_sglang

FINE = {"version": "0.5.13", "reasoning_parser": "qwen3", "tool_call_parser": "qwen"}


def checked(info: dict[str, object], **settings: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    wanted = {"needs_chat_ids": True, "parses_on_engine": True, "uses_reasoning_parser": True} | settings
    found = check_engine_settings(info, **wanted)
    return found.refusals, found.warnings


def test_an_engine_with_the_wanted_settings_raises_no_word():
    assert checked(FINE) == ((), ())


@pytest.mark.parametrize("version", ["0.5.12", "0.4.99", "0.5.9.post1"])
def test_an_engine_that_returns_no_ids_on_chat_is_refused_with_the_remedy(version):
    refusals, _ = checked({**FINE, "version": version})
    assert "transport: generate" in refusals[0]
    assert checked({**FINE, "version": version}, needs_chat_ids=False) == ((), ())


@pytest.mark.parametrize("version", ["0.5.13", "0.5.13.post1", "0.5.23", "0.6.0", "1.0.0", "main", None])
def test_newer_and_unreadable_versions_are_let_pass(version):
    assert checked({**FINE, "version": version}) == ((), ())


def test_an_engine_that_cuts_prompts_is_refused_on_both_transports():
    for settings in ({}, {"needs_chat_ids": False, "parses_on_engine": False}):
        assert "--allow-auto-truncate" in checked({**FINE, "allow_auto_truncate": True}, **settings)[0][0]


def test_parsers_that_do_not_fit_the_settings_are_warned_of_on_chat_only():
    assert "no --reasoning-parser" in checked({**FINE, "reasoning_parser": None})[1][0]
    assert "uses_reasoning_parser: false" in checked(FINE, uses_reasoning_parser=False)[1][0]
    assert "no --tool-call-parser" in checked({**FINE, "tool_call_parser": None})[1][0]
    assert checked({}, parses_on_engine=False) == ((), ())


async def test_the_start_ends_with_the_refusal():
    engine = create_engine_app(EngineSettings(version="0.5.12"))
    with pytest.raises(ConfigError, match=r"0\.5\.13.*transport: generate"):
        await make_sglang(httpx.ASGITransport(app=engine)).on_startup()


async def test_an_engine_that_is_not_up_yet_does_not_end_the_start(caplog):
    caplog.set_level(logging.INFO)
    engine = create_engine_app(EngineSettings(misbehave=(Misbehaviour(status=503, body="starting"),)))
    await make_sglang(httpx.ASGITransport(app=engine)).on_startup()
    assert "cannot be read yet" in caplog.text
    assert len(engine.requests) == 1
