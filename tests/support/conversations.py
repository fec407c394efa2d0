"""An agent in a conversation over the Chat API, and the promise that each of its turns is held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from sglang_model.testing import Engine
from sglang_model.testing.generation import Sample
from tests.support.turns import Message, tool, user

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """A response of the model server, and what the engine knows of it."""

    status: int
    headers: httpx.Headers
    body: dict[str, Any]
    sample: Sample | None

    @property
    def choice(self) -> dict[str, Any]:
        assert self.status == 200, self.body
        return self.body["choices"][0]

    @property
    def message(self) -> dict[str, Any]:
        return self.choice["message"]

    @property
    def prompt(self) -> list[int]:
        return self.message["prompt_token_ids"]

    @property
    def generation(self) -> list[int]:
        return self.message["generation_token_ids"]

    @property
    def history(self) -> tuple[str, str]:
        return self.headers["x-sglang-history"], self.headers["x-sglang-history-reason"]

    @property
    def calls(self) -> list[dict[str, Any]]:
        return self.message["tool_calls"] or []


class Agent:
    """Speaks as an agent does: sends its conversation, and puts the reply behind it just as it came."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        engine: Engine,
        *messages: Message,
        headers: Mapping[str, str] | None = None,
        path: str = CHAT,
        **fields: object,
    ) -> None:
        self.client = client
        self.engine = engine
        self.messages: list[Message] = list(messages)
        self.fields = fields
        self.path = path
        self.headers = dict(headers or {})

    async def ask(self, *new: Message | str, **fields: object) -> Answer:
        """Send the conversation with `new` behind it. It grows by them, and by the reply of a 200."""
        self.messages += [user(message) if isinstance(message, str) else message for message in new]
        answer = await self.send(self.messages, **fields)
        if answer.status == 200:
            self.messages.append(answer.message)
        return answer

    async def send(self, messages: list[Message], **fields: object) -> Answer:
        """Send another conversation in the same session; nothing grows."""
        body = {"messages": messages, **self.fields, **fields}
        before = len(self.engine.samples)
        response = await self.client.post(self.path, json=body, headers=self.headers)
        samples = self.engine.samples[before:]
        answer = Answer(
            response.status_code, response.headers, response.json(), samples[-1] if samples else None
        )
        if answer.status == 200 and answer.sample is not None and answer.message.get("prompt_token_ids"):
            assert_is_what_was_sampled(answer)
        return answer

    def results(self, *texts: str) -> list[Message]:
        """Tool messages that answer the calls of the last reply, in their order."""
        calls = self.messages[-1]["tool_calls"]
        return [tool(call["id"], text) for call, text in zip(calls, texts, strict=True)]


def assert_is_what_was_sampled(answer: Answer) -> None:
    """The triple of the answer is what the engine saw and sampled, by the engine's own account."""
    sample = answer.sample
    assert sample is not None
    assert answer.prompt == sample.prompt_token_ids
    assert answer.generation == sample.token_ids
    assert answer.message["generation_log_probs"] == sample.logprobs[: len(sample.token_ids)]


def assert_extends(turn: Answer, following: Answer) -> list[int]:
    """The promise: the next prompt begins with all that was seen and sampled. Returns what stands behind."""
    assert turn.sample is not None
    assert following.sample is not None
    seen = [*turn.sample.prompt_token_ids, *turn.sample.token_ids]
    prompt = following.sample.prompt_token_ids
    assert prompt[: len(seen)] == seen
    assert following.history == ("spliced", "matched")
    assert following.choice["sglang"]["kept_tokens"] == len(seen)
    return prompt[len(seen) :]


def events(metrics: str) -> dict[str, int]:
    """What a server counted, by name, from the text of GET /metrics."""
    lines = [line for line in metrics.splitlines() if line.startswith("nemo_gym_events_total{")]
    return {line.split('event="')[1].split('"')[0]: int(float(line.rsplit(" ", 1)[1])) for line in lines}
