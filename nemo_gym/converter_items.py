"""Responses items -> chat messages.

What has no counterpart in a chat request is refused by name and position; nothing is dropped unseen, and
the caller's objects are never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from nemo_gym.chat_types import (
    NeMoGymChatCompletionContentPartImageParam,
    NeMoGymChatCompletionContentPartParam,
    NeMoGymChatCompletionContentPartTextParam,
    NeMoGymChatCompletionDeveloperMessageParam,
    NeMoGymChatCompletionMessageToolCallFunctionParam,
    NeMoGymChatCompletionMessageToolCallParam,
    NeMoGymChatCompletionSystemMessageParam,
    NeMoGymChatCompletionToolMessageParam,
    NeMoGymChatCompletionUserMessageParam,
    NeMoGymImageURL,
)
from nemo_gym.converter_errors import unsupported
from nemo_gym.converter_message import assistant_text, function_calls, own_reasoning
from nemo_gym.converter_state import ResponsesConverterState
from nemo_gym.errors import RequestError
from nemo_gym.reasoning import wrap_reasoning_in_think_tags
from nemo_gym.responses_items import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
    NeMoGymToolMessage,
)
from nemo_gym.responses_parts import NeMoGymInputPart, NeMoGymResponseInputImage, NeMoGymResponseInputText
from nemo_gym.tagged_union import described, field_of, part_type
from nemo_gym.token_metadata import token_metadata_of


def add_item(item: object, state: ResponsesConverterState, where: str) -> None:
    """Put one input item into the state."""
    if isinstance(item, NeMoGymFunctionCallOutput):
        _add_tool_output(item.call_id, item.output, state, f"{where}.output")
    elif isinstance(item, NeMoGymToolMessage):
        _add_tool_output(item.tool_call_id, item.content, state, f"{where}.content")
    elif isinstance(item, (NeMoGymEasyInputMessage, NeMoGymMessage)) and item.role != "assistant":
        _add_message(item, state, where)
    else:
        _add_assistant_item(item, state, where)


def _add_assistant_item(item: object, state: ResponsesConverterState, where: str) -> None:
    """Add to the turn being collected. Token ids close it: they sit on a turn's last item."""
    state.begin_assistant_item()
    if isinstance(item, (NeMoGymEasyInputMessage, NeMoGymResponseOutputMessage)):
        extra = item.model_extra or {}  # left there in the Chat API's manner
        state.content_buffer += wrap_reasoning_in_think_tags(own_reasoning(extra))
        state.content_buffer += assistant_text(item.content, f"{where}.content")
        inline = function_calls(extra, where)
        state.tool_calls_buffer.extend(_tool_call(call) for call in inline)
        state.assistant_item_buffered = True
    elif isinstance(item, NeMoGymResponseReasoningItem):
        state.content_buffer += wrap_reasoning_in_think_tags(_reasoning_texts(item))
    elif isinstance(item, NeMoGymResponseFunctionToolCall):
        state.tool_calls_buffer.append(_tool_call(item))
    else:
        expected = "message, reasoning, function_call or function_call_output"
        raise unsupported(where, f"item type {described(field_of(item, 'type'))}", expected)
    tokens = token_metadata_of(item)
    if tokens is not None:
        state.token_information = tokens
        state.assistant_item_buffered = True


def _add_message(
    item: NeMoGymEasyInputMessage | NeMoGymMessage, state: ResponsesConverterState, where: str
) -> None:
    """A message that was not sampled ends the assistant's turn; ids on it belong to no turn."""
    state.flush_assistant()
    content = chat_content(item.content, f"{where}.content")
    if item.role == "user":
        state.messages.append(NeMoGymChatCompletionUserMessageParam(role="user", content=content))
    elif item.role == "system":
        state.messages.append(NeMoGymChatCompletionSystemMessageParam(role="system", content=content))
    else:
        state.messages.append(NeMoGymChatCompletionDeveloperMessageParam(role="developer", content=content))


def _add_tool_output(
    call_id: str, output: str | Sequence[object], state: ResponsesConverterState, where: str
) -> None:
    state.flush_assistant()
    content = chat_content(output, where, text_only=True)
    message = NeMoGymChatCompletionToolMessageParam(role="tool", content=content, tool_call_id=call_id)
    state.messages.append(message)


def _reasoning_texts(item: NeMoGymResponseReasoningItem) -> list[str]:
    """The summary, as this project's own answers carry it; failing that the reasoning text of other
    servers.
    """
    summary = [part.text for part in item.summary if part.text]
    return summary or [part.text for part in item.content or ()]


def _tool_call(call: NeMoGymResponseFunctionToolCall) -> NeMoGymChatCompletionMessageToolCallParam:
    function = NeMoGymChatCompletionMessageToolCallFunctionParam(name=call.name, arguments=call.arguments)
    return NeMoGymChatCompletionMessageToolCallParam(id=call.call_id, function=function, type="function")


def chat_content(
    content: str | Sequence[object], where: str, *, text_only: bool = False
) -> str | list[NeMoGymChatCompletionContentPartParam]:
    """Content of a user, system, developer or tool message; strings stay strings, parts become chat parts."""
    if isinstance(content, str):
        return content
    return [_chat_part(part, f"{where}.{index}", text_only) for index, part in enumerate(content)]


def _chat_part(part: object, where: str, text_only: bool) -> NeMoGymChatCompletionContentPartParam:
    kind = part_type(part)
    if kind in {"input_text", "output_text"}:
        return NeMoGymChatCompletionContentPartTextParam(type="text", text=str(field_of(part, "text")))
    if kind == "input_image" and not text_only:
        return _image_part(part, where)
    raise unsupported(
        where, f"content part {kind}", "input_text" if text_only else "input_text or input_image"
    )


def _image_part(part: object, where: str) -> NeMoGymChatCompletionContentPartImageParam:
    url = field_of(part, "image_url")
    if not isinstance(url, str) or not url:
        raise RequestError(
            f"{where}.image_url: an image needs a URL or a data URI", param=f"{where}.image_url"
        )
    detail = field_of(part, "detail")
    image = NeMoGymImageURL(url=url, detail=detail if isinstance(detail, str) else "auto")
    return NeMoGymChatCompletionContentPartImageParam(type="image_url", image_url=image)


def text_of_parts(content: object) -> str | None:
    """The text of a chat message's content, or None if it holds anything else than text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or any(part_type(part) != "text" for part in content):
        return None
    return "".join(str(field_of(part, "text")) for part in content)


def input_content(content: object, where: str) -> str | list[NeMoGymInputPart]:
    """The reverse of `chat_content`: a chat message's content as the Responses API writes it; null is no
    text.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise unsupported(where, described(content), "a string, a list of parts or null")
    return [_input_part(part, f"{where}.{index}") for index, part in enumerate(content)]


def _input_part(part: object, where: str) -> NeMoGymInputPart:
    kind = part_type(part)
    if kind in {"text", "input_text"}:
        return NeMoGymResponseInputText(type="input_text", text=str(field_of(part, "text")))
    if kind == "image_url":
        image = field_of(part, "image_url")
        url, detail = field_of(image, "url"), field_of(image, "detail")
        if isinstance(url, str):
            detail = detail if isinstance(detail, str) else "auto"
            return NeMoGymResponseInputImage(type="input_image", image_url=url, detail=detail)
    raise unsupported(where, f"content part {kind}", "text or image_url")
