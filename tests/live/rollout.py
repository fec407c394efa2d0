"""An agent that walks through the ten turns of `policy`, over either API, and an engine that aborts one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx
import orjson

from tests.live.policy import STEPS, Step

TRIPLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
SYSTEM = "You are terse."
FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]


@dataclass(frozen=True)
class Visible:
    """What an agent sees of a turn, call ids apart: both transports make them up."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, object], ...]


@dataclass(frozen=True)
class Turn:
    visible: Visible
    triple: dict[str, list[float]]
    finish: str
    history: str
    reason: str
    report: dict[str, object]


@dataclass
class ChatAgent:
    """Sends every message back as it came."""

    client: httpx.AsyncClient
    messages: list[dict] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    open_calls: list[str] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)

    def hears(self, step: Step) -> None:
        assert len(step.results) == len(self.open_calls)
        for call_id, text in zip(self.open_calls, step.results, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})
        if step.user is not None:
            self.messages.append({"role": "user", "content": step.user})

    async def post(self, step: Step) -> httpx.Response:
        body = {
            "messages": self.messages,
            "tools": CHAT_TOOLS,
            "temperature": 0.0,
            "max_tokens": step.max_tokens,
        }
        return await self.client.post("/v1/chat/completions", json={**body, **self.extra}, timeout=120)

    def takes(self, response: httpx.Response) -> Turn:
        choice = response.json()["choices"][0]
        message = choice["message"]
        self.messages.append(message)
        calls = message.get("tool_calls") or []
        self.open_calls = [call["id"] for call in calls]
        visible = Visible(
            message.get("reasoning_content") or "",
            message.get("content") or "",
            tuple((call["function"]["name"], orjson.loads(call["function"]["arguments"])) for call in calls),
        )
        return _turn(response, visible, message, choice["finish_reason"], choice["sglang"])


@dataclass
class ResponsesAgent:
    """Sends every output item back as it came."""

    client: httpx.AsyncClient
    items: list[dict] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    open_calls: list[str] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)

    def hears(self, step: Step) -> None:
        assert len(step.results) == len(self.open_calls)
        for call_id, text in zip(self.open_calls, step.results, strict=True):
            self.items.append({"type": "function_call_output", "call_id": call_id, "output": text})
        if step.user is not None:
            self.items.append({"role": "user", "content": step.user})

    async def post(self, step: Step) -> httpx.Response:
        body = {
            "input": self.items,
            "tools": RESPONSES_TOOLS,
            "temperature": 0.0,
            "max_output_tokens": step.max_tokens,
        }
        return await self.client.post("/v1/responses", json={**body, **self.extra}, timeout=120)

    def takes(self, response: httpx.Response) -> Turn:
        answer = response.json()
        output = answer["output"]
        self.items += output
        by_type: dict[str, list[dict]] = {"reasoning": [], "message": [], "function_call": []}
        for item in output:
            by_type[item["type"]].append(item)
        self.open_calls = [item["call_id"] for item in by_type["function_call"]]
        visible = Visible(
            "".join(part["text"] for item in by_type["reasoning"] for part in item["summary"]),
            "".join(part["text"] for item in by_type["message"] for part in item["content"]),
            tuple((item["name"], orjson.loads(item["arguments"])) for item in by_type["function_call"]),
        )
        finish = "length" if answer["status"] == "incomplete" else "tool_calls" if self.open_calls else "stop"
        return _turn(response, visible, output[-1], finish, answer["sglang"])


Agent = ChatAgent | ResponsesAgent
AGENTS: dict[str, type[ChatAgent] | type[ResponsesAgent]] = {"chat": ChatAgent, "responses": ResponsesAgent}


def _turn(
    response: httpx.Response, visible: Visible, carrier: dict, finish: str, report: dict[str, object]
) -> Turn:
    return Turn(
        visible=visible,
        triple={name: carrier[name] for name in TRIPLE},
        finish=finish,
        history=response.headers["x-sglang-history"],
        reason=response.headers["x-sglang-history-reason"],
        report=report,
    )


async def run_rollout(agent: Agent, engine: str) -> list[Turn]:
    """All steps in order. A step that takes its time is aborted by the engine first, and asked again."""
    turns: list[Turn] = []
    for step in STEPS:
        agent.hears(step)
        if step.delay:
            refused = await aborted(lambda step=step: agent.post(step), engine)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "generation_aborted"
        response = await agent.post(step)
        assert response.status_code == 200, response.text
        turns.append(agent.takes(response))
    return turns


async def aborted(ask: Callable[[], Awaitable[httpx.Response]], engine: str) -> httpx.Response:
    """The answer to a request while the engine is told to abort everything, again and again until it is there."""
    asking = asyncio.ensure_future(ask())
    async with httpx.AsyncClient(base_url=engine, timeout=30, trust_env=False) as control:
        while not asking.done():
            (await control.post("/abort_request", json={"abort_all": True})).raise_for_status()
    return await asking
