"""One call of SGLang's `/generate`, from prompt ids to a chat completion. Pure but for the call itself.

Knows the wire of `/generate`, the parsers and the shape of a completion; knows no session and no template.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_hex

from nemo_gym.errors import ContextOverflowError, UpstreamStatusError
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.token_metadata import TokenIds
from sglang_model.generation_end import EngineFinish
from sglang_model.generation_parser import ParsedGeneration
from sglang_model.length_refusals import SGLANG_PATTERNS
from sglang_model.wire import SampledTurn, read_generate_turn
from vllm_model.length_refusal import read_length_refusal

WEIGHT_FIELDS = ("weight_version", "weight_versions")
"""Which weights sampled the turn: what chat has in `metadata` (the second from SGLang 0.5.23 on)."""


@dataclass(frozen=True)
class GeneratedTurn:
    """What `/generate` answered, checked."""

    sampled: SampledTurn
    finish: EngineFinish
    meta_info: Mapping[str, object]


async def call_generate(
    client: NeMoGymAsyncOpenAI,
    prompt_token_ids: TokenIds,
    params: Mapping[str, object],
    server: str,
    fields: Mapping[str, object],
) -> GeneratedTurn:
    """Generate once. Raises ContextOverflowError when the prompt does not fit, UpstreamError for the rest.

    `context_length` may have been set larger than the engine's: a budget that the engine finds too large is cut to what
    it says fits, and sent again.
    """
    try:
        answer = await _generate(client, prompt_token_ids, params, fields)
    except UpstreamStatusError as error:
        refusal = read_length_refusal(error, SGLANG_PATTERNS)
        if refusal is None:
            raise
        if refusal.allowed_new_tokens is None:
            raise _overflow(error) from error
        params = {**params, "max_new_tokens": refusal.allowed_new_tokens}
        try:
            answer = await _generate(client, prompt_token_ids, params, fields)
        except UpstreamStatusError as again:
            refusal = read_length_refusal(again, SGLANG_PATTERNS)
            if refusal is None or refusal.prompt_fits:
                raise
            raise _overflow(again) from again
    sampled = read_generate_turn(answer, prompt_token_ids, server)
    meta = answer["meta_info"]
    return GeneratedTurn(sampled, EngineFinish.of(answer), meta if isinstance(meta, Mapping) else {})


async def _generate(
    client: NeMoGymAsyncOpenAI,
    prompt_token_ids: TokenIds,
    params: Mapping[str, object],
    fields: Mapping[str, object],
) -> Mapping[str, object]:
    return await client.create_generate(
        **fields, input_ids=prompt_token_ids, sampling_params=dict(params), return_logprob=True
    )


def _overflow(error: UpstreamStatusError) -> ContextOverflowError:
    return ContextOverflowError(error.message, response_content=error.response_content)


def completion_of(turn: GeneratedTurn, parsed: ParsedGeneration, *, model: str) -> dict[str, object]:
    """A chat completion as SGLang's chat endpoint would send it: reasoning in its own field, and the triple."""
    sampled = turn.sampled
    message: dict[str, object] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["tool_calls"] = [dict(call) for call in parsed.tool_calls]
    message.update(
        prompt_token_ids=sampled.prompt_token_ids,
        generation_token_ids=sampled.generation_token_ids,
        generation_log_probs=sampled.generation_log_probs,
    )
    if sampled.routed_experts is not None:
        message["routed_experts"] = sampled.routed_experts
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": _finish_reason(turn.finish, parsed),
        "matched_stop": turn.finish.matched,
        "logprobs": None,
    }
    completion: dict[str, object] = {
        "id": f"chatcmpl-{token_hex(16)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": _usage(sampled, turn.meta_info),
    }
    weights = {name: turn.meta_info[name] for name in WEIGHT_FIELDS if turn.meta_info.get(name) is not None}
    return {**completion, "metadata": weights} if weights else completion


def _finish_reason(finish: EngineFinish, parsed: ParsedGeneration) -> str:
    if finish.kind == "length":
        return "length"
    return "tool_calls" if parsed.tool_calls else "stop"


def _usage(sampled: SampledTurn, meta: Mapping[str, object]) -> dict[str, object]:
    prompt, generated = len(sampled.prompt_token_ids), len(sampled.generation_token_ids)
    usage: dict[str, object] = {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
    }
    cached = meta.get("cached_tokens")
    if type(cached) is int:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


def parse_report(parsed: ParsedGeneration) -> list[dict[str, object]]:
    """The parser's report in JSON: one entry per attempted call."""
    return [
        {"status": attempt.status.value, "raw": attempt.raw, "name": attempt.name, "call_id": attempt.call_id}
        for attempt in parsed.report
    ]
