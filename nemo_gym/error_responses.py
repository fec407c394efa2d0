"""The one place where an exception becomes a response: an OpenAI error object with the status of its class.

Nothing above this middleware sees an exception, except when the response has already begun. What is not
foreseen is a 500 that says nothing but where to look, and one traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
import math
import traceback
from typing import Final, NoReturn

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import GymError, RequestError, ServerStoppingError, UpstreamUnavailableError
from nemo_gym.json_response import json_response
from nemo_gym.request_id import REQUEST_ID_HEADER, choose_request_id
from nemo_gym.response_headers import collected_headers, start_collecting
from nemo_gym.validation_errors import request_error

_UNFORESEEN: Final = "internal_error"
_HTTP_CODES: Final = {404: "not_found", 405: "method_not_allowed"}


class _HTTPError(GymError):
    """An HTTPException of the framework (no such route, wrong method) in our shape."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message, code=_HTTP_CODES.get(status))
        self.status_code = status
        self.type = RequestError.type if 400 <= status < 500 else GymError.type  # type: ignore[misc]


def as_gym_error(exc: Exception, request_id: str, server_name: str) -> GymError:
    """Return `exc` as a member of the tree; what was not foreseen becomes a 500 without any of its text."""
    if isinstance(exc, GymError):
        return exc
    if isinstance(exc, HTTPException):
        return _HTTPError(exc.status_code, str(exc.detail))
    if isinstance(exc, RequestValidationError):
        return request_error(exc.errors(), exc.body, skip=1)
    return GymError(
        f"Internal error in {server_name}; see the log with request id {request_id}", code=_UNFORESEEN
    )


class ErrorMiddleware:
    """Pure ASGI, outside of everything that may raise. Every response below it carries an `x-request-id`.

    A caller who has gone away is no error: nothing is sent and nothing but a debug line is logged.
    CancelledError passes through, it belongs to whoever cancelled: the web server, when it ends. The caller is told.
    """

    def __init__(self, app: ASGIApp, *, server_name: str) -> None:
        self.app = app
        self._server_name = server_name
        self._logger = logging.getLogger(server_name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = choose_request_id(scope)
        start_collecting(scope)
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [
                    *message.get("headers", ()),
                    (REQUEST_ID_HEADER.encode(), request_id.encode()),
                    *collected_headers(scope),
                ]
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except ClientDisconnect:
            self._logger.debug(
                "%s %s: the client went away, request id %s", scope["method"], scope["path"], request_id
            )
        except asyncio.CancelledError:
            if not started:
                stopping = ServerStoppingError(f"{self._server_name} is stopping; repeat the request")
                await json_response(stopping.body(), status_code=stopping.status_code)(
                    scope, receive, send_with_headers
                )
            raise
        except Exception as exc:
            if started:
                raise
            response = self._response_to(exc, scope, request_id)
            await response(scope, receive, send_with_headers)

    def _response_to(self, exc: Exception, scope: Scope, request_id: str) -> Response:
        # Not above, where a name for the error would make a cycle with its traceback, and keep the whole request in it.
        error = as_gym_error(exc, request_id, self._server_name)
        self._log(scope, error, exc, request_id)
        response = json_response(error.body(), status_code=error.status_code)
        response.headers.update(_headers(exc))
        return response

    def _log(self, scope: Scope, error: GymError, exc: Exception, request_id: str) -> None:
        where = f"{scope['method']} {scope['path']}"
        if error.code != _UNFORESEEN:
            level = logging.WARNING if error.status_code >= 500 else logging.INFO
            self._logger.log(
                level,
                "%s: %d %s: %s, request id %s",
                where,
                error.status_code,
                error.code or error.type,
                error,
                request_id,
            )
        elif isinstance(exc, ValidationError):
            # Its text repeats what failed to validate, which can be a prompt.
            trace = "".join(traceback.format_tb(exc.__traceback__))
            self._logger.error(
                "%s: 500, %d validation errors for %s, request id %s\n%s",
                where, exc.error_count(), exc.title, request_id, trace,
            )  # fmt: skip
        else:
            self._logger.error("%s: 500, request id %s", where, request_id, exc_info=exc)


def install_error_handling(app: FastAPI, server_name: str) -> None:
    """Put `ErrorMiddleware` around what `app` has so far, and let the framework's own exceptions reach it."""
    app.add_exception_handler(HTTPException, _let_through)
    app.add_exception_handler(RequestValidationError, _let_through)
    app.add_middleware(ErrorMiddleware, server_name=server_name)


async def _let_through(_request: Request, exc: Exception) -> NoReturn:
    raise exc


def _headers(exc: Exception) -> dict[str, str]:
    if isinstance(exc, HTTPException) and exc.headers:
        return dict(exc.headers)
    if (
        isinstance(exc, UpstreamUnavailableError)
        and exc.retry_after is not None
        and math.isfinite(exc.retry_after)
    ):
        return {"Retry-After": str(max(0, math.ceil(exc.retry_after)))}
    return {}
