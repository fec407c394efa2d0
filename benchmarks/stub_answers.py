"""The engine stub's answers, serialised once: SGLang 0.5.13's shapes, and vLLM's.

Prompts of plain chat are made up: turn k has the ids of turn k-1, its reply, and a short user message, so that a
trainer's prefix check holds. Prompts that come as `input_ids` are counted or echoed as they came. Pure: bytes in, bytes
out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import orjson

from benchmarks.tokenizer import END_OF_TURN, TOOL_ARGUMENTS, TOOL_NAME, Corpus

Mode = Literal["sglang", "vllm"]
Reply = Literal["text", "tool"]


@dataclass(frozen=True)
class Shape:
    """How big the answers are. `turn_tokens` is what a new user message adds to a made-up prompt."""

    prompt_tokens: int = 1024
    reply_tokens: int = 256
    turn_tokens: int = 64
    reply: Reply = "text"
    latency_ms: float = 0.0


def as_float32(number: float) -> float:
    """A float32 in a double has the long decimal form that a GPU's log probabilities have on the wire."""
    (value,) = struct.unpack("f", struct.pack("f", number))
    return float(value)


class CannedAnswers:
    """Answers of one shape. Every method returns a JSON body; equal questions get the very same bytes."""

    def __init__(self, corpus: Corpus, shape: Shape, mode: Mode) -> None:
        self._mode = mode
        self._shape = shape
        plain = max(0, shape.reply_tokens - 1)
        calls = shape.reply == "tool"
        ids, texts = corpus.reply_ids[:plain], corpus.reply_texts[:plain]
        if calls:
            plain = max(0, plain - len(corpus.call_ids))
            ids, texts = ids[:plain] + corpus.call_ids, texts[:plain] + corpus.call_texts
        self.reply_ids = [*ids, corpus.end_id]
        self.log_probs = [as_float32(-1e-6 - (i * 7919 % 10007) / 6007) for i in range(len(self.reply_ids))]
        self._texts = [*texts, END_OF_TURN]
        self._whole_text = "".join(texts)
        self._first_prompt = corpus.prompt_ids[: shape.prompt_tokens]
        filler = max(0, shape.turn_tokens - len(corpus.between_turns))
        middle = len(corpus.between_turns) // 2
        self._next_message = [
            *corpus.between_turns[:middle],
            *corpus.reply_ids[:filler],
            *corpus.between_turns[middle:],
        ]
        self._serialise("".join(texts[:plain]), calls=calls)
        self._made: dict[tuple[object, ...], bytes] = {}

    def _serialise(self, content: str, *, calls: bool) -> None:
        call = {
            "id": "call_0123456789abcdef01234567",
            "index": 0,
            "type": "function",
            "function": {"name": TOOL_NAME, "arguments": TOOL_ARGUMENTS},
        }
        message = {
            "role": "assistant",
            "content": content,
            "reasoning_content": None,
            "tool_calls": [call] if calls else None if self._mode == "sglang" else [],
        }
        self._message = orjson.dumps(message)
        self._finish = b"tool_calls" if calls else b"stop"
        self._text = orjson.dumps(self._whole_text)
        self._ids = orjson.dumps(self.reply_ids)
        pairs = list(zip(self.log_probs, self.reply_ids, self._texts, strict=True))
        self._entries = orjson.dumps([[log_prob, token_id, None] for log_prob, token_id, _ in pairs])
        self._entries_with_text = orjson.dumps(pairs)
        tokens = [f"token_id:{token_id}" if self._mode == "vllm" else text for _, token_id, text in pairs]
        self._content = orjson.dumps(
            [
                {"token": token, "bytes": list(token.encode()), "logprob": log_prob, "top_logprobs": []}
                for token, log_prob in zip(tokens, self.log_probs, strict=True)
            ]
        )

    def chat(self, body: bytes) -> bytes:
        """/v1/chat/completions. A prompt that is sent as `input_ids` is echoed byte for byte (SGLang >= 0.5.13)."""
        sent = _array(body, b'"input_ids"')
        turn = body.count(b'"role":"assistant"')
        with_ids = b'"return_prompt_token_ids":true' in body
        if sent is not None:
            return self._chat(sent.count(b",") + 1, b"[%s]" % sent if with_ids else None)
        return self._once(
            ("chat", turn, with_ids),
            lambda: self._chat(self._prompt_length(turn), self._prompt(turn) if with_ids else None),
        )

    def _chat(self, prompt_tokens: int, prompt: bytes | None) -> bytes:
        if self._mode == "vllm":
            extra = b',"stop_reason":null'
        else:
            extra = b',"matched_stop":%d' % self.reply_ids[-1]
            if prompt is not None:
                extra += b',"prompt_token_ids":' + prompt
            extra += b',"meta_info":' + self._meta_info(prompt_tokens, self._entries_with_text)
        replied = len(self.reply_ids)
        return (
            b'{"id":"0123456789abcdef0123456789abcdef","object":"chat.completion","created":1750000000,"model":"bench",'
            b'"choices":[{"index":0,"message":%s,"logprobs":{"content":%s},"finish_reason":"%s"%s}],'
            b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":null,'
            b'"reasoning_tokens":0},"metadata":{"weight_version":"default"}}'
            % (
                self._message,
                self._content,
                self._finish,
                extra,
                prompt_tokens,
                prompt_tokens + replied,
                replied,
            )
        )

    def generate(self, body: bytes) -> bytes:
        """/generate, whose prompt is always sent."""
        sent = _array(body, b'"input_ids"') or b""
        count = sent.count(b",") + 1
        return b'{"text":%s,"output_ids":%s,"meta_info":%s}' % (
            self._text,
            self._ids,
            self._meta_info(count, self._entries),
        )

    def tokenize(self, body: bytes) -> bytes:
        """vLLM's /tokenize of a conversation, with the same made-up prompt as its chat answer has."""
        turn = body.count(b'"role":"assistant"')
        return self._once(
            ("tokenize", turn),
            lambda: (
                b'{"count":%d,"max_model_len":262144,"tokens":%s,"token_strs":null}'
                % (self._prompt_length(turn), self._prompt(turn))
            ),
        )

    def _meta_info(self, prompt_tokens: int, entries: bytes) -> bytes:
        return (
            b'{"id":"0123456789abcdef0123456789abcdef","finish_reason":{"type":"stop","matched":%d},'
            b'"prompt_tokens":%d,"weight_version":"default","num_retractions":0,"input_token_logprobs":[],'
            b'"output_token_logprobs":%s,"output_token_logprobs_length":%d,"reasoning_tokens":0,'
            b'"completion_tokens":%d,"cached_tokens":0,"cached_tokens_details":null,"dp_rank":null,'
            b'"e2e_latency":0.01,"response_sent_to_client_ts":1750000000.5}'
            % (self.reply_ids[-1], prompt_tokens, entries, len(self.reply_ids), len(self.reply_ids))
        )

    def _prompt_length(self, turn: int) -> int:
        return len(self._first_prompt) + turn * (len(self.reply_ids) + len(self._next_message))

    def _prompt(self, turn: int) -> bytes:
        return self._once(
            ("prompt", turn),
            lambda: orjson.dumps(self._first_prompt + turn * (self.reply_ids + self._next_message)),
        )

    def _once(self, key: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = make()
        return made


def _array(body: bytes, key: bytes) -> bytes | None:
    """What stands between the brackets of a top-level array of numbers; None where the key is not there."""
    at = body.find(key + b":[")
    if at < 0:
        return None
    left = at + len(key) + 2
    return body[left : body.index(b"]", left)]
