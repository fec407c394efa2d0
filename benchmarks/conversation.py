"""What one session says, turn by turn: to a model server as NeMo Gym's agents do, or to the engine itself. Pure.

An agent sends the whole conversation with every turn, and echoes each output item as it came, token ids included. Items
are kept as JSON text; ids are never decoded, so that the load generator stays cheap at 100,000 ids per turn.
"""

from __future__ import annotations

from typing import Literal, Protocol

import orjson

from benchmarks import id_arrays
from benchmarks.tokenizer import TOOL_NAME, Corpus

Dialect = Literal["agent", "engine-chat", "engine-generate"]

SYSTEM = "You are a careful assistant. Think about every request before you answer it."
MAX_OUTPUT_TOKENS = 8192
_TOOL = {
    "name": TOOL_NAME,
    "description": "Look something up in the table that the task is about.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["place", "limit"],
        "additionalProperties": False,
    },
}
_ID_FIELDS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs"})


class Conversation(Protocol):
    path: str
    prompt_tokens: int
    """Length of the prompt of the turn that was answered last, as far as it is known."""
    history: str | None
    """What this project's server says about that prompt; None of any other server."""

    def body(self) -> bytes:
        """The next request."""

    def go_on(self, answer: bytes, text: str) -> None:
        """Take the answer into the conversation, and say `text` next. Raises ValueError for a useless answer."""


def start_conversation(
    dialect: Dialect, first: str, corpus: Corpus, *, prompt_tokens: int, echo_ids: bool, with_tool: bool
) -> Conversation:
    if dialect == "agent":
        return AgentConversation(first, echo_ids=echo_ids, with_tool=with_tool)
    if dialect == "engine-chat":
        return EngineChat(first)
    return EngineGenerate(corpus.prompt_ids[:prompt_tokens], corpus)


class AgentConversation:
    """POST /v1/responses."""

    path = "/v1/responses"

    def __init__(self, first: str, *, echo_ids: bool, with_tool: bool) -> None:
        self.prompt_tokens = 0
        self.history: str | None = None
        self._echo_ids = echo_ids
        self._items: list[bytes] = []
        self._say({"role": "system", "content": SYSTEM})
        self._say({"role": "user", "content": first})
        options: dict[str, object] = {
            "temperature": 1.0,
            "top_p": 1.0,
            "max_output_tokens": MAX_OUTPUT_TOKENS,
        }
        if with_tool:
            options["tools"] = [{"type": "function", "strict": True, **_TOOL}]
        self._end = b"]," + orjson.dumps(options)[1:]

    def _say(self, *items: object) -> None:
        self._append(orjson.dumps(items)[1:-1])

    def _append(self, items: bytes) -> None:
        self._items += (b"," if self._items else b'{"input":[', items)

    def body(self) -> bytes:
        return b"".join((*self._items, self._end))  # one copy of half a megabyte

    def go_on(self, answer: bytes, text: str) -> None:
        small, arrays = id_arrays.cut(answer)
        response = orjson.loads(small)
        self.prompt_tokens = response["usage"]["input_tokens"]
        self.history = (response.get("sglang") or {}).get("history")
        output = response["output"]
        if not any("generation_token_ids" in item for item in output):
            raise ValueError("the answer carries no token ids")
        calls = [item["call_id"] for item in output if item.get("type") == "function_call"]
        if self._echo_ids:
            # One item after the other takes its own arrays: they stand in the order of the output.
            whole = id_arrays.restore(orjson.dumps(output), arrays)
            self._append(whole[1:-1])
        else:
            self._say(
                *({key: value for key, value in item.items() if key not in _ID_FIELDS} for item in output)
            )
        if calls:
            self._say(*({"type": "function_call_output", "call_id": call, "output": text} for call in calls))
        else:
            self._say({"role": "user", "content": text})


class EngineChat:
    """SGLang's chat endpoint, as a model server calls it."""

    path = "/v1/chat/completions"

    def __init__(self, first: str) -> None:
        self.prompt_tokens = 0
        self.history: str | None = None
        self._messages: list[dict[str, object]] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": first},
        ]

    def body(self) -> bytes:
        return orjson.dumps(
            {
                "model": "bench",
                "messages": self._messages,
                "logprobs": True,
                "return_meta_info": True,
                "return_prompt_token_ids": True,
                "temperature": 1.0,
                "max_tokens": MAX_OUTPUT_TOKENS,
            }
        )

    def go_on(self, answer: bytes, text: str) -> None:
        small, _ = id_arrays.cut(answer)
        response = orjson.loads(small)
        self.prompt_tokens = response["usage"]["prompt_tokens"]
        self._messages.append({"role": "assistant", "content": response["choices"][0]["message"]["content"]})
        self._messages.append({"role": "user", "content": text})


class EngineGenerate:
    """SGLang's /generate; each prompt begins with the one before and its reply."""

    path = "/generate"

    def __init__(self, prompt: list[int], corpus: Corpus) -> None:
        self.prompt_tokens = len(prompt)
        self.history: str | None = None
        self._corpus = corpus
        self._ids = orjson.dumps(prompt)[1:-1]

    def body(self) -> bytes:
        return (
            b'{"input_ids":[%s],"sampling_params":{"temperature":1.0,"max_new_tokens":%d},"return_logprob":true}'
            % (self._ids, MAX_OUTPUT_TOKENS)
        )

    def go_on(self, answer: bytes, text: str) -> None:
        turn = orjson.loads(answer)
        new = turn["output_ids"] + self._corpus.reply_ids[: len(text.split())]
        self.prompt_tokens = turn["meta_info"]["prompt_tokens"]
        self._ids += b"," + orjson.dumps(new)[1:-1]
