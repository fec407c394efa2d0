"""Model servers in front of a live engine."""

from __future__ import annotations

import os

import httpx
import pytest

TOKENIZER = os.environ.get("SGLANG_LIVE_TOKENIZER", "")
LOCAL = pytest.param(
    "local", marks=pytest.mark.skipif(not TOKENIZER, reason="SGLANG_LIVE_TOKENIZER names no tokenizer")
)
RENDERERS = pytest.mark.parametrize("renderer", [LOCAL, "server"])
TRANSPORTS = pytest.mark.parametrize("transport", ["chat", "generate"])


def settings_of(transport: str, renderer: str, engine: str, **settings: object) -> dict[str, object]:
    """A configuration that splices histories on this transport with this renderer."""
    made: dict[str, object] = {"base_url": engine, "transport": transport, "sglang_renderer": renderer}
    if renderer == "local":
        made["sglang_tokenizer"] = TOKENIZER
    if transport == "generate":
        made["context_length"] = window_of(engine)
    else:
        made["sglang_splice_history"] = True
    return {**made, **settings}


def version_of(engine: str) -> str:
    return str(httpx.get(f"{engine}/server_info", timeout=30).json()["version"])


def window_of(engine: str) -> int:
    return httpx.get(f"{engine}/v1/models", timeout=30).json()["data"][0]["max_model_len"]


def tokenized(engine: str, **body: object) -> list[int]:
    """The ids that the engine's own chat endpoint would make of a conversation."""
    return httpx.post(f"{engine}/tokenize", json={"model": "m", **body}, timeout=30).json()["tokens"]


def encoded(engine: str, text: str) -> list[int]:
    body = {"model": "m", "prompt": text, "add_special_tokens": False}
    return httpx.post(f"{engine}/tokenize", json=body, timeout=30).json()["tokens"]


def text_of(engine: str, ids: list[int]) -> str:
    body = {"model": "m", "tokens": ids, "skip_special_tokens": False}
    return httpx.post(f"{engine}/detokenize", json=body, timeout=30).json()["text"]
