"""The client of an engine: URLs, headers, and what it makes of every kind of answer."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import (
    ConfigError,
    RequestError,
    UpstreamContractError,
    UpstreamError,
    UpstreamStatusError,
    UpstreamUnavailableError,
)
from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from nemo_gym.openai_client import NeMoGymAsyncOpenAI, decode_tokenized
from nemo_gym.token_ids import TokenIds
from tests.support.socket_servers import Connection, answering, socket_server, unused_url

KEY = "sk-very-secret"

Handler: TypeAlias = Callable[[httpx.Request], httpx.Response]


class Engine:
    """Answers every request with `response` and remembers it."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.response


def json_engine(body: object = None, status: int = 200) -> Engine:
    return Engine(httpx.Response(status, content=orjson.dumps({} if body is None else body)))


async def no_sleep(seconds: float) -> None:
    """Do not wait."""


def client_of(
    handler: Handler, base_url: str = "http://engine:30000/v1", **kwargs: object
) -> NeMoGymAsyncOpenAI:
    pool = HTTPPool(HTTPClientConfig(max_attempts=3), transport=httpx.MockTransport(handler), sleep=no_sleep)
    return NeMoGymAsyncOpenAI(base_url=base_url, api_key=KEY, http_pool=pool, name="policy", **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "verb", "url"),
    [
        ("create_models", "GET", "/v1/models"),
        ("create_chat_completion", "POST", "/v1/chat/completions"),
        ("create_completion", "POST", "/v1/completions"),
        ("create_response", "POST", "/v1/responses"),
        ("create_tokenize", "POST", "/tokenize"),
        ("create_detokenize", "POST", "/detokenize"),
        ("create_generate", "POST", "/generate"),
        ("get_server_info", "GET", "/server_info"),
        ("get_health", "GET", "/health"),
    ],
)
@pytest.mark.parametrize("root", ["http://engine:30000", "https://gateway/engine-1"])
@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/", "/v1//"])
async def test_every_spelling_of_base_url_leads_to_the_same_address(
    method: str, verb: str, url: str, root: str, ending: str
) -> None:
    engine = json_engine()
    await getattr(client_of(engine, root + ending), method)()
    (request,) = engine.requests
    assert (request.method, str(request.url)) == (verb, root + url)


async def test_only_the_last_v1_is_taken_off() -> None:
    engine = json_engine()
    await client_of(engine, "http://h/v1/v1").create_generate()
    assert str(engine.requests[0].url) == "http://h/v1/generate"


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "engine:30000",
        "localhost",
        "/v1",
        "ftp://engine/v1",
        "http://",
        "http:///v1",
        "http://h:port/v1",
        "http://user:pass@h/v1",
        "http://h/v1?key=1",
        "http://h/v1#x",
        "???",
    ],
)
def test_base_url_that_is_no_http_address_is_refused_at_construction(base_url: str) -> None:
    with pytest.raises(ConfigError, match="policy: `base_url`") as caught:
        NeMoGymAsyncOpenAI(base_url=base_url, api_key=KEY, name="policy")
    assert caught.value.param == "base_url"
    assert "pass@" not in caught.value.message


@pytest.mark.parametrize("api_key", ["sk-1\n", "two words", "schlüssel", "sk\x7f"])
def test_key_that_no_header_can_carry_is_refused_without_being_shown(api_key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        NeMoGymAsyncOpenAI(base_url="http://h", api_key=api_key)
    assert caught.value.param == "api_key"
    assert api_key.strip() not in caught.value.message


def test_arguments_can_be_read_back() -> None:
    client = NeMoGymAsyncOpenAI(
        base_url="http://h/v1/", api_key="k", internal=True, default_headers={"X-A": "1"}
    )
    assert (client.base_url, client.api_key, client.internal) == ("http://h/v1/", "k", True)
    assert client.default_headers == {"X-A": "1"}


async def test_key_overrides_the_authorization_of_default_headers() -> None:
    engine = json_engine()
    await client_of(engine, default_headers={"AUTHORIZATION": "Basic x", "X-Team": "rl"}).create_generate()
    (request,) = engine.requests
    assert request.headers.get_list("authorization") == [f"Bearer {KEY}"]
    assert request.headers["x-team"] == "rl"
    assert request.headers["content-type"] == "application/json"


async def test_without_a_key_default_headers_keep_their_authorization() -> None:
    engine = json_engine()
    pool = HTTPPool(transport=httpx.MockTransport(engine))
    client = NeMoGymAsyncOpenAI("http://h", "", default_headers={"Authorization": "Basic x"}, http_pool=pool)
    await client.create_generate()
    assert engine.requests[0].headers["authorization"] == "Basic x"


async def test_keyword_arguments_are_the_body_as_they_are() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "é🚀"}],
        "stop": None,
        "logit_bias": {"1": -100},
    }
    engine = json_engine({"id": "1"})
    assert await client_of(engine).create_chat_completion(**body) == {"id": "1"}
    assert json.loads(engine.requests[0].content) == body


async def test_nan_is_sent_as_null() -> None:
    engine = json_engine()
    await client_of(engine).create_generate(temperature=float("nan"))
    assert engine.requests[0].content == b'{"temperature":null}'


@pytest.mark.parametrize("value", [{1, 2}, 1 << 70, "\ud800", {1: 2}])
async def test_body_that_is_no_json_is_a_request_error_and_is_not_sent(value: object) -> None:
    engine = json_engine()
    with pytest.raises(RequestError, match="JSON"):
        await client_of(engine).create_generate(value=value)
    assert engine.requests == []


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_refusal_keeps_status_body_and_the_engines_words(status: int) -> None:
    body = b'{"object":"error","message":"temperature must be non-negative, got -1.0.","code":400}'
    engine = Engine(httpx.Response(status, content=body))
    with pytest.raises(UpstreamStatusError, match=r"temperature must be non-negative, got -1\.0\.") as caught:
        await client_of(engine).create_chat_completion(temperature=-1)
    error = caught.value
    assert (error.status, error.status_code, error.response_content) == (status, status, body)
    assert error.message.startswith("policy: POST /v1/chat/completions at engine:30000 answered with")
    assert len(engine.requests) == 1


async def test_engine_fault_is_not_repeated_and_is_a_500() -> None:
    engine = Engine(httpx.Response(500, text="Internal Server Error"))
    with pytest.raises(UpstreamStatusError, match="Internal Server Error") as caught:
        await client_of(engine).create_generate(sampling_params={"seed": 5})
    assert (caught.value.status, caught.value.status_code, len(engine.requests)) == (500, 500, 1)


async def test_busy_engine_is_a_503_with_its_words_after_all_attempts() -> None:
    engine = json_engine({"object": "error", "message": "The request queue is full."}, 503)
    with pytest.raises(UpstreamUnavailableError, match="The request queue is full") as caught:
        await client_of(engine).create_generate()
    assert (caught.value.status, caught.value.status_code, len(engine.requests)) == (503, 503, 3)
    assert orjson.loads(caught.value.response_content)["object"] == "error"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"<html>login</html>", "18 bytes that are not JSON"),
        (b'{"text": "a private pro', "not JSON"),
        (b"", "an empty body"),
        (b"[{}]", "a JSON list"),
        (b"null", "a JSON NoneType"),
        (b'{"logprob": NaN}', "not JSON"),
    ],
)
async def test_success_that_is_no_json_object_breaks_the_contract(content: bytes, found: str) -> None:
    engine = Engine(httpx.Response(200, content=content, headers={"content-type": "text/html"}))
    with pytest.raises(UpstreamContractError, match=found) as caught:
        await client_of(engine).create_generate()
    assert "Content-Type: text/html" in caught.value.message
    assert "private" not in caught.value.message
    assert (caught.value.status_code, len(engine.requests)) == (500, 1)


async def test_redirect_is_an_error_that_names_base_url() -> None:
    engine = Engine(httpx.Response(307, headers={"location": "https://engine:30000/generate"}))
    with pytest.raises(UpstreamStatusError, match=r"to https://engine:30000/generate; .*base_url") as caught:
        await client_of(engine).create_generate()
    assert (caught.value.status, caught.value.status_code, len(engine.requests)) == (307, 500, 1)


@pytest.mark.parametrize("status", [401, 429, 503])
async def test_key_and_body_never_reach_messages_or_logs(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = json_engine({"error": f"wrong key {KEY}"}, status)
    with pytest.raises(UpstreamError, match=r"wrong key \*\*\*") as caught:
        await client_of(engine).create_generate(text="a private prompt")
    assert KEY not in caught.value.message + caplog.text + repr(caught.value)
    assert "private" not in caught.value.message + caplog.text


async def test_raw_bytes_pass_through_undecoded() -> None:
    engine = Engine(httpx.Response(200, content=b'{"output_ids": [1, 2]}'))
    assert await client_of(engine).request_bytes("POST", "/generate", b'{"a":1}') == b'{"output_ids": [1, 2]}'
    assert engine.requests[0].content == b'{"a":1}'


async def test_refusal_of_raw_bytes_is_an_error_too() -> None:
    with pytest.raises(UpstreamStatusError):
        await client_of(json_engine(status=400)).request_bytes("POST", "/generate", b"{}")


async def test_settings_of_an_old_engine_are_found_under_the_old_path() -> None:
    def old_engine(request: httpx.Request) -> httpx.Response:
        known = request.url.path == "/get_server_info"
        return httpx.Response(200, json={"version": "0.5.12"}) if known else httpx.Response(404)

    assert await client_of(old_engine).get_server_info() == {"version": "0.5.12"}


async def test_keys_among_the_settings_of_an_engine_are_dropped() -> None:
    inner = {"api_key": "a", "admin_api_key": "b", "tp_size": 1}
    engine = json_engine({**inner, "version": "0.5.13", "internal_states": [inner]})
    info = await client_of(engine).get_server_info()
    assert info == {"tp_size": 1, "version": "0.5.13", "internal_states": [{"tp_size": 1}]}


async def test_healthy_engine_answers_with_its_status() -> None:
    engine = Engine(httpx.Response(200))  # SGLang's body is empty
    assert await client_of(engine).get_health() == 200


@pytest.mark.parametrize(("status", "error"), [(503, UpstreamUnavailableError), (500, UpstreamStatusError)])
async def test_sick_engine_is_asked_once(status: int, error: type[UpstreamError]) -> None:
    engine = Engine(httpx.Response(status))
    with pytest.raises(error, match=f"status {status}"):
        await client_of(engine).get_health()
    assert len(engine.requests) == 1


async def test_health_of_an_engine_that_hangs_is_given_up() -> None:
    async def hang(connection: Connection) -> None:
        await connection.read_request()
        await connection.until_client_closes()

    async with socket_server(hang) as server:
        client = NeMoGymAsyncOpenAI(base_url=server.url, api_key=KEY)
        with pytest.raises(UpstreamError, match="read_timeout"):
            await client.get_health(timeout=0.05)
        await client.aclose()


async def test_abort_names_the_request() -> None:
    engine = Engine(httpx.Response(200))
    await client_of(engine).abort_request("r-1")
    (request,) = engine.requests
    assert (request.url.path, json.loads(request.content)) == ("/abort_request", {"rid": "r-1"})


async def test_abort_without_a_name_would_end_everything_and_is_refused() -> None:
    engine = json_engine()
    with pytest.raises(RequestError, match="every request"):
        await client_of(engine).abort_request("")
    assert engine.requests == []


async def test_client_without_a_pool_has_its_own_and_closes_it() -> None:
    async with socket_server(answering) as server:
        client = NeMoGymAsyncOpenAI(base_url=server.url, api_key=KEY)
        assert await client.create_models() == {}
        await client.aclose()
        assert await client.create_models() == {}
        await client.aclose()
    assert server.connections == 2


async def test_closing_a_client_leaves_a_shared_pool_open() -> None:
    async with socket_server(answering) as server:
        pool = HTTPPool()
        first, second = (NeMoGymAsyncOpenAI(server.url, KEY, http_pool=pool) for _ in range(2))
        await first.create_models()
        await first.aclose()
        await second.create_models()
        await pool.aclose()
    assert server.connections == 1


async def test_cancelled_generation_disconnects_from_the_engine() -> None:
    received, closed = asyncio.Event(), asyncio.Event()

    async def generate_until_closed(connection: Connection) -> None:
        await connection.read_request()
        received.set()
        await connection.until_client_closes()
        closed.set()

    async with socket_server(generate_until_closed) as server:
        client = NeMoGymAsyncOpenAI(base_url=server.url, api_key=KEY)
        call = asyncio.create_task(client.create_generate(text="x"))
        await received.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(5):
            await closed.wait()
        await client.aclose()


async def test_engine_that_is_down_is_named_with_its_address() -> None:
    url = unused_url()
    pool = HTTPPool(HTTPClientConfig(max_attempts=2), sleep=no_sleep)
    client = NeMoGymAsyncOpenAI(base_url=url, api_key=KEY, http_pool=pool, name="policy_model")
    with pytest.raises(UpstreamUnavailableError) as caught:
        await client.create_generate()
    await pool.aclose()
    assert (
        f"policy_model: POST /generate at {url.removeprefix('http://')} failed 2 times"
        in caught.value.message
    )


def captured_refusals() -> list[Path]:
    """Return the recorded error answers of real engines, when they are there."""
    folder = os.environ.get("SGLANG_GYM_TEST_DATA")
    return sorted(Path(folder, "sglang", "captures").glob("*/*.json")) if folder else []


@pytest.mark.skipif(not captured_refusals(), reason="SGLANG_GYM_TEST_DATA holds no captures")
async def test_every_refusal_captured_from_real_engines_is_put_into_words() -> None:
    seen = 0
    for path in captured_refusals():
        answer = json.loads(path.read_bytes()).get("response") or {}
        if answer.get("status", 200) < 400:
            continue
        body = answer["body"]
        content = body.encode() if isinstance(body, str) else orjson.dumps(body)
        engine = Engine(httpx.Response(answer["status"], content=content))
        with pytest.raises((UpstreamStatusError, UpstreamUnavailableError)) as caught:
            await client_of(engine).create_generate()
        assert caught.value.response_content == content
        words = caught.value.message.partition(f"status {answer['status']}: ")[2]
        assert words, path
        assert not words.startswith("{"), path
        seen += 1
    assert seen > 20


FLAT_TOKENS = st.lists(
    st.one_of(
        st.integers(-2, 10**12), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none()
    )
)


@given(
    st.dictionaries(
        st.sampled_from(["tokens", "count", "token_strs", "token"]),
        st.one_of(FLAT_TOKENS, st.lists(FLAT_TOKENS, max_size=3), st.text(max_size=5), st.integers()),
    ),
    st.sampled_from([None, 1]),
)
def test_a_tokenize_answer_has_its_ids_as_text_and_all_else_as_it_is(
    answer: dict[str, object], indent: int | None
) -> None:
    raw = json.dumps(answer, indent=indent).encode()
    made, plain = decode_tokenized(raw), orjson.loads(raw)
    assert isinstance(made, dict)
    assert made.keys() == plain.keys()
    for name, value in plain.items():
        if isinstance(made[name], TokenIds):
            assert name == "tokens"
            try:
                expected: object = TokenIds.checked(value)
            except ValueError:
                with pytest.raises(ValueError, match="ids"):
                    made[name].read("ids")
            else:
                assert made[name].read() == expected
        else:
            assert made[name] == value
            assert name != "tokens" or not isinstance(value, list) or any(type(n) is list for n in value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"tokens":[1,}',
        b'{"tokens":[1],"count":nul}',
        b'{"count":"\xff"}',
        b'{"tokens":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ],
)
def test_a_tokenize_answer_that_is_no_json_is_a_json_error(raw: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        decode_tokenized(raw)
