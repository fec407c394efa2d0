"""What a chat message holds, in the pieces that Responses items are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nemo_gym.converter_errors import unsupported
from nemo_gym.errors import RequestError
from nemo_gym.responses_items import NeMoGymResponseFunctionToolCall
from nemo_gym.responses_parts import NeMoGymContent, NeMoGymResponseOutputRefusal, NeMoGymResponseOutputText
from nemo_gym.tagged_union import described, field_of, part_type


def own_reasoning(message: Mapping[str, object]) -> list[str]:
    """Reasoning in a field of its own, as engines with a parser answer; the two names mean the same."""
    found = message.get("reasoning_content") or message.get("reasoning")
    return [found] if isinstance(found, str) else []


def assistant_text(content: object, where: str) -> str:
    """All the text of an assistant's content; a refusal's too, because the assistant said it."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise unsupported(where, described(content), "a string or a list of parts")
    return "".join(_assistant_part_text(part, f"{where}.{index}") for index, part in enumerate(content))


def _assistant_part_text(part: object, where: str) -> str:
    kind = part_type(part)
    if kind not in {"output_text", "input_text", "text", "refusal"}:
        raise unsupported(where, f"content part {kind} of an assistant", "output_text or refusal")
    text = field_of(part, "refusal" if kind == "refusal" else "text")
    return text if isinstance(text, str) else ""


def function_calls(message: Mapping[str, object], where: str) -> list[NeMoGymResponseFunctionToolCall]:
    """One item per tool call of a chat message, in order. A null list, an empty one and none are the same."""
    calls = message.get("tool_calls")
    if calls is None:
        return []
    if not isinstance(calls, Sequence):
        raise unsupported(f"{where}.tool_calls", described(calls), "a list of function calls")
    return [_function_call(call, f"{where}.tool_calls.{index}") for index, call in enumerate(calls)]


def _function_call(call: object, where: str) -> NeMoGymResponseFunctionToolCall:
    function = field_of(call, "function")
    call_id, name, arguments = (
        field_of(call, "id"),
        field_of(function, "name"),
        field_of(function, "arguments"),
    )
    if not (isinstance(call_id, str) and call_id and isinstance(name, str) and isinstance(arguments, str)):
        expected = "a function call with id (not empty), function.name and function.arguments, all strings"
        raise RequestError(f"{where}: expected {expected}", param=where)
    return NeMoGymResponseFunctionToolCall(
        name=name, arguments=arguments, call_id=call_id, id=call_id, status="completed", type="function_call"
    )


def output_parts(text: str, refusal: object, *, required: bool) -> list[NeMoGymContent]:
    """What the message item holds; an empty text if there must be a message item to carry the turn."""
    refused = refusal if isinstance(refusal, str) else ""
    parts: list[NeMoGymContent] = []
    if text or (required and not refused):
        parts.append(NeMoGymResponseOutputText(text=text, annotations=[], type="output_text"))
    if refused:
        parts.append(NeMoGymResponseOutputRefusal(refusal=refused, type="refusal"))
    return parts
