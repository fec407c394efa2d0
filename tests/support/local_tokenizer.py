"""Model servers on either transport with either renderer, the embedded engine behind them.

The tokenizer is the engine's own, as a folder that transformers loads.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer

from sglang_model.app import SGLangModel
from sglang_model.testing import Engine, EngineSettings, Rule, create_engine_app
from sglang_model.testing.chat_template import BUILTIN_TEMPLATE
from sglang_model.testing.template_families import family
from sglang_model.testing.tokenizer import builtin_tokenizer
from sglang_model.testing.tokenizer_folder import write_tokenizer_folder
from tests.support.model_servers import agent, make_sglang

SETUPS = pytest.mark.parametrize(
    ("transport", "renderer"),
    [("generate", "local"), ("generate", "server"), ("chat", "local"), ("chat", "server")],
)
"""Every way to make a prompt: who generates, and who renders."""

RENDERERS = pytest.mark.parametrize("renderer", ["local", "server"])

CONTEXT_LENGTH = 4096


@cache
def tokenizer_folder(chat_template: str = BUILTIN_TEMPLATE, vocabulary: int | None = None) -> Path:
    """The engine's tokenizer with a chat template, and with a model's config.json that names a vocabulary."""
    folder = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if vocabulary is not None:
        config = {"model_type": "qwen2", "vocab_size": vocabulary}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return write_tokenizer_folder(folder, chat_template=chat_template)


@cache
def family_folder(name: str) -> Path:
    """The engine's tokenizer with the special tokens, the stop tokens and the chat template of another family."""
    chosen = family(name)
    facts = chosen.facts
    backend = Tokenizer.from_str(builtin_tokenizer().backend.to_str())
    backend.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False, rstrip=token in chosen.rstrip)
            for token in dict.fromkeys((*facts.specials, *facts.stops, *facts.variables.values()))
        ]
    )
    folder = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": facts.text_stop,
        "chat_template": chosen.template,
        "clean_up_tokenization_spaces": False,
        **facts.variables,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    stops = [backend.token_to_id(token) for token in facts.stops]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}), encoding="utf-8")
    return folder


def engine_with(*rules: Rule, **settings: object) -> Engine:
    return create_engine_app(EngineSettings(rules=rules, **settings))


def settings_of(transport: str = "generate", renderer: str = "local") -> dict[str, object]:
    """A configuration that splices histories on this transport with this renderer."""
    settings: dict[str, object] = {"transport": transport, "sglang_renderer": renderer}
    if transport == "generate":
        settings["context_length"] = CONTEXT_LENGTH
    else:
        settings["sglang_splice_history"] = True
    if renderer == "local":
        settings["sglang_tokenizer"] = str(tokenizer_folder())
    return settings


def transport_of(engine: Engine) -> httpx.ASGITransport:
    return httpx.ASGITransport(app=engine, raise_app_exceptions=False)


def make_server(
    engine: Engine | httpx.AsyncBaseTransport | None = None,
    transport: str = "generate",
    renderer: str = "local",
    **settings: object,
) -> SGLangModel:
    behind = transport_of(engine) if isinstance(engine, Engine) else engine
    return make_sglang(behind, **{**settings_of(transport, renderer), **settings})


def served_by(
    engine: Engine | httpx.AsyncBaseTransport,
    transport: str = "generate",
    renderer: str = "local",
    **settings: object,
) -> httpx.AsyncClient:
    """An agent of a server that splices histories."""
    return agent(make_server(engine, transport, renderer, **settings))


async def post(
    engine: Engine | httpx.AsyncBaseTransport,
    body: Mapping[str, object],
    path: str = "/v1/chat/completions",
    **settings: object,
) -> httpx.Response:
    """One request of an agent that makes no other."""
    async with served_by(engine, **settings) as client:
        return await client.post(path, json=dict(body))
