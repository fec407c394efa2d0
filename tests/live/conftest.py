"""Live tests need SGLang's own server, with `--tool-call-parser qwen25 --reasoning-parser qwen3`.

SGLANG_LIVE_URLS lists their addresses, separated by commas. The scripted replies these tests expect are those of a
CPU harness around SGLang's real HTTP server; docs/verification.md says what ran.
"""

from __future__ import annotations

import os

import httpx
import pytest

LIVE_URLS = [
    url.strip().rstrip("/") for url in os.environ.get("SGLANG_LIVE_URLS", "").split(",") if url.strip()
]


def version_of(url: str) -> str:
    return str(httpx.get(f"{url}/server_info", timeout=30).json()["version"])


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
