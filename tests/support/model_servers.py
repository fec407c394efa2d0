"""Model servers under test: the real application, its engine behind an in-process transport."""

from __future__ import annotations

from typing import TypeVar

import httpx
from omegaconf import OmegaConf

from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from nemo_gym.server_client import ServerClient
from sglang_model.app import SGLangModel, SGLangModelConfig
from vllm_model.app import VLLMModel, VLLMModelConfig

Server = TypeVar("Server", bound=VLLMModel)

BASE = {
    "name": "policy_model",
    "host": "127.0.0.1",
    "port": 1,
    "entrypoint": "app.py",
    "base_url": "http://engine/v1",
    "api_key": "engine-key",
    "model": "policy",
    "return_token_id_information": True,
    "uses_reasoning_parser": True,
}


async def no_sleep(_seconds: float) -> None:
    """Retries without waiting."""


def make_vllm(engine: httpx.AsyncBaseTransport | None = None, **settings: object) -> VLLMModel:
    return _make(VLLMModel, VLLMModelConfig(**{**BASE, **settings}), engine)


def make_sglang(
    engine: httpx.AsyncBaseTransport | None = None, *, real_sockets: bool = False, **settings: object
) -> SGLangModel:
    """With `real_sockets` the server has the connections that it makes in production."""
    config = SGLangModelConfig(**{**BASE, **settings})
    if real_sockets:
        return SGLangModel(config=config, server_client=_server_client())
    return _make(SGLangModel, config, engine)


def _make(
    server_class: type[Server], config: VLLMModelConfig, engine: httpx.AsyncBaseTransport | None
) -> Server:
    pool = HTTPPool(
        HTTPClientConfig(max_attempts=3), transport=engine or httpx.MockTransport(_nothing), sleep=no_sleep
    )
    return server_class(config=config, server_client=_server_client(), http_pool=pool)


def _server_client() -> ServerClient:
    return ServerClient(head_server_config=None, global_config_dict=OmegaConf.create({}))


def _nothing(_request: httpx.Request) -> httpx.Response:
    raise AssertionError("this test expects no call of the engine")


def agent(server: VLLMModel) -> httpx.AsyncClient:
    """An agent: an HTTP client of the server that keeps its cookies."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=server.setup_webserver(), raise_app_exceptions=False),
        base_url="http://model-server",
    )
