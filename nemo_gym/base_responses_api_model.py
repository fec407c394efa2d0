"""The base of every model server: two coroutines to write, three dialects to serve.

Raw requests in, bytes out: FastAPI's typed bodies and its encoder walk every token id in Python, several
times.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any, ClassVar, Final

from fastapi import FastAPI
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym import openai_utils
from nemo_gym.anthropic_converter import (
    anthropic_request_to_responses,
    in_callers_fields,
    responses_to_anthropic_response,
)
from nemo_gym.anthropic_types import AnthropicMessage, AnthropicRequest
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.disconnect import cancelled_by_disconnect
from nemo_gym.errors import RequestError, UpstreamError
from nemo_gym.json_response import json_response
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.request_body import DEFAULT_MAX_REQUEST_BYTES, Remembered, read_model
from nemo_gym.request_memo import RequestMemo
from nemo_gym.server_utils import SESSION_ID_KEY, BaseServer, SimpleServer

Endpoint = Callable[[Request], Awaitable[Response]]

_ITEMS: Final[dict[type[BaseModel], str]] = {
    NeMoGymResponseCreateParamsNonStreaming: "input",
    NeMoGymChatCompletionCreateParamsNonStreaming: "messages",
}
"""The field that grows from turn to turn. Not for bodies of a server's own: they may validate the list as a whole."""


class BaseResponsesAPIModelConfig(BaseRunServerInstanceConfig):
    """The settings that every model server has."""

    max_request_bytes: int = Field(default=DEFAULT_MAX_REQUEST_BYTES, ge=1)
    """Largest request body that is read, in bytes; a larger one is answered with status 413. An agent that
    echoes its turns sends all their token ids again on every turn.
    """

    session_secret: str | None = Field(default=None, min_length=16, repr=False)
    """Secret that signs the session cookie. Unset, each launch makes a random one, which its workers share
    through the environment variable NEMO_GYM_SESSION_SECRET. Set the same one on servers that a load
    balancer puts behind one address, or to keep sessions over a restart.
    """


class BaseResponsesAPIModel(BaseServer):
    """A server that generates."""

    config: BaseResponsesAPIModelConfig


class SimpleResponsesAPIModel(BaseResponsesAPIModel, SimpleServer):
    """A model server. Subclasses write `chat_completions` and `responses`.

    Either may take the request before the body. Both are called with a validated body, and cancelled when the
    client goes away.
    """

    shares_items: ClassVar[bool] = False
    """Whether a request may share items and messages with the one before it, so that only new ones are read.

    For handlers that never change one in place, nor the list of them, and do nothing with the ids of earlier turns:
    shared items come without them. Each class says so for itself: what a subclass adds is not known here.
    """

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "shares_items" not in cls.__dict__:
            cls.shares_items = False

    async def on_startup(self) -> None:
        await super().on_startup()
        _complete_shapes()

    @cached_property
    def request_memo(self) -> RequestMemo:
        """The beginnings of requests that are kept, where `shares_items`."""
        return RequestMemo()

    def get_session_secret(self) -> str:
        return self.config.session_secret or super().get_session_secret()

    def setup_webserver(self) -> FastAPI:
        # No schema: the routes take raw requests, of which FastAPI knows nothing.
        app = FastAPI(openapi_url=None)
        chat, responses = (
            NeMoGymChatCompletionCreateParamsNonStreaming,
            NeMoGymResponseCreateParamsNonStreaming,
        )
        app.add_route("/v1/chat/completions", self._endpoint("chat_completions", chat), methods=["POST"])
        app.add_route("/v1/responses", self._endpoint("responses", responses), methods=["POST"])
        app.add_route("/v1/messages", self._endpoint("messages", AnthropicRequest), methods=["POST"])
        app.add_route("/health", self._answer_health, methods=["GET"])
        self.setup_standard(app)
        return app

    @abstractmethod
    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymChatCompletion:
        """Answer a chat completion request."""

    @abstractmethod
    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        """Answer a request of the Responses API."""

    async def messages(self, request: Request, body: AnthropicRequest) -> AnthropicMessage:
        """Answer a request of Anthropic's Messages API by way of `responses`."""
        params = anthropic_request_to_responses(body)
        handler: Callable[..., Awaitable[NeMoGymResponse]] = self.responses
        try:
            response = await (handler(request, params) if _takes_request(handler) else handler(params))
        except RequestError as error:
            raise in_callers_fields(error, body) from error
        return responses_to_anthropic_response(response, model=body.model or response.model)

    async def check_engine(self) -> None:
        """Raise an UpstreamError when the engine behind this server cannot serve."""

    def _endpoint(self, method: str, default: type[BaseModel]) -> Endpoint:
        """Return the route for the handler named `method`: body in, handler, bytes out."""
        body_class = _body_class(getattr(self, method), default)
        takes_request = _takes_request(getattr(self, method))
        field = _ITEMS.get(body_class) if self.shares_items else None

        async def endpoint(request: Request) -> Response:
            earlier = None
            if field is not None:
                earlier = Remembered(self.request_memo, request.session[SESSION_ID_KEY], field)
            body = await read_model(
                request, body_class, max_request_bytes=self.config.max_request_bytes, earlier=earlier
            )
            handler: Callable[..., Awaitable[object]] = getattr(self, method)
            async with cancelled_by_disconnect(request.receive):
                content = await (handler(request, body) if takes_request else handler(body))
            return json_response(content)

        return endpoint

    async def _answer_health(self, _request: Request) -> Response:
        try:
            await self.check_engine()
        except UpstreamError as error:
            # Whatever is wrong with the engine, to a health probe it means: not now.
            return json_response(error.body(), status_code=503)
        return json_response({"status": "ok"})


def _complete_shapes() -> None:
    """Build what openai's models put off until they are first used (`defer_build`, openai 3.57).

    40 ms, which the first requests would hold the event loop for.
    """
    for shape in vars(openai_utils).values():
        if isinstance(shape, type) and issubclass(shape, BaseModel):
            shape.model_rebuild()


def _takes_request(handler: Callable[..., object]) -> bool:
    """Say whether `handler` takes the request before the body. NeMo Gym's servers come in both kinds."""
    first = next(iter(inspect.signature(handler).parameters.values()), None)
    return first is not None and (first.name == "request" or first.annotation in (Request, "Request"))


def _body_class(handler: Callable[..., object], default: type[BaseModel]) -> type[BaseModel]:
    """Return the model that `handler` declares for its body, as FastAPI would; `default` without one."""
    try:
        body = inspect.signature(handler, eval_str=True).parameters.get("body")
    except NameError:  # an annotation that exists for type checkers only
        return default
    declared = body.annotation if body is not None else None
    return declared if isinstance(declared, type) and issubclass(declared, BaseModel) else default
