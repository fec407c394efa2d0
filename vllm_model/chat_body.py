"""The outgoing chat body, step by step. Pure: each step takes a body and returns one, and changes nothing
it was given.

`VLLMModel._preprocess_chat_completion_create_params` puts the steps together.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import orjson

from nemo_gym.chat_types import NeMoGymChatCompletionCreateParamsNonStreaming
from nemo_gym.errors import RequestError
from nemo_gym.grown_list import mapped

Body = dict[str, object]
Message = dict[str, object]

BUDGET_FIELDS = ("max_tokens", "max_completion_tokens")

RESERVED_EXTRA_FIELDS = frozenset({"input_ids", "stream"})
"""What no extra body may set: prompt ids, which SGLang does not check (a negative one ends it), and streams, which this
server does not read."""


def fields_set(params: NeMoGymChatCompletionCreateParamsNonStreaming) -> Body:
    """What the caller sent, by reference: the values are plain JSON already, and every step here leaves
    them as they are.
    """
    return {name: getattr(params, name) for name in params.model_fields_set}


def messages_of(body: Mapping[str, object]) -> list[Message]:
    """The messages of a validated body, as they stand in it."""
    return cast("list[Message]", body.get("messages") or [])


def with_system_for_developer(body: Body) -> Body:
    """For chat templates that do not know the role `developer`."""
    return {**body, "messages": mapped(_with_system_for_developer, messages_of(body))}


def _with_system_for_developer(message: Message) -> Message:
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def without_empty_tool_calls(body: Body) -> Body:
    """No calls are no `tool_calls`: OpenAI refuses an empty list, and templates such as Llama 3.1's read
    its first.
    """
    return {**body, "messages": mapped(_without_empty_tool_calls, messages_of(body))}


def _without_empty_tool_calls(message: Message) -> Message:
    if "tool_calls" not in message or message["tool_calls"]:
        return message
    return {key: value for key, value in message.items() if key != "tool_calls"}


def with_chat_template_kwargs(body: Body, configured: Mapping[str, object] | None) -> Body:
    """Chat template arguments of the configuration, of `metadata.chat_template_kwargs` and of the request.

    Later ones win, key by key.
    The result holds copies: a request must not change the configuration of the next one. Raises RequestError.
    """
    merged = {
        **_copied(configured),
        **_from_metadata(body, "chat_template_kwargs"),
        **cast("Mapping[str, object]", body.get("chat_template_kwargs") or {}),
    }
    rest = {key: value for key, value in body.items() if key != "chat_template_kwargs"}
    return {**rest, "chat_template_kwargs": merged} if merged else rest


def with_extra_body(body: Body, configured: Mapping[str, object] | None) -> Body:
    """Fields of the configuration and of `metadata.extra_body` under the request's own.

    What the request sets wins, but an explicit null sets nothing: many clients dump their unset fields as
    nulls, and those must not switch off what the training run configured. Raises RequestError.
    """
    from_request = _from_metadata(body, "extra_body")
    for name in RESERVED_EXTRA_FIELDS & from_request.keys():
        raise RequestError(f"metadata.extra_body may not set {name}", param="metadata.extra_body")
    extra = {**_copied(configured), **from_request}
    if any(body.get(name) is not None for name in BUDGET_FIELDS):
        # Two names for one thing, of which the engine would take the other.
        extra = {key: value for key, value in extra.items() if key not in BUDGET_FIELDS}
    own = {key: value for key, value in body.items() if value is not None or key not in extra}
    arguments = extra.get("chat_template_kwargs")
    if isinstance(arguments, Mapping) and isinstance(own.get("chat_template_kwargs"), Mapping):
        own["chat_template_kwargs"] = {
            **arguments,
            **cast("Mapping[str, object]", own["chat_template_kwargs"]),
        }
    return {**extra, **own}


def with_token_id_request(body: Body) -> Body:
    """vLLM's way to return the sampled ids: as the `token` texts of the logprobs.

    The values are pinned, whatever came in: with more than zero alternatives, or without logprobs, there is
    no id.
    """
    return {**body, "logprobs": True, "top_logprobs": 0, "return_tokens_as_token_ids": True}


def without_null(body: Body, key: str) -> Body:
    return {name: value for name, value in body.items() if name != key or value is not None}


def without_idle_tool_choice(body: Body) -> Body:
    """Without tools, `tool_choice` and `parallel_tool_calls` say nothing, and engines refuse them.

    Raises RequestError when `tool_choice` asks for a call.
    """
    if body.get("tools"):
        return body
    choice = body.get("tool_choice")
    if choice == "required" or isinstance(choice, Mapping):
        raise RequestError(
            "tool_choice asks for a call, which requires at least one tool in tools", param="tool_choice"
        )
    return {
        key: value
        for key, value in body.items()
        if key not in ("tools", "tool_choice", "parallel_tool_calls")
    }


def with_budget(body: Body, max_new_tokens: int) -> Body:
    """The same request for at most `max_new_tokens`, under whichever of the two names it used."""
    rest = {key: value for key, value in body.items() if key not in BUDGET_FIELDS}
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    return {**rest, name: max_new_tokens}


def require_one_choice(body: Mapping[str, object]) -> None:
    """With token ids, one choice: there is one place for one turn's ids. Raises RequestError."""
    n = body.get("n")
    if n is not None and n != 1:
        raise RequestError(
            f"n must be 1 while return_token_id_information is on, got {n}: send one request per sample",
            param="n",
        )


def _copied(configured: Mapping[str, object] | None) -> dict[str, object]:
    """A deep copy; `copy.deepcopy` alone takes five times as long where the values are numbers and texts."""
    nested = (dict, list)
    return {
        name: copy.deepcopy(value) if isinstance(value, nested) else value
        for name, value in (configured or {}).items()
    }


def _from_metadata(body: Mapping[str, object], key: str) -> dict[str, object]:
    """The JSON object in `metadata[key]`: metadata values are strings in the OpenAI API."""
    metadata = body.get("metadata")
    raw = metadata.get(key) if isinstance(metadata, Mapping) else None
    if raw is None:
        return {}
    try:
        value = orjson.loads(raw) if isinstance(raw, str) else raw
    except orjson.JSONDecodeError as error:
        raise RequestError(
            f"metadata.{key} must be a JSON object written as a string, but it is not JSON ({error.msg} at character "
            f"{error.pos})",
            param=f"metadata.{key}",
        ) from error
    if not isinstance(value, dict):
        raise RequestError(
            f"metadata.{key} must be a JSON object written as a string, got JSON of type {type(value).__name__}",
            param=f"metadata.{key}",
        )
    return value
