"""A chat request's sampling controls in the words of SGLang's `/generate`. Pure.

SGLang refuses a key that it does not know (0.5.12 and 0.5.13 with a bare 500), so nothing is passed on by chance.
Facts: the request and sampling models of SGLang 0.5.12, 0.5.13 and 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from nemo_gym.chat_types import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.errors import RequestError
from sglang_model._logic import unsupported_sampling_params

SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "ignore_eos",
    "no_stop_trim",
    "skip_special_tokens",
    "logit_bias",
    "regex",
    "ebnf",
    "json_schema",
    "structural_tag",
    "custom_params",
)
RENAMED = {"seed": "sampling_seed", "min_tokens": "min_new_tokens"}

BESIDE_THE_PARAMETERS = (
    "return_routed_experts",
    "routed_experts_start_len",
    "lora_path",
    "custom_logit_processor",
    "extra_key",
    "priority",
    "routed_dp_rank",
)
"""Fields that chat and `/generate` both have at the top of the body. They come from an `extra_body`."""

READ_ELSEWHERE = frozenset({"input_ids"})
"""Fields of the body that no request brings, and that are read when the call is made."""

_KNOWN = frozenset(
    {
        *NeMoGymChatCompletionCreateParamsNonStreaming.model_fields,
        *SAME_NAME,
        *RENAMED,
        *BESIDE_THE_PARAMETERS,
        *READ_ELSEWHERE,
    }
)

WINDOW_MARGIN = 8
"""Tokens of the window that are left free when a request names no budget: SGLang's scheduler keeps six for itself."""


def sampling_params(
    body: Mapping[str, object], *, prompt_length: int, context_length: int
) -> dict[str, object]:
    """The `sampling_params` of a `/generate` call. Raises RequestError.

    Always spells out `spaces_between_special_tokens` and `max_new_tokens`: the default of the latter is 128. A budget
    is cut to what the window leaves; zero is zero.
    """
    params: dict[str, object] = {
        "spaces_between_special_tokens": False,
        "max_new_tokens": new_token_budget(body, context_length - prompt_length),
    }
    for name in (*SAME_NAME, *RENAMED):
        value = body.get(name)
        if value is not None:
            params[RENAMED.get(name, name)] = value
    schema = _json_schema(body.get("response_format"))
    if schema is not None:
        params.update(schema)
    return params


def engine_fields(body: Mapping[str, object]) -> dict[str, object]:
    """What stands beside `sampling_params` in a `/generate` body, besides the prompt."""
    return {name: body[name] for name in BESIDE_THE_PARAMETERS if body.get(name) is not None}


def unhonoured_fields(body: Mapping[str, object]) -> list[str]:
    """The fields that are set and have no effect on this transport, in a fixed order.

    Fields of an `extra_body` that chat may know and `/generate` does not are among them: chat gets them all.
    """
    names = unsupported_sampling_params(body)
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, Mapping):
        names.append("tool_choice")  # shown to the model, but nothing makes it call
    names += [name for name in ("logprobs", "top_logprobs") if body.get(name)]
    return names + sorted(body.keys() - _KNOWN)


def new_token_budget(body: Mapping[str, object], remaining: int) -> int:
    """How many tokens may be sampled, out of `remaining` in the window."""
    requested = body.get("max_completion_tokens")
    if requested is None:
        requested = body.get("max_tokens")
    if requested is None:
        return max(1, remaining - WINDOW_MARGIN)
    if type(requested) is not int or requested < 0:
        raise RequestError(
            f"max_tokens must be an integer of at least 0, got {requested!r}", param="max_tokens"
        )
    return min(requested, remaining)


def _json_schema(response_format: object) -> dict[str, object] | None:
    """SGLang wants the schema as a string, and `{"type": "object"}` for any JSON object."""
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_schema": '{"type": "object"}'}
    if kind == "json_schema" and isinstance(response_format, Mapping):
        outer = response_format.get("json_schema")
        schema = outer.get("schema") if isinstance(outer, Mapping) else None
        if isinstance(schema, Mapping):
            return {"json_schema": orjson.dumps(schema).decode()}
    if kind == "structural_tag" and isinstance(response_format, Mapping):
        return {"structural_tag": orjson.dumps(response_format).decode()}
    raise RequestError(
        "response_format must be of type text, json_object, json_schema (with json_schema.schema) or structural_tag, "
        f"got type {kind!r}",
        param="response_format",
    )
