"""Calls between servers by name."""

from __future__ import annotations

import asyncio
import json
from unittest.mock import MagicMock

import httpx
import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel

from nemo_gym.errors import ConfigError, RequestError, UpstreamUnavailableError
from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from nemo_gym.server_client import ServerClient
from tests.support.socket_servers import Connection, answering, socket_server, unused_url

CONFIG = """
domain: math
default_host: 10.0.0.9
policy_model:
  responses_api_models:
    sglang_model: {host: "${default_host}", port: 8001}
v6_model:
  responses_api_models:
    sglang_model: {host: "::1", port: 8002}
unready_model:
  responses_api_models:
    sglang_model: {entrypoint: app.py}
broken_host:
  responses_api_models:
    sglang_model: {host: "${nowhere}", port: 8003}
head_server: {host: 127.0.0.1, port: 11000}
"""


def client_of(requests: list[httpx.Request], answer: httpx.Response | None = None) -> ServerClient:
    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        return answer or httpx.Response(200)

    async def no_sleep(seconds: float) -> None:
        """Do not wait."""

    pool = HTTPPool(HTTPClientConfig(max_attempts=2), transport=httpx.MockTransport(handle), sleep=no_sleep)
    return ServerClient(global_config_dict=OmegaConf.create(CONFIG), http_pool=pool)


class Step(BaseModel):
    name: str
    seed: int | None = None


@pytest.mark.parametrize(
    ("server", "url"),
    [
        ("policy_model", "http://10.0.0.9:8001/v1/responses"),
        ("v6_model", "http://[::1]:8002/v1/responses"),
        ("head_server", "http://127.0.0.1:11000/v1/responses"),
    ],
)
async def test_name_leads_to_host_and_port(server: str, url: str) -> None:
    requests: list[httpx.Request] = []
    await client_of(requests).post(server, "/v1/responses", json={"input": "hi"})
    (request,) = requests
    assert (request.method, str(request.url)) == ("POST", url)
    assert json.loads(request.content) == {"input": "hi"}
    assert request.headers["content-type"] == "application/json"


async def test_plain_dictionaries_are_a_configuration_too() -> None:
    requests: list[httpx.Request] = []
    client = client_of(requests)
    client.global_config_dict = {"a": {"resources_servers": {"b": {"host": "h", "port": 1}}}}
    await client.get("a", "/seed", params={"q": "1 2"})
    assert str(requests[0].url) in {"http://h:1/seed?q=1+2", "http://h:1/seed?q=1%202"}


async def test_unset_fields_of_a_model_are_not_sent() -> None:
    requests: list[httpx.Request] = []
    await client_of(requests).post("policy_model", "/step", json=Step(name="x"))
    await client_of(requests).post("policy_model", "/step", json=Step(name="x", seed=None))
    assert [json.loads(request.content) for request in requests] == [
        {"name": "x"},
        {"name": "x", "seed": None},
    ]


async def test_cookies_are_sent_with_the_call_they_are_given_to_and_no_other() -> None:
    requests: list[httpx.Request] = []
    client = client_of(requests, httpx.Response(200, headers={"set-cookie": "session=abc; Path=/"}))
    first = await client.post("policy_model", "/v1/responses", json={})
    await client.post("policy_model", "/v1/responses", json={}, cookies=dict(first.cookies))
    await client.post("policy_model", "/v1/responses", json={})
    assert [request.headers.get("cookie") for request in requests] == [None, "session=abc", None]


async def test_error_answer_is_returned_to_the_caller() -> None:
    response = await client_of([], httpx.Response(404)).get("policy_model", "/nope")
    assert response.status_code == 404


async def test_server_that_stays_busy_is_unavailable_after_bounded_attempts() -> None:
    requests: list[httpx.Request] = []
    with pytest.raises(UpstreamUnavailableError, match="policy_model: GET / at 10"):
        await client_of(requests, httpx.Response(503)).get("policy_model", "/")
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ("polcy_model", r"did you mean policy_model\?"),
        ("qqq", "policy_model, v6_model, unready_model, broken_host, head_server"),
        ("domain", "no server is named domain"),
        ("unready_model", "no `port`"),
        ("broken_host", "cannot be resolved"),
    ],
)
async def test_server_that_cannot_be_found_is_explained(server: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await client_of([]).get(server, "/")


async def test_body_that_is_no_json_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="JSON"):
        await client_of([]).post("policy_model", "/", json={1, 2})


def test_configuration_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEMO_GYM_CONFIG_DICT", CONFIG)
    client = ServerClient.load_from_global_config()
    assert client.global_config_dict["domain"] == "math"
    assert client.head_server_config is None


def test_mock_made_from_the_class_has_the_configuration() -> None:
    mock = MagicMock(spec=ServerClient, global_config_dict={})
    assert isinstance(mock, ServerClient)
    assert mock.global_config_dict == {}
    assert mock.head_server_config is not None


def at(url: str) -> ServerClient:
    host, port = url.removeprefix("http://").split(":")
    return ServerClient(global_config_dict={"a": {"b": {"c": {"host": host, "port": int(port)}}}})


async def poll(url: str, *, seconds: float = 5.0) -> str:
    return await asyncio.to_thread(at(url).poll_for_status, "a", timeout=seconds)


async def test_server_that_answers_anything_is_up() -> None:
    async def answer_404(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(status="404 Not Found")

    async with socket_server(answer_404) as server:
        assert await poll(server.url) == "success"


async def test_server_that_is_not_there_yet_is_a_connection_error() -> None:
    assert await poll(unused_url()) == "connection_error"


async def test_server_that_hangs_up_is_a_connection_error() -> None:
    async def hang_up(connection: Connection) -> None:
        await connection.read_request()

    async with socket_server(hang_up) as server:
        assert await poll(server.url) == "connection_error"


async def test_server_that_hangs_is_a_timeout() -> None:
    async def hang(connection: Connection) -> None:
        await connection.until_client_closes()

    async with socket_server(hang) as server:
        assert await poll(server.url, seconds=0.05) == "timeout"


async def test_server_that_speaks_something_else_is_an_unknown_error() -> None:
    async def speak_ssh(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"SSH-2.0-x\r\n\r\n")

    async with socket_server(speak_ssh) as server:
        assert await poll(server.url) == "unknown_error"


async def test_client_without_a_pool_has_its_own_and_closes_it() -> None:
    async with socket_server(answering) as server:
        client = at(server.url)
        assert (await client.get("a", "/")).status_code == 200
        await client.aclose()
        assert (await client.get("a", "/")).status_code == 200
        await client.aclose()
    assert server.connections == 2
