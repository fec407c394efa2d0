"""Reasoning between two conventions: `<think>` spans inside the content, as agents carry it, and the engine's field.

Inbound history has spans; an engine with a reasoning parser wants `reasoning_content` (SGLang, older vLLM) or
`reasoning` (newer vLLM), so both are set. Its answers have the field; agents get the span back. No text may be lost on
either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from nemo_gym.errors import UpstreamContractError
from nemo_gym.grown_list import mapped
from nemo_gym.reasoning import extract_reasoning_from_content, wrap_reasoning_in_think_tags
from vllm_model.chat_body import Body, Message, messages_of

REASONING_FIELDS = ("reasoning_content", "reasoning")


def with_reasoning_fields(body: Body, *, keep: bool) -> Body:
    """The assistant messages' think spans moved into the reasoning fields, or removed when `keep` is false."""
    split = partial(split_message, keep=keep)
    return {**body, "messages": mapped(split, messages_of(body), key=(split_message, keep))}


def wrap_choice_reasoning(message: Message, *, uses_reasoning_parser: bool, server: str) -> None:
    """Move the engine's reasoning into a think span in front of the content, in place.

    Raises UpstreamContractError when reasoning comes although the configuration says that the engine has no parser:
    dropping it would hide sampled text from the agent.
    """
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    if reasoning is None:
        for name in REASONING_FIELDS:
            message.pop(name, None)
        return
    if not uses_reasoning_parser:
        raise UpstreamContractError(
            f"{server}: the engine returned {' or '.join(REASONING_FIELDS)}, but uses_reasoning_parser is false. Set "
            "uses_reasoning_parser: true, or start the engine without a reasoning parser"
        )
    content = message.get("content") or ""
    if not isinstance(reasoning, str) or not isinstance(content, str):
        raise UpstreamContractError(
            f"{server}: expected the engine's reasoning and content to be texts, got {type(reasoning).__name__} and "
            f"{type(content).__name__}"
        )
    for name in REASONING_FIELDS:
        message.pop(name, None)
    message["content"] = f"{wrap_reasoning_in_think_tags([reasoning])}{content}"


def split_message(message: Message, *, keep: bool) -> Message:
    """One message as `with_reasoning_fields` has it."""
    if message.get("role") != "assistant":
        return message
    content = message.get("content")
    if isinstance(content, str):
        spans, rest = extract_reasoning_from_content(content)
        new_content: object = rest
    elif isinstance(content, list):
        spans, new_content = _split_parts(content)
    else:
        return message
    if not spans:
        return message
    split: Message = {**message, "content": new_content}
    if keep:
        joined = "\n".join(spans)
        split.update(dict.fromkeys(REASONING_FIELDS, joined))
    return split


def _split_parts(parts: list[object]) -> tuple[list[str], list[object]]:
    """Only text parts can hold spans; a refusal, or a part of another kind, stays as it is."""
    spans: list[str] = []
    rest: list[object] = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(part, Mapping) or not isinstance(text, str):
            rest.append(part)
            continue
        found, remaining = extract_reasoning_from_content(text)
        spans.extend(found)
        rest.append({**part, "text": remaining} if found else part)
    return spans, rest
