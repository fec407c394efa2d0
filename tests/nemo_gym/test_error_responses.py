from __future__ import annotations

import logging

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from nemo_gym.error_responses import install_error_handling
from nemo_gym.errors import (
    ConfigError,
    GenerationAbortedError,
    GymError,
    RequestError,
    RequestTooLargeError,
    UpstreamContractError,
    UpstreamStatusError,
    UpstreamUnavailableError,
)
from nemo_gym.response_headers import add_response_header
from tests.support.model_server import client_for


class Typed(BaseModel):
    number: int


class Enveloped(BaseModel):
    body: Typed
    other: int


def app_raising(exc: Exception) -> FastAPI:
    app = FastAPI(openapi_url=None)

    async def fail(request: Request) -> None:
        add_response_header(request, "X-Added", "yes")
        raise exc

    async def typed(body: Typed) -> None:
        raise AssertionError("validation let a wrong body through")

    app.add_route("/", fail)

    async def enveloped(envelope: Enveloped) -> None:
        raise AssertionError("validation let a wrong body through")

    app.post("/typed")(typed)
    app.post("/enveloped")(enveloped)
    install_error_handling(app, "policy_model")
    return app


async def answer_to(exc: Exception, **headers: str) -> httpx.Response:
    async with client_for(app_raising(exc)) as client:
        return await client.get("/", headers=headers)


@pytest.mark.parametrize(
    ("exc", "status"),
    [
        (RequestError("no", param="input.0"), 400),
        (RequestTooLargeError("no"), 413),
        (ConfigError("no"), 500),
        (GymError("no"), 500),
        (UpstreamStatusError("no", status=404, response_content=b""), 404),
        (UpstreamStatusError("no", status=502, response_content=b""), 500),
        (UpstreamUnavailableError("no"), 503),
        (UpstreamContractError("no"), 500),
        (GenerationAbortedError("no"), 503),
    ],
)
async def test_an_error_of_the_tree_answers_with_its_status_and_body(exc: GymError, status: int) -> None:
    response = await answer_to(exc)
    assert response.status_code == status
    assert response.json() == exc.body()
    assert response.headers["content-type"] == "application/json"


async def test_a_busy_engine_says_when_to_come_back_in_whole_seconds() -> None:
    response = await answer_to(UpstreamUnavailableError("busy", status=429, retry_after=1.2))
    assert response.headers["retry-after"] == "2"


@pytest.mark.parametrize("retry_after", [None, float("inf"), float("nan")])
async def test_without_a_usable_hint_there_is_no_retry_after(retry_after: float | None) -> None:
    response = await answer_to(UpstreamUnavailableError("busy", retry_after=retry_after))
    assert "retry-after" not in response.headers


async def test_an_unforeseen_exception_only_says_where_to_look(
    caplog: pytest.LogCaptureFixture,
) -> None:
    response = await answer_to(KeyError("the secret prompt"), **{"x-request-id": "req-7"})
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["message"] == "Internal error in policy_model; see the log with request id req-7"
    assert (error["type"], error["code"]) == ("server_error", "internal_error")
    [record] = [record for record in caplog.records if record.name == "policy_model"]
    assert record.levelno == logging.ERROR
    assert "req-7" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError


async def test_a_validation_error_is_logged_without_its_values(
    caplog: pytest.LogCaptureFixture,
) -> None:
    secret = ["the", "secret", "prompt"]  # in words, because a traceback shows source lines
    with pytest.raises(ValueError) as caught:
        Typed.model_validate({"number": " ".join(secret)})
    response = await answer_to(caught.value)
    assert response.json()["error"]["code"] == "internal_error"
    assert "the secret prompt" not in caplog.text
    assert "1 validation errors for Typed" in caplog.text
    assert "test_error_responses.py" in caplog.text


async def test_an_error_of_the_tree_is_logged_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await answer_to(UpstreamContractError("12 ids but 11 logprobs"), **{"x-request-id": "req-8"})
    [record] = [record for record in caplog.records if record.name == "policy_model"]
    assert record.exc_info is None
    assert record.getMessage() == "GET /: 500 upstream_contract: 12 ids but 11 logprobs, request id req-8"


async def test_what_the_caller_did_wrong_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await answer_to(RequestError("no", param="input.0"))
    await answer_to(UpstreamUnavailableError("down"))
    levels = [record.levelno for record in caplog.records if record.name == "policy_model"]
    assert levels == [logging.INFO, logging.WARNING]


async def test_a_client_that_went_away_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = app_raising(ClientDisconnect())
    sent: list[object] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
    await app(scope, receive, send)  # type: ignore[arg-type]
    assert sent == []
    assert not [record for record in caplog.records if record.levelno >= logging.INFO]


async def test_an_unknown_route_and_a_wrong_method_answer_in_the_same_shape() -> None:
    async with client_for(app_raising(GymError("no"))) as client:
        missing = await client.get("/nowhere")
        wrong = await client.delete("/")
    assert missing.status_code == 404
    assert missing.json()["error"] == {
        "message": "Not Found", "type": "invalid_request_error", "param": None, "code": "not_found",
    }  # fmt: skip
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert "GET" in wrong.headers["allow"]


async def test_an_http_exception_of_a_plugin_keeps_status_text_and_headers() -> None:
    response = await answer_to(HTTPException(401, "who are you", headers={"WWW-Authenticate": "Bearer"}))
    assert response.status_code == 401
    assert response.json()["error"]["message"] == "who are you"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_a_typed_route_of_a_plugin_reports_its_field_as_we_do() -> None:
    async with client_for(app_raising(GymError("no"))) as client:
        response = await client.post("/typed", json={"number": "the secret prompt"})
        enveloped = await client.post("/enveloped", json={"body": {}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "number"
    assert enveloped.json()["error"]["param"] == "body.number"
    assert enveloped.json()["error"]["message"].endswith("(+1 more)")
    assert "the secret prompt" not in response.text


async def test_the_callers_request_id_comes_back_when_it_is_sane() -> None:
    response = await answer_to(RequestError("no"), **{"X-Request-Id": "abc-1:2/3"})
    assert response.headers.get_list("x-request-id") == ["abc-1:2/3"]


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "a;b"])
async def test_another_request_id_is_made_when_the_callers_is_not(sent: str) -> None:
    response = await answer_to(RequestError("no"), **{"X-Request-Id": sent})
    [request_id] = response.headers.get_list("x-request-id")
    assert request_id != sent
    assert len(request_id) == 32


async def test_headers_added_by_a_handler_are_sent_with_errors_too() -> None:
    response = await answer_to(RequestError("no"))
    assert response.headers["x-added"] == "yes"


async def test_an_exception_after_the_response_began_is_not_covered_up() -> None:
    app = FastAPI(openapi_url=None)

    async def half(scope: object, receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        raise KeyError("late")

    app.mount("/", half)
    install_error_handling(app, "policy_model")
    with pytest.raises(KeyError):
        async with client_for(app) as client:
            await client.get("/")
