"""Live tests need SGLang's own server, with `--tool-call-parser qwen25 --reasoning-parser qwen3`.

SGLANG_LIVE_URLS lists their addresses, separated by commas; they run the script `rules.json` (see `policy`) in a
window of 2048 tokens or more. SGLANG_LIVE_TOKENIZER names the folder of the model's tokenizer; without it, what
renders here is skipped. docs/verification.md says how to start such servers, and what ran.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from tests.live.servers import version_of
from tests.support.recorder import Recorder

LIVE_URLS = [
    url.strip().rstrip("/") for url in os.environ.get("SGLANG_LIVE_URLS", "").split(",") if url.strip()
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of every live test per server of the versions it is about."""
    if "live_engine" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("sglang_versions")
    wanted = set(marker.args) if marker else set()
    found = [(url, version_of(url)) for url in LIVE_URLS]
    urls = [pytest.param(url, id=version) for url, version in found if version in wanted]
    reason = f"SGLANG_LIVE_URLS names no SGLang {' or '.join(sorted(wanted))}"
    metafunc.parametrize("live_engine", urls or [pytest.param("", marks=pytest.mark.skip(reason=reason))])


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    yield made
    await made.inner.aclose()
