"""Between Anthropic's Messages API and the Responses API, in both directions, purely.

Token ids have no place in Anthropic's dialect: an agent that speaks it trains through the session on the
server's side, so what it sends back must be recognisable as what it got. Hence nothing is invented, and the
items have the order of the blocks. An engine does not see all of that order: a chat message has one content
and its calls behind it, so an assistant's `[text a, tool_use, text b]` reaches the engine as content `ab` and
the call. No answer of this server has text behind a call, so only turns from elsewhere lose that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import orjson

from nemo_gym.anthropic_types import (
    AnthropicContent,
    AnthropicMessage,
    AnthropicRequest,
    AnthropicTool,
    AnthropicToolChoice,
    AnthropicUsage,
    Block,
    ImageBlock,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from nemo_gym.errors import RequestError, UpstreamContractError
from nemo_gym.openai_utils import (
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseReasoningItem,
)
from nemo_gym.request_body import validate_object

Json = dict[str, object]

RAW_ARGUMENTS: Final = "__raw_arguments__"
"""Key under which arguments travel that are not a JSON object: models make such, and Anthropic has only
objects.
"""


def anthropic_request_to_responses(request: AnthropicRequest) -> NeMoGymResponseCreateParamsNonStreaming:
    """Return `request` as a Responses request. Raises RequestError for what has no counterpart there."""
    params: Json = {"input": [item for _, item in _placed_items(request)]}
    optional: Json = {
        "instructions": _system(request),
        "model": request.model,
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
        "tools": [_tool(tool) for tool in request.tools] if request.tools else None,
        "user": request.metadata.user_id if request.metadata else None,
        **_tool_choice(request.tool_choice),
    }
    params.update((name, value) for name, value in optional.items() if value is not None)
    return validate_object(params, NeMoGymResponseCreateParamsNonStreaming)


def in_callers_fields(error: RequestError, request: AnthropicRequest) -> RequestError:
    """Return `error`, about the Responses request made of `request`, under the field that the caller sent.

    The block or the message that the item was made of; what is wrong inside of it, the message says.
    """
    param = error.param or ""
    head, _, rest = param.partition(".")
    if head != "input":
        return error
    index = rest.partition(".")[0]
    places = [place for place, _ in _placed_items(request)]
    known = index.isdecimal() and int(index) < len(places)
    place = places[int(index)] if known else "messages"
    return RequestError(error.message.replace(param, place, 1), param=place, code=error.code)


def responses_to_anthropic_response(response: NeMoGymResponse, *, model: str) -> AnthropicMessage:
    """Return `response` as an Anthropic message under the name `model`."""
    content = [block for item in response.output for block in _content(item)]
    return {
        "id": f"msg_{response.id.removeprefix('resp_')}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _stop_reason(response, content),
        "stop_sequence": None,
        "usage": _usage(response),
    }


def _system(request: AnthropicRequest) -> str | None:
    if request.system is None or isinstance(request.system, str):
        return request.system
    return "\n".join(block.text for block in request.system)


def _placed_items(request: AnthropicRequest) -> Iterator[tuple[str, Json]]:
    """Yield the input items, each with the place in the request that it was made of."""
    for index, message in enumerate(request.messages):
        yield from _items(message.role, message.content, f"messages.{index}.content")


def _items(role: str, content: str | list[Block], path: str) -> Iterator[tuple[str, Json]]:
    """Yield the items of one message; neighbouring text and image blocks are one of them."""
    if isinstance(content, str) or not content:
        yield path, {"type": "message", "role": role, "content": content or ""}
        return
    parts: list[Json] = []
    for index, block in enumerate(content):
        where = f"{path}.{index}"
        _check_role(role, block, where)
        if isinstance(block, TextBlock | ImageBlock):
            parts.append(_part(role, block, where))
            continue
        if parts:
            yield path, _message(role, parts)
            parts = []
        yield where, _item(block, where)
    if parts:
        yield path, _message(role, parts)


def _check_role(role: str, block: Block, where: str) -> None:
    allowed = (
        (TextBlock, ThinkingBlock, ToolUseBlock)
        if role == "assistant"
        else (TextBlock, ImageBlock, ToolResultBlock)
    )
    if not isinstance(block, allowed):
        raise RequestError(
            f"{where}: a {block.type} block cannot be in a message of role {role}", param=where
        )


def _message(role: str, parts: list[Json]) -> Json:
    only_text = len(parts) == 1 and "text" in parts[0]
    return {"type": "message", "role": role, "content": parts[0]["text"] if only_text else parts}


def _part(role: str, block: TextBlock | ImageBlock, where: str) -> Json:
    if isinstance(block, TextBlock):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": block.text}
    source = block.source
    if source.type == "url" and source.url:
        return {"type": "input_image", "image_url": source.url, "detail": "auto"}
    if source.type == "base64" and source.data and source.media_type:
        url = f"data:{source.media_type};base64,{source.data}"
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    needed = "url" if source.type == "url" else "media_type and data"
    raise RequestError(f"{where}.source: a {source.type} source needs {needed}", param=f"{where}.source")


def _item(block: ToolUseBlock | ToolResultBlock | ThinkingBlock, where: str) -> Json:
    if isinstance(block, ToolUseBlock):
        return {
            "type": "function_call",
            "call_id": block.id,
            "name": block.name,
            "arguments": _arguments(block.input, f"{where}.input"),
        }
    if isinstance(block, ToolResultBlock):
        return {"type": "function_call_output", "call_id": block.tool_use_id, "output": _output(block, where)}
    return {
        "type": "reasoning",
        "id": f"rs_{where.replace('.', '_')}",
        "summary": [{"type": "summary_text", "text": block.thinking}],
        "encrypted_content": block.signature or None,
    }


def _output(block: ToolResultBlock, where: str) -> str | list[Json]:
    """Return a tool's answer as text, or as parts when there is an image in it."""
    if block.content is None or isinstance(block.content, str):
        return block.content or ""
    texts = [part.text for part in block.content if isinstance(part, TextBlock)]
    if len(texts) == len(block.content):
        return "\n".join(texts)
    return [_part("user", part, f"{where}.content.{index}") for index, part in enumerate(block.content)]


def _arguments(value: Json, where: str) -> str:
    raw = value.get(RAW_ARGUMENTS)
    if isinstance(raw, str) and len(value) == 1:
        return raw
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise RequestError(f"{where}: its nesting depth is over 254 levels", param=where) from None


def _tool(tool: AnthropicTool) -> Json:
    function: Json = {"type": "function", "name": tool.name, "parameters": tool.input_schema}
    return function if tool.description is None else function | {"description": tool.description}


def _tool_choice(choice: AnthropicToolChoice | None) -> Json:
    if choice is None:
        return {}
    if choice.type == "tool" and not choice.name:
        raise RequestError(
            "tool_choice.name: is required when tool_choice.type is tool", param="tool_choice.name"
        )
    named: Json = {"type": "function", "name": choice.name}
    modes: dict[str, object] = {"auto": "auto", "any": "required", "none": "none", "tool": named}
    parallel: Json = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    return {"tool_choice": modes[choice.type], **parallel}


def _content(item: object) -> Iterator[AnthropicContent]:
    if isinstance(item, NeMoGymResponseOutputMessage):
        for part in item.content:
            yield {"type": "text", "text": part.text if part.type == "output_text" else part.refusal}
    elif isinstance(item, NeMoGymResponseReasoningItem):
        texts = [part.text for part in item.summary] or [part.text for part in item.content or ()]
        for text in texts:
            yield {"type": "thinking", "thinking": text, "signature": item.encrypted_content or ""}
    elif isinstance(item, NeMoGymResponseFunctionToolCall):
        yield {
            "type": "tool_use",
            "id": item.call_id,
            "name": item.name,
            "input": _tool_input(item.arguments),
        }
    else:
        kind = getattr(item, "type", type(item).__name__)
        raise UpstreamContractError(f"an output item of type {kind} has no form in Anthropic's Messages API")


def _tool_input(arguments: str) -> Json:
    """Return the object that Anthropic wants; what is none, or too deep to be written again, stays readable
    inside of one.
    """
    try:
        value: object = orjson.loads(arguments or "{}")
        orjson.dumps(value)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        value = None
    return value if isinstance(value, dict) else {RAW_ARGUMENTS: arguments}


def _stop_reason(response: NeMoGymResponse, content: list[AnthropicContent]) -> StopReason:
    reason = response.incomplete_details.reason if response.incomplete_details else None
    if reason == "max_output_tokens":
        return "max_tokens"
    if reason == "content_filter":
        return "refusal"
    return "tool_use" if any(block["type"] == "tool_use" for block in content) else "end_turn"


def _usage(response: NeMoGymResponse) -> AnthropicUsage | None:
    usage = response.usage
    return (
        None if usage is None else {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    )
