"""Stands between this project and an engine on a real socket, and keeps what went each way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import httpx
import orjson

GENERATING = ("/v1/chat/completions", "/generate")


class Triple(TypedDict):
    """What the engine itself says of a turn."""

    prompt_token_ids: list[int]
    generation_token_ids: list[int]
    generation_log_probs: list[float]


@dataclass(frozen=True)
class Call:
    request: httpx.Request
    status: int
    body: bytes

    @property
    def sent(self) -> dict:
        return orjson.loads(self.request.content)

    @property
    def answer(self) -> dict:
        return orjson.loads(self.body)

    @property
    def sampled(self) -> dict:
        """Where an answer has its `meta_info`: chat puts it into the choice, `/generate` at the top."""
        return self.answer["choices"][0] if "choices" in self.answer else self.answer

    @property
    def finish(self) -> str:
        return self.sampled["meta_info"]["finish_reason"]["type"]

    def triple(self) -> Triple:
        """Chat echoes the prompt; `/generate` without being asked only counts it, so there it is what was sent."""
        sampled = self.sampled
        prompt = sampled.get("prompt_token_ids") or self.sent["input_ids"]
        assert len(prompt) == sampled["meta_info"]["prompt_tokens"]
        entries = sampled["meta_info"]["output_token_logprobs"]
        return {
            "prompt_token_ids": prompt,
            "generation_token_ids": [entry[1] for entry in entries],
            "generation_log_probs": [entry[0] for entry in entries],
        }

    async def replayed(self, **extra: object) -> Call:
        """The very same request once more, without this project; `extra` goes into its body."""
        async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
            content = orjson.dumps({**self.sent, **extra})
            request = client.build_request(
                "POST", self.request.url, content=content, headers={"content-type": "application/json"}
            )
            response = await client.send(request)
        return Call(request, response.status_code, response.content)


class Recorder(httpx.AsyncBaseTransport):
    def __init__(self) -> None:
        self.inner = httpx.AsyncHTTPTransport()
        self.calls: list[Call] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        response = await self.inner.handle_async_request(request)
        body = await response.aread()
        self.calls.append(Call(request, response.status_code, body))
        return httpx.Response(response.status_code, headers=response.headers, content=body, request=request)

    @property
    def generations(self) -> list[Call]:
        """The calls that sampled, or should have."""
        return [call for call in self.calls if call.request.url.path in GENERATING]
