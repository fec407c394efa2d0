"""A vLLM-style engine for tests: answers what it is told, in order, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import httpx
import orjson

Answer = Mapping[str, object] | httpx.Response


class ScriptedEngine(httpx.AsyncBaseTransport):
    """Chat answers come from the script, `/tokenize` answers are `prompt_ids`."""

    def __init__(self, answers: Iterable[Answer] = (), *, prompt_ids: Iterable[object] = (1, 2, 3)) -> None:
        self._answers = list(answers)
        self._prompt_ids = list(prompt_ids)
        self.requests: list[tuple[str, str, dict[str, object]]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = orjson.loads(await request.aread() or b"{}")
        self.requests.append((request.url.host, request.url.path, body))
        if request.url.path == "/tokenize":
            return httpx.Response(200, json={"tokens": self._prompt_ids})
        answer = self._answers.pop(0)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    def bodies(self, path: str = "/v1/chat/completions") -> list[dict[str, object]]:
        return [body for _, asked, body in self.requests if asked == path]


def completion(
    content: str | None = "hi",
    *,
    token_ids: Iterable[int] | None = None,
    finish_reason: str = "stop",
    choice: Mapping[str, object] | None = None,
    **message: object,
) -> dict[str, object]:
    """A chat completion; with `token_ids` it has vLLM's logprobs, -0.1 times the position from 1."""
    logprobs = None
    if token_ids is not None:
        entries = enumerate(token_ids, start=1)
        logprobs = {
            "content": [
                {"token": f"token_id:{i}", "logprob": -0.1 * n, "top_logprobs": []} for n, i in entries
            ]
        }
    made = {
        "index": 0,
        "finish_reason": finish_reason,
        "message": {"role": "assistant", "content": content, **message},
        "logprobs": logprobs,
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "engine-name",
        "choices": [{**made, **(choice or {})}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def tool_call(name: str, arguments: str, call_id: str = "call_1") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
