"""What a Responses answer says besides its items: usage, why it is incomplete, and the echoed request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from openai.types import CompletionUsage
from pydantic import BaseModel

from nemo_gym.responses_types import (
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseUsage,
    NeMoGymToolParam,
)

IncompleteReason = Literal["max_output_tokens", "content_filter"]

_ECHOED: Final = (
    "background",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "service_tier",
    "temperature",
    "text",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
)

_INCOMPLETE: Final[dict[str, IncompleteReason]] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}


def incomplete_reason(finish_reason: str) -> IncompleteReason | None:
    """Why the turn ended before the model had finished, or None."""
    return _INCOMPLETE.get(finish_reason)


def echoed_fields(params: NeMoGymResponseCreateParamsNonStreaming) -> dict[str, object]:
    """The request fields that a Response repeats; nulls become OpenAI's defaults where a Response needs a
    value.
    """
    parallel = params.parallel_tool_calls
    return {name: getattr(params, name) for name in _ECHOED} | {
        "parallel_tool_calls": True if parallel is None else parallel,
        "tool_choice": params.tool_choice or "auto",
        "tools": [_echoed_tool(tool) for tool in params.tools or ()],
    }


def _echoed_tool(tool: NeMoGymToolParam) -> NeMoGymToolParam | dict[str, object]:
    """openai's answer type requires `parameters` and `strict` to be there, its request type does not."""
    return {"parameters": None, "strict": None, **tool} if tool["type"] == "function" else tool


def _fields_of(model: BaseModel | None) -> Mapping[str, object]:
    """Declared fields and others. Not asked for by attribute: pydantic takes 1 µs to say that there is none."""
    return {} if model is None else {**model.__dict__, **(model.model_extra or {})}


def response_usage(usage: CompletionUsage | None) -> NeMoGymResponseUsage | None:
    """The engine's counts under the names of the Responses API; None if it reported none.

    Details are read from where OpenAI nests them, failing that from where SGLang puts them
    (`usage.reasoning_tokens` in 0.5.13). What was reported nowhere is listed as unreported. The total is
    the engine's, not a sum.
    """
    if usage is None:
        return None
    unreported: list[str] = []

    flat = _fields_of(usage)

    def count(details: Mapping[str, object], group: str, name: str) -> int:
        nested = details.get(name)
        value = nested if nested is not None else flat.get(name)
        if not isinstance(value, int):
            unreported.append(f"{group}.{name}")
            return 0
        return value

    prompt, completion = _fields_of(usage.prompt_tokens_details), _fields_of(usage.completion_tokens_details)
    input_details = {
        "cached_tokens": count(prompt, "input_tokens_details", "cached_tokens"),
        "cache_write_tokens": count(prompt, "input_tokens_details", "cache_write_tokens"),
    }
    output_details = {"reasoning_tokens": count(completion, "output_tokens_details", "reasoning_tokens")}
    return NeMoGymResponseUsage.model_validate(
        {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": input_details,
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": output_details,
            "total_tokens": usage.total_tokens,
            "unreported": unreported or None,
        }
    )
