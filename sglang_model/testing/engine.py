"""The embedded engine: an ASGI application that answers as SGLang does, without a model.

It joins routes, authorisation, recording and misbehaviours; what an endpoint says is in the endpoint modules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from sglang_model.testing import chat_endpoint, generate_endpoint, info_endpoints, token_endpoints
from sglang_model.testing.exchange import (
    TRANSPORT_KEY,
    Answer,
    ConnectionDroppedError,
    CutResponse,
    Exchange,
    InsteadError,
    RecordedRequest,
    answer_of,
    response_of,
)
from sglang_model.testing.generation import Gate, Sample
from sglang_model.testing.misbehaviour import Misbehaviour
from sglang_model.testing.policy import Rule
from sglang_model.testing.settings import EngineSettings
from sglang_model.testing.state import AbortStatusError, EngineState
from sglang_model.testing.tokenizer import EngineTokenizer
from sglang_model.testing.wire_shapes import object_error

Endpoint = Callable[[EngineState, Exchange], Awaitable[Answer]]

_GENERATIONS = ("/v1/chat/completions", "/generate")
_ROUTES: tuple[tuple[str, tuple[str, ...], Endpoint], ...] = (
    ("/", ("GET",), info_endpoints.answer_root),
    ("/v1/chat/completions", ("POST",), chat_endpoint.answer_chat),
    ("/generate", ("POST", "PUT"), generate_endpoint.answer_generate),
    ("/tokenize", ("POST",), token_endpoints.answer_tokenize),
    ("/v1/tokenize", ("POST",), token_endpoints.answer_tokenize),
    ("/detokenize", ("POST",), token_endpoints.answer_detokenize),
    ("/v1/detokenize", ("POST",), token_endpoints.answer_detokenize),
    ("/parse_function_call", ("POST",), token_endpoints.answer_parse_function_call),
    ("/separate_reasoning", ("POST",), token_endpoints.answer_separate_reasoning),
    ("/abort_request", ("POST",), info_endpoints.answer_abort),
    ("/v1/models", ("GET",), info_endpoints.answer_models),
    ("/v1/models/{name:path}", ("GET",), info_endpoints.answer_models),
    ("/server_info", ("GET",), info_endpoints.answer_server_info),
    ("/get_server_info", ("GET",), info_endpoints.answer_server_info),
    ("/model_info", ("GET",), info_endpoints.answer_model_info),
    ("/get_model_info", ("GET",), info_endpoints.answer_model_info),
    ("/get_weight_version", ("GET",), info_endpoints.answer_weight_version),
    ("/v1/loads", ("GET",), info_endpoints.answer_loads),
    ("/get_load", ("GET",), info_endpoints.answer_get_load),
    ("/health", ("GET",), info_endpoints.answer_empty),
    ("/health_generate", ("GET",), info_endpoints.answer_empty),
    ("/ping", ("GET",), info_endpoints.answer_empty),
)


class Engine:
    """An ASGI application. What a test reads or changes hangs here; all else goes over HTTP."""

    def __init__(self, settings: EngineSettings) -> None:
        self._state = EngineState(settings)
        routes = [
            Route(path, self._endpoint(endpoint), methods=list(methods))
            for path, methods, endpoint in _ROUTES
        ]
        unknown = {404: info_endpoints.answer_not_found, 405: info_endpoints.answer_not_allowed}
        handlers = {status: self._exception_handler(endpoint) for status, endpoint in unknown.items()}
        self._app = Starlette(routes=routes, exception_handlers=handlers)

    @property
    def settings(self) -> EngineSettings:
        return self._state.settings

    @property
    def tokenizer(self) -> EngineTokenizer:
        return self._state.tokenizer

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every request that arrived, in order, refused ones included."""
        return self._state.requests

    @property
    def samples(self) -> list[Sample]:
        """Every generation that ended: what was really seen and sampled, whatever was reported of it."""
        return self._state.scheduler.samples

    @property
    def rules(self) -> list[Rule]:
        """The script; may be changed while the engine runs."""
        return self._state.policy.rules

    @property
    def misbehaviours(self) -> list[Misbehaviour]:
        """Engine-wide misbehaviours; may be changed while the engine runs."""
        return self._state.misbehaviours

    def gate(self, name: str) -> Gate:
        """The gate that `Misbehaviour.gate` names: open it, or wait until requests stand at it."""
        return self._state.scheduler.gate(name)

    async def until_sampled(self, count: int) -> None:
        """Returns when `count` generations have ended, also those whose client is gone."""
        await self._state.scheduler.until_sampled(count)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # uvicorn's `send` is a method of its connection; only the connection's transport can be cut.
        connection = getattr(send, "__self__", None)
        scope[TRANSPORT_KEY] = getattr(connection, "transport", None)
        await self._app(scope, receive, send)

    def _endpoint(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            return await self._handle(request, endpoint)

        return handle

    def _exception_handler(self, endpoint: Endpoint) -> Callable[[Request, Exception], Awaitable[Response]]:
        """Unknown paths are recorded and need the key, like any other."""

        async def handle(request: Request, _error: Exception) -> Response:
            return await self._handle(request, endpoint)

        return handle

    async def _handle(self, request: Request, endpoint: Endpoint) -> Response:
        exchange = await _receive(request)
        self._state.requests.append(exchange.record)
        path = exchange.record.path
        if not self._authorised(request):
            return response_of(Answer({"error": "Unauthorized"}, 401), None)
        exchange.misbehaviour = self._state.misbehaviour_for(path)
        try:
            answer = await self._answer(exchange, endpoint)
        except ConnectionDroppedError:
            return CutResponse(b"", 500, {}, cut_at=0)
        wrong = exchange.misbehaviour
        if wrong is not None and answer.status == 200 and not wrong.answers_instead:
            answer = replace(answer, payload=wrong.edit(answer.payload))
        return response_of(answer, wrong)

    async def _answer(self, exchange: Exchange, endpoint: Endpoint) -> Answer:
        wrong = exchange.misbehaviour
        if wrong is not None and (wrong.answers_instead or exchange.record.path not in _GENERATIONS):
            await self._state.scheduler.hold(wrong)
        if wrong is not None and wrong.answers_instead:
            return answer_of(wrong)
        try:
            return await endpoint(self._state, exchange)
        except InsteadError as instead:
            return answer_of(instead.misbehaviour)
        except AbortStatusError as error:
            return Answer(object_error(error.message, str(error.status), error.status), error.status)

    def _authorised(self, request: Request) -> bool:
        """Only `Authorization: Bearer KEY` opens; /health* and /metrics* are open to all."""
        key = self.settings.api_key
        open_to_all = request.url.path.startswith(("/health", "/metrics")) or request.method == "OPTIONS"
        if key is None or open_to_all:
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and token == key


async def _receive(request: Request) -> Exchange:
    """Reads the request. A body that is not JSON is recorded as text, whatever it says it is."""
    raw = await request.body()
    body: object = raw.decode(errors="replace") if raw else None
    malformed = None
    if raw and request.headers.get("content-type", "").lower().startswith("application/json"):
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            malformed = str(body)
    headers = {name: value for name, value in request.headers.items() if name != "authorization"}
    if "authorization" in request.headers:
        headers["authorization"] = "(not kept)"
    record = RecordedRequest(method=request.method, path=request.url.path, headers=headers, body=body)
    return Exchange(record=record, malformed=malformed, disconnected=_watch(request))


def _watch(request: Request) -> Callable[[], Awaitable[None]]:
    async def until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return until_gone


def create_engine_app(settings: EngineSettings | None = None) -> Engine:
    """An engine as an ASGI application, for uvicorn or `httpx.ASGITransport`."""
    return Engine(settings or EngineSettings())
