"""A model server without an engine: it answers what its test told it to, or raises it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import httpx
import orjson
from pydantic import PrivateAttr
from starlette.requests import Request

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

if TYPE_CHECKING:
    from starlette.types import ASGIApp

CHAT_COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": None,
        }
    ],
}


def response_object(**fields: object) -> dict[str, object]:
    """A Responses API answer with one message, with `fields` over it."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    }
    base: dict[str, object] = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return base | fields


Behaviour = Callable[[Request], Awaitable[object]]


class ScriptedModel(SimpleResponsesAPIModel):
    """`_behave`, when set, runs in every handler and may raise; what it returns replaces the usual answer."""

    config: BaseResponsesAPIModelConfig
    _behave: Behaviour | None = PrivateAttr(default=None)
    _sessions: list[str] = PrivateAttr(default_factory=list)
    _bodies: list[object] = PrivateAttr(default_factory=list)

    def behave(self, behaviour: Behaviour) -> ScriptedModel:
        self._behave = behaviour
        return self

    def raising(self, exc: BaseException) -> ScriptedModel:
        async def fail(_request: Request) -> object:
            raise exc

        return self.behave(fail)

    async def chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymChatCompletion:
        return await self._answer(request, body, NeMoGymChatCompletion.model_validate(CHAT_COMPLETION))

    async def responses(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        return await self._answer(request, body, NeMoGymResponse.model_validate(response_object()))

    async def _answer(self, request: Request, body: object, usual: object) -> object:
        self._sessions.append(request.session[SESSION_ID_KEY])
        self._bodies.append(body)
        if self._behave is not None:
            behaved = await self._behave(request)
            return usual if behaved is None else behaved
        return usual


def config_for(name: str = "policy_model", **fields: object) -> BaseResponsesAPIModelConfig:
    base = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": name}
    return BaseResponsesAPIModelConfig.model_validate(base | fields)


def scripted_model(**fields: object) -> ScriptedModel:
    return ScriptedModel(config=config_for(**fields), server_client=ServerClient(global_config_dict={}))


def client_for(app: ASGIApp, **kwargs: object) -> httpx.AsyncClient:
    """A client whose requests go straight into `app`; what escapes the app is raised in the test."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server", **kwargs)  # type: ignore[arg-type]


CHAT_BODY = {"messages": [{"role": "user", "content": "hi"}]}


async def post_chat(
    client: httpx.AsyncClient, path: str = "/v1/chat/completions", **kwargs: object
) -> httpx.Response:
    return await client.post(path, content=orjson.dumps(CHAT_BODY), **kwargs)  # type: ignore[arg-type]
