"""A chat request's sampling controls in the words of SGLang's `/generate`. Pure.

SGLang refuses a key that it does not know (0.5.12 and 0.5.13 with a bare 500), so nothing is passed on by chance.
Facts: the request and sampling models of SGLang 0.5.12, 0.5.13 and 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from nemo_gym.errors import RequestError

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
