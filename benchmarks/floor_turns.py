"""The least work that makes an engine's answer of an agent's request: what the floor does on each transport.

No validation, no errors, no parsing of tools or reasoning, no chat template but ChatML. Id arrays stay JSON text,
except the sampled ids and their log probabilities, which the engine sends interleaved. A yardstick, never a product.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast
from uuid import uuid4

import orjson
from tokenizers import Tokenizer

from benchmarks import id_arrays

Json = dict[str, object]
Post = Callable[[str, bytes], Awaitable[bytes]]


class Floor(Protocol):
    async def turn(self, session: str, body: bytes, post: Post) -> bytes:
        """The answer to one POST /v1/responses; `post` calls the engine."""


@dataclass(frozen=True)
class Sampled:
    """What one turn came to. `prompt` is JSON text without its brackets."""

    text: str
    prompt: bytes
    entries: Sequence[Sequence[object]]
    prompt_tokens: int


class ChatFloor:
    """/v1/chat/completions: the engine renders the prompt and returns it."""

    async def turn(self, session: str, body: bytes, post: Post) -> bytes:  # noqa: ARG002 - nothing is remembered
        request = _without_ids(body)
        call = {
            "model": "bench",
            "messages": messages_of(request),
            "logprobs": True,
            "return_meta_info": True,
            "return_prompt_token_ids": True,
            "max_tokens": request.get("max_output_tokens"),
            "temperature": request.get("temperature"),
        }
        answer, arrays = id_arrays.cut(await post("/v1/chat/completions", orjson.dumps(call)))
        choice = orjson.loads(answer)["choices"][0]
        meta = choice["meta_info"]
        return agent_answer(
            Sampled(
                choice["message"]["content"], arrays[0], meta["output_token_logprobs"], meta["prompt_tokens"]
            )
        )


class GenerateFloor:
    """/generate: the ids of a session are kept as JSON text, and only what is new is encoded.

    A text that was encoded before, from one special token to the next, is never encoded again; nothing is ever dropped.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._segments: dict[str, bytes] = {}
        self._sessions: dict[str, tuple[int, bytes]] = {}

    async def turn(self, session: str, body: bytes, post: Post) -> bytes:
        request = _without_ids(body)
        messages = messages_of(request)
        prompt = self._prompt(session, messages)
        call = (
            b'{"input_ids":[%s],"sampling_params":{"max_new_tokens":%d,"temperature":%s},"return_logprob":true}'
            % (
                prompt,
                cast("int", request.get("max_output_tokens")),
                orjson.dumps(request.get("temperature")),
            )
        )
        answer = orjson.loads(await post("/generate", call))
        meta = answer["meta_info"]
        sampled = orjson.dumps(answer["output_ids"])[1:-1]
        self._sessions[session] = (len(messages) + 1, prompt + b"," + sampled)
        text = self._tokenizer.decode(answer["output_ids"], skip_special_tokens=True)
        return agent_answer(Sampled(text, prompt, meta["output_token_logprobs"], meta["prompt_tokens"]))

    def _prompt(self, session: str, messages: Sequence[Mapping[str, object]]) -> bytes:
        known = self._sessions.get(session)
        if known is None or len(messages) < known[0]:
            return self._encode(
                [*(f"{_chatml(message)}\n" for message in messages), "<|im_start|>assistant\n"]
            )
        count, ids = known
        new = "".join(f"\n{_chatml(message)}" for message in messages[count:])
        return ids + b"," + self._encode([f"{new}\n<|im_start|>assistant\n"])

    def _encode(self, segments: Sequence[str]) -> bytes:
        missing = [segment for segment in dict.fromkeys(segments) if segment not in self._segments]
        encodings = self._tokenizer.encode_batch_fast(missing, add_special_tokens=False) if missing else []
        for segment, encoding in zip(missing, encodings, strict=True):
            self._segments[segment] = orjson.dumps(encoding.ids)[1:-1]
        return b",".join([self._segments[segment] for segment in segments])


def _chatml(message: Mapping[str, object]) -> str:
    return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>"


def _without_ids(body: bytes) -> Json:
    small, _ = id_arrays.cut(body)
    return cast("Json", orjson.loads(small))


def messages_of(request: Json) -> list[dict[str, object]]:
    """Chat messages of an agent's input: messages of text, and nothing else."""
    messages = []
    for item in cast("list[Json]", request["input"]):
        content = item["content"]
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        messages.append({"role": item["role"], "content": content})
    return messages


def agent_answer(turn: Sampled) -> bytes:
    """A Responses API answer with the token triple on its one message."""
    reply = {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": turn.text, "annotations": []}],
    }
    sampled = len(turn.entries)
    return (
        b'{"id":"resp_%s","object":"response","created_at":%d,"model":"bench","status":"completed","output":[%s,'
        b'"prompt_token_ids":[%s],"generation_token_ids":%s,"generation_log_probs":%s}],"parallel_tool_calls":true,'
        b'"tool_choice":"auto","tools":[],"usage":{"input_tokens":%d,"input_tokens_details":{"cached_tokens":0},'
        b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}}'
        % (
            uuid4().hex.encode(),
            int(time.time()),
            orjson.dumps(reply)[:-1],
            turn.prompt,
            orjson.dumps([entry[1] for entry in turn.entries]),
            orjson.dumps([entry[0] for entry in turn.entries]),
            turn.prompt_tokens,
            sampled,
            turn.prompt_tokens + sampled,
        )
    )
