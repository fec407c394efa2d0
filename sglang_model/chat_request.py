"""What `transport: chat` changes in an outgoing chat body, and in the choices that come back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from nemo_gym.grown_list import mapped
from nemo_gym.token_metadata import TOKEN_FIELDS
from vllm_model.chat_body import Body, Message, messages_of
from vllm_model.engine_answer import message_of

CARRIED_FIELDS = (*TOKEN_FIELDS, "routed_experts")
"""What a message of an earlier turn carries for the trainer."""

VLLM_TOKEN_ID_FIELDS = ("logprobs", "top_logprobs", "return_tokens_as_token_ids")

ANSWER_FIELDS = ("logprobs", "prompt_token_ids", "response_token_ids", "meta_info")
"""What a choice carries in order that the triple can be read from it; gone once it has been."""


def with_sglang_token_id_request(body: Body) -> Body:
    """SGLang's way to return ids: the prompt's in the choice, the sampled ones in its `meta_info` (SGLang 0.5.13).

    `logprobs` stays on from vLLM's way, because `meta_info` has no sampled ids without it.
    """
    asked = {key: value for key, value in body.items() if key != "return_tokens_as_token_ids"}
    return {**asked, "return_meta_info": True, "return_prompt_token_ids": True}


def without_vllm_token_id_request(body: Body) -> Body:
    """For `/generate`, which always returns ids and logprobs and knows none of chat's words for asking."""
    return {key: value for key, value in body.items() if key not in VLLM_TOKEN_ID_FIELDS}


def without_nulls(body: Body) -> Body:
    """The fields that say something.

    SGLang's chat refuses `n`, the penalties and every switch that are null (0.5.13, 0.5.23), and clients that dump
    their unset fields send them so.
    """
    return {key: value for key, value in body.items() if value is not None}


def rendered_tools(body: Mapping[str, object]) -> list[Mapping[str, object]] | None:
    """The tools that the prompt shows, as SGLang's chat does it.

    None when `tool_choice` forbids calls, and the one that it names when it names one.
    """
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not isinstance(tools, list) or not tools or choice == "none":
        return None
    named = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(named, Mapping):
        return tools
    return [tool for tool in tools if _name_of(tool) == named.get("name")] or None


def hides_special_tokens(body: Mapping[str, object]) -> bool:
    """Whether control tokens are left out of the text, as SGLang's chat does it: not where calls may be among them."""
    return body.get("skip_special_tokens") is not False and rendered_tools(body) is None


def _name_of(tool: Mapping[str, object]) -> object:
    function = tool.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def rendering_kwargs(body: Mapping[str, object]) -> dict[str, object]:
    """The chat template's arguments; SGLang hands `reasoning_effort` to the template as one of them."""
    kwargs = dict(cast("Mapping[str, object]", body.get("chat_template_kwargs") or {}))
    effort = body.get("reasoning_effort")
    return {"reasoning_effort": effort, **kwargs} if effort is not None else kwargs


def requested_stop_ids(body: Mapping[str, object]) -> list[int]:
    """Stop token ids that the request itself added."""
    ids = body.get("stop_token_ids")
    return [token_id for token_id in ids if type(token_id) is int] if isinstance(ids, list) else []


def is_only_text(messages: Sequence[Message]) -> bool:
    """Whether every part of every message is text, as a prompt of ids can hold it."""
    return all(mapped(_is_only_text, messages))


def _is_only_text(message: Message) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else ()
    return all(isinstance(part, Mapping) and part.get("type", "text") == "text" for part in parts)


def without_carried_token_ids(body: Body) -> Body:
    """The messages without the ids of earlier turns: SGLang ignores them there, and they grow with every turn."""
    return {**body, "messages": mapped(_without_carried_token_ids, messages_of(body))}


def _without_carried_token_ids(message: Message) -> Message:
    if not any(field in message for field in CARRIED_FIELDS):
        return message
    return {key: value for key, value in message.items() if key not in CARRIED_FIELDS}


def with_refusals_as_text(body: Body) -> Body:
    """The assistant's refusals as the text that they are: SGLang's chat knows no such part and shows nothing of it."""
    return {**body, "messages": mapped(_with_refusals_as_text, messages_of(body))}


def _with_refusals_as_text(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, list):
        return message
    return {**message, "content": [_as_text(part) for part in content]}


def _as_text(part: object) -> object:
    if isinstance(part, Mapping) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


def without_forged_token_ids(choice: Body) -> None:
    """Drop ids that stand in the engine's message itself, in place, which no check has read."""
    message = message_of(choice)
    for field in CARRIED_FIELDS:
        message.pop(field, None)


def tidy_tool_calls(choice: Body) -> None:
    """No call is no call, in place.

    When the tool parser fires and finds nothing it can use, SGLang 0.5.13 answers finish_reason "tool_calls" with an
    empty list and leaves the markup in the content; 0.5.23 says "stop" and sends no list.
    """
    message = message_of(choice)
    if message.get("tool_calls"):
        return
    message.pop("tool_calls", None)
    if choice.get("finish_reason") == "tool_calls":
        choice["finish_reason"] = "stop"
