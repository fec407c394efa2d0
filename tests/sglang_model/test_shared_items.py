"""Items that a request shares with the one before it: the engine is asked what it would be asked without."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest
from starlette.requests import Request

from nemo_gym.grown_list import GrownList, mapped
from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from sglang_model.app import SGLangModel
from sglang_model.testing import Engine, Rule
from tests.support.local_tokenizer import SETUPS, engine_with, make_server, transport_of
from tests.support.model_servers import agent, no_sleep
from vllm_model.chat_body import Body

LOOK_UP = {
    "type": "function",
    "name": "look_up",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}
CALL = '<think>hm</think>Let me see.\n<tool_call>\n{"name": "look_up", "arguments": {"place": "x"}}\n</tool_call>'
RULES = (Rule(when="question [02468]", reply=CALL), Rule(when=".*", reply="<think>well</think>So it is."))
ROUNDS = 6


class Alone(SGLangModel):
    """A server of somebody's own: it shares nothing, because nobody knows what it does with its messages."""


class InPlace(SGLangModel):
    """A server of somebody's own that changes messages where they stand."""

    def _preprocess_chat_completion_create_params(self, request: Request, body_dict: Body) -> Body:
        body = super()._preprocess_chat_completion_create_params(request, body_dict)
        first: Any = body["messages"][0]  # type: ignore[index]
        first["content"] += "!"
        return body


class Watched(SGLangModel):
    """Shares items as its parent does, and lets its test see what a handler gets."""

    shares_items = True

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming) -> Any:  # type: ignore[override]
        SEEN.append(body.input)
        return await super().responses(request, body)

    async def chat_completions(
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> Any:  # type: ignore[override]
        MADE.append(body.messages)
        return await super().chat_completions(request, body)


SEEN: list[Any] = []
MADE: list[Any] = []


class Listening(httpx.AsyncBaseTransport):
    """The embedded engine, and every body that it was sent."""

    def __init__(self, engine: Engine) -> None:
        self._inner = transport_of(engine)
        self.bodies: list[Any] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        content = await request.aread()
        if content:
            self.bodies.append((request.url.path, orjson.loads(content)))
        return await self._inner.handle_async_request(request)


async def rollout(server_class: type[SGLangModel], transport: str, renderer: str, *, echo: bool) -> list[Any]:
    """What the engine was asked to generate from, in tool-using turns over the Responses API."""
    listening = Listening(engine_with(*RULES))
    like = make_server(listening, transport, renderer)
    pool = HTTPPool(HTTPClientConfig(), transport=listening, sleep=no_sleep)
    server = server_class(config=like.config, server_client=like.server_client, http_pool=pool)
    items: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "question 0"}]
    async with agent(server) as client:
        for number in range(1, ROUNDS):
            response = await client.post("/v1/responses", json={"input": items, "tools": [LOOK_UP]})
            assert response.status_code == 200, response.text
            output = response.json()["output"]
            ids = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
            items += output if echo else [{k: v for k, v in i.items() if k not in ids} for i in output]
            calls = [item["call_id"] for item in output if item["type"] == "function_call"]
            items += [
                {"type": "function_call_output", "call_id": one, "output": "a harbour"} for one in calls
            ]
            items.append({"role": "user", "content": f"question {number}"})
    generating = ("/generate", "/v1/chat/completions")
    return [_without_call_ids(body) for path, body in listening.bodies if path in generating]


def _without_call_ids(body: Any) -> Any:
    """They are random."""
    for message in body.get("messages") or ():
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls") or ():
            call.pop("id", None)
    return body


@SETUPS
@pytest.mark.parametrize("echo", [True, False])
async def test_the_engine_is_asked_the_same_as_by_a_server_that_shares_nothing(transport, renderer, echo):
    shared = await rollout(SGLangModel, transport, renderer, echo=echo)
    assert shared == await rollout(Alone, transport, renderer, echo=echo)
    assert len(shared) == ROUNDS - 1


@pytest.mark.parametrize("echo", [True, False])
async def test_a_handler_shares_the_earlier_items_which_have_no_ids(echo):
    SEEN.clear()
    MADE.clear()
    await rollout(Watched, "chat", "server", echo=echo)
    assert [len(items) for items in SEEN[1:3]] == [7, 12]
    assert [isinstance(items, GrownList) for items in SEEN] == [False, False, *[True] * (ROUNDS - 3)]
    assert [items.known for items in SEEN[3:]] == [len(items) for items in SEEN[2:-1]]
    assert [messages.known for messages in MADE[3:]] == [len(messages) for messages in MADE[2:-1]]
    with_ids = [item for item in SEEN[-1] if hasattr(item, "generation_token_ids")]
    assert [item.generation_token_ids == [] for item in with_ids] == [True] * (ROUNDS - 2 if echo else 0)


async def test_a_subclass_that_changes_messages_in_place_changes_those_of_its_own_request():
    bodies = await rollout(InPlace, "chat", "server", echo=False)
    first = [body["messages"][0]["content"] for body in bodies]
    assert first == ["s!"] * (ROUNDS - 1)


async def test_what_is_shared_is_counted():
    server = make_server(Listening(engine_with(*RULES)), "chat", "server")
    items = [{"role": role, "content": "x"} for role in ("user", "assistant") * 4]
    async with agent(server) as client:
        await client.post("/v1/responses", json={"input": items})
        metrics = (await client.get("/metrics")).text
    assert 'nemo_gym_request_items{worker="main"} 8.0' in metrics


def test_what_is_made_of_a_list_is_made_once_for_each_element():
    made: list[int] = []

    def double(value: int) -> int:
        made.append(value)
        return 2 * value

    first = GrownList([1, 2])
    assert mapped(double, mapped(double, first, key="once"), key="twice") == [4, 8]
    second = GrownList([1, 2, 3], known=2, before=first.made)
    assert mapped(double, mapped(double, second, key="once"), key="twice") == [4, 8, 12]
    assert made == [1, 2, 2, 4, 3, 6]
    assert mapped(double, [1], key="once") == [2]
