from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import orjson
import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.anthropic_types import AnthropicRequest
from nemo_gym.error_responses import install_error_handling
from nemo_gym.errors import RequestError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.request_body import decode_object, read_model, validate_object
from tests.support.model_server import CHAT_BODY, client_for

Json = dict[str, object]

LIMIT = 1000
OUTPUT_TEXT: Json = {"type": "output_text", "text": "x"}
TOOL_RESULT: Json = {"type": "tool_result", "tool_use_id": "t"}


def echo_app() -> FastAPI:
    """Answers with what it understood of a chat request, so that a test sees that something was
    understood."""
    app = FastAPI(openapi_url=None)

    async def endpoint(request: Request) -> Response:
        params = await read_model(
            request, NeMoGymChatCompletionCreateParamsNonStreaming, max_request_bytes=LIMIT
        )
        return Response(params.model_dump_json(exclude_unset=True))

    app.add_route("/chat", endpoint, methods=["POST"])
    install_error_handling(app, "test")
    return app


async def error_of(content: bytes | AsyncIterator[bytes], **headers: str) -> tuple[int, dict[str, str]]:
    async with client_for(echo_app()) as client:
        response = await client.post("/chat", content=content, headers=headers)
    return response.status_code, response.json()["error"]


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_good_body_in_many_chunks_is_understood() -> None:
    raw = orjson.dumps(CHAT_BODY)
    async with client_for(echo_app()) as client:
        response = await client.post("/chat", content=chunks(raw[:5], raw[5:20], raw[20:]))
    assert response.json() == CHAT_BODY


async def test_a_declared_length_over_the_limit_is_refused_without_reading() -> None:
    app = echo_app()
    scope = {
        "type": "http", "method": "POST", "path": "/chat", "query_string": b"",
        "headers": [(b"content-length", b"1001")], "root_path": "", "http_version": "1.1",
    }  # fmt: skip
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        raise AssertionError("the body was read")

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await app(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 413
    error = orjson.loads(sent[1]["body"])["error"]  # type: ignore[arg-type]
    assert error["code"] == "request_too_large"
    assert "1001 bytes" in error["message"]
    assert "max_request_bytes of the server is 1000" in error["message"]


async def test_a_body_without_declared_length_is_refused_when_it_passes_the_limit() -> None:
    taken: list[int] = []

    async def endless() -> AsyncIterator[bytes]:
        for index in range(100):
            taken.append(index)
            yield b" " * 400

    status, error = await error_of(endless())
    assert (status, error["code"]) == (413, "request_too_large")
    assert len(taken) == 3


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    raw = orjson.dumps(CHAT_BODY)
    async with client_for(echo_app()) as client:
        response = await client.post("/chat", content=raw + b" " * (LIMIT - len(raw)))
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b'{"messages": [,]}', "at line 1, column 15 (character 14)"),
        (b'{"a": 1', "is not JSON"),
        (b'{"temperature": NaN}', "NaN and Infinity are not JSON numbers, at line 1, column 17"),
        ('{"ä": -Infinity}'.encode(), "NaN and Infinity are not JSON numbers"),
        ('{"ääää": NaN}'.encode(), "NaN and Infinity are not JSON numbers"),
        (b'{"a": Infinity}', "NaN and Infinity are not JSON numbers"),
        (b'{"a": "x\xff"}', "is not UTF-8: byte 8 of 11"),
        (b'{"a": "\\ud800"}', "is not JSON"),
        (b"[1, 2]", "must be a JSON object, got a list"),
        (b'"text"', "must be a JSON object, got a string"),
        (b"null", "must be a JSON object, got null"),
        (b"true", "must be a JSON object, got a boolean"),
        (b"[" * 100_000, "nesting depth is over 1024 levels"),
    ],
)
def test_bytes_that_are_no_json_object_are_refused_with_the_reason(raw: bytes, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        decode_object(raw)
    assert message in str(caught.value)
    assert caught.value.status_code == 400


async def test_a_compressed_body_is_refused_by_name() -> None:
    status, error = await error_of(b"\x1f\x8b", **{"Content-Encoding": "gzip"})
    assert status == 415
    assert "'gzip'" in error["message"]
    assert error["param"] == "Content-Encoding"


async def test_a_content_encoding_of_identity_is_no_encoding() -> None:
    async with client_for(echo_app()) as client:
        response = await client.post(
            "/chat", content=orjson.dumps(CHAT_BODY), headers={"Content-Encoding": "Identity"}
        )
    assert response.status_code == 200


async def test_the_content_type_does_not_matter() -> None:
    async with client_for(echo_app()) as client:
        response = await client.post(
            "/chat", content=orjson.dumps(CHAT_BODY), headers={"Content-Type": "text/plain"}
        )
    assert response.status_code == 200


@pytest.mark.parametrize("stream", [True, 1, "yes"])
async def test_asking_for_a_stream_is_refused_naming_stream(stream: object) -> None:
    status, error = await error_of(orjson.dumps(CHAT_BODY | {"stream": stream}))
    assert (status, error["param"]) == (400, "stream")
    assert "streaming is not supported" in error["message"]


@pytest.mark.parametrize("stream", [False, None])
async def test_not_asking_for_a_stream_is_accepted(stream: object) -> None:
    async with client_for(echo_app()) as client:
        response = await client.post("/chat", content=orjson.dumps(CHAT_BODY | {"stream": stream}))
    assert response.status_code == 200


def chat_error(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validate_object(CHAT_BODY | fields, NeMoGymChatCompletionCreateParamsNonStreaming)
    return caught.value


def responses_error(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validate_object({"input": "hi"} | fields, NeMoGymResponseCreateParamsNonStreaming)
    return caught.value


def test_a_wrong_type_names_the_path_what_was_expected_and_what_came() -> None:
    error = chat_error(temperature="hot")
    assert error.param == "temperature"
    assert str(error) == "temperature: input should be a valid number, got a string"


def test_a_missing_field_is_named_by_its_path() -> None:
    error = chat_error(messages=[{"role": "user", "content": "hi"}, {"role": "tool", "content": "x"}])
    assert error.param == "messages.1.tool_call_id"
    assert str(error) == "messages.1.tool_call_id: is required"


def test_an_unknown_field_is_named() -> None:
    error = chat_error(temprature=1)
    assert error.param == "temprature"
    assert str(error) == "temprature: is not a field of this request"


def test_an_unknown_role_is_named_by_its_path() -> None:
    error = chat_error(messages=[{"role": "wizard", "content": "hi"}])
    assert error.param == "messages.0"
    assert "wizard" in str(error)
    assert "user, assistant or tool" in str(error)
    assert "got an object" not in str(error)


def test_a_wrong_item_deep_in_the_input_is_named_by_its_path() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}},
    ]
    error = responses_error(input=items)
    assert error.param == "input.1.arguments"
    assert str(error) == "input.1.arguments: input should be a valid string, got an object"


def test_a_union_is_reported_as_one_error() -> None:
    error = chat_error(stop=5)
    assert error.param == "stop"
    assert "more" not in str(error)


def test_further_errors_are_counted() -> None:
    error = chat_error(temperature="hot", top_p="high", stop=5)
    assert error.param == "temperature"
    assert str(error).endswith("got a string (+2 more)")


NO_TEXTS: list[object] = [["user"], {"a": 1}, 5, True, 1.5, None]


@pytest.mark.parametrize("value", NO_TEXTS)
def test_a_role_that_is_no_text_is_named(value: object) -> None:
    error = chat_error(messages=[{"role": value, "content": "x"}])
    assert error.param == "messages.0"
    assert "role: expected developer, system, user, assistant or tool" in str(error)
    error = responses_error(input=[{"type": "message", "role": value, "content": "x"}])
    assert error.param == "input.0"
    assert "got message with role" in str(error)


@pytest.mark.parametrize("value", [value for value in NO_TEXTS if value is not None])
def test_an_item_type_that_is_no_text_is_named(value: object) -> None:
    error = responses_error(input=[{"type": value, "role": "user", "content": "x"}])
    assert error.param == "input.0"
    assert "item type: expected message (user, system, developer, assistant or tool), reasoning" in str(error)
    assert str(error).endswith(f"got a value of kind {type(value).__name__}")


def message(role: str = "user", **fields: object) -> dict[str, object]:
    return {"role": role, "content": "x", **fields}


@pytest.mark.parametrize(
    "body",
    [
        lambda bad: {"messages": bad},
        lambda bad: {"messages": [message(content=bad)]},
        lambda bad: {"messages": [message("assistant", tool_calls=bad)]},
        lambda bad: {"messages": [message()], "tools": bad},
        lambda bad: {"messages": [message()], "stop_token_ids": bad},
    ],
)
def test_a_chat_request_is_judged_up_to_the_first_bad_element(body: Callable[[object], Json]) -> None:
    assert str(chat_error(**body([{}, {}, 5]))) == str(chat_error(**body([{}])))


@pytest.mark.parametrize(
    "body",
    [
        lambda bad: {"input": bad},
        lambda bad: {"input": [message(content=bad)]},
        lambda bad: {"input": [message(content=bad, status="completed")]},
        lambda bad: {"input": [message("assistant", content=bad, id="msg_1")]},
        lambda bad: {"input": [message("assistant", id="m", content=[OUTPUT_TEXT | {"annotations": bad}])]},
        lambda bad: {"input": [message("assistant", id="m", content=[OUTPUT_TEXT | {"logprobs": bad}])]},
        lambda bad: {"input": [{"type": "reasoning", "id": "r", "summary": bad}]},
        lambda bad: {"input": [{"type": "reasoning", "id": "r", "summary": [], "content": bad}]},
        lambda bad: {"input": [{"type": "mcp_list_tools", "server_label": "s", "tools": bad}]},
        lambda bad: {"tools": bad},
        lambda bad: {"include": bad},
    ],
)
def test_a_responses_request_is_judged_up_to_the_first_bad_element(body: Callable[[object], Json]) -> None:
    assert str(responses_error(**body([{}, {}, 5]))) == str(responses_error(**body([{}])))


@pytest.mark.parametrize(
    "body",
    [
        lambda bad: {"messages": bad},
        lambda bad: {"messages": [message(content=bad)]},
        lambda bad: {"messages": [message(content=[TOOL_RESULT | {"content": bad}])]},
        lambda bad: {"messages": [message()], "system": bad},
        lambda bad: {"messages": [message()], "tools": bad},
        lambda bad: {"messages": [message()], "stop_sequences": bad},
    ],
)
def test_an_anthropic_request_is_judged_up_to_the_first_bad_element(body: Callable[[object], Json]) -> None:
    def error(bad: list[object]) -> str:
        with pytest.raises(RequestError) as caught:
            validate_object(body(bad), AnthropicRequest)
        return str(caught.value)

    assert error([{}, {}, 5]) == error([{}])


def test_values_are_never_repeated() -> None:
    secret = "the secret prompt"
    for error in (
        chat_error(messages=[{"role": "user", "content": {"text": secret}}]),
        chat_error(messages=secret),
        chat_error(temperature=secret),
        chat_error(logit_bias={"1": secret}),
        responses_error(
            input=[{"type": "message", "role": "user", "content": [{"type": "input_text", "text": [secret]}]}]
        ),
        responses_error(input={"text": secret}),
        responses_error(max_output_tokens=secret),
    ):
        assert secret not in str(error)
        assert error.__cause__ is None


def test_a_path_made_of_hostile_keys_is_cut() -> None:
    error = chat_error(**{"k" * 10_000: 1})
    assert len(str(error)) < 300
    assert error.param is not None
    assert len(error.param) <= 200
