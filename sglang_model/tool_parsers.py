"""Tool calls out of a sampled text, and into the messages that a chat template renders.

The engine's `/generate` returns text; an agent wants OpenAI tool calls. What the model attempted is data
here: every attempt is reported with its text, one that is no call stays in the content word for word, and
nothing raises for what a model wrote. Pure: knows neither tokens nor HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from sglang_model.argument_types import DeclaredTools
from sglang_model.strict_json import decode
from sglang_model.tool_formats import ToolFormat, tool_format
from sglang_model.tool_formats.segments import ParseStatus, Segment


class FunctionCall(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    """A tool call of the OpenAI Chat API; `arguments` is the strict JSON of an object."""

    id: str
    type: Literal["function"]
    function: FunctionCall


@dataclass(frozen=True, slots=True)
class ParseAttempt:
    """One attempted call: how it ended and the text of its block.

    `name` and `call_id` are there when it became a call. `repaired` says that a tag of the block was
    missing. Calls that share a block share its `raw`.
    """

    status: ParseStatus
    raw: str
    name: str | None = None
    call_id: str | None = None
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class ParsedToolCalls:
    """The calls in the order sampled, the text around them, and every attempt."""

    tool_calls: tuple[ToolCall, ...]
    content: str
    report: tuple[ParseAttempt, ...]


def parse_tool_calls(
    text: str,
    *,
    format_name: str,
    tools: Iterable[object] | None = None,
    parallel_tool_calls: bool | None = None,
    finished: bool = True,
) -> ParsedToolCalls:
    """Takes the tool calls of a format out of a text; ConfigError for an unknown format name.

    `tools` are the request's: they type the arguments of markup formats, and a call to none of them is kept
    and reported. `finished` is false when the token budget ended the generation: a block without its end is
    then not executed.
    """
    chosen, declared = tool_format(format_name), DeclaredTools(tools)
    segments = chosen.parse(text, declared, finished=finished)
    return collect(segments, chosen, declared, parallel_tool_calls=parallel_tool_calls)


def collect(
    segments: Sequence[Segment],
    chosen: ToolFormat,
    tools: DeclaredTools,
    *,
    parallel_tool_calls: bool | None = None,
) -> ParsedToolCalls:
    """Turns segments into calls, content and report.

    All calls are kept under `parallel_tool_calls: false` too, the later ones reported: the model did sample
    them, so a turn without them would be answered, and trained on, as something it was not. The content is
    the text verbatim; once calls are taken out of it, the whitespace at its ends was layout around them and
    goes, as in SGLang.
    """
    tool_calls: list[ToolCall] = []
    report: list[ParseAttempt] = []
    used_ids: set[str] = set()
    for segment in segments:
        if segment.status is not None and not segment.calls:
            report.append(ParseAttempt(segment.status, segment.raw))
        for call in segment.calls:
            call_id = chosen.new_call_id(None if call.call_id in used_ids else call.call_id)
            used_ids.add(call_id)
            status = ParseStatus.OK
            if tools.rejects(call.name):
                status = ParseStatus.UNKNOWN_TOOL
            elif tool_calls and parallel_tool_calls is False:
                status = ParseStatus.SECOND_CALL
            report.append(ParseAttempt(status, segment.raw, call.name, call_id, segment.repaired))
            function = FunctionCall(name=call.name, arguments=call.arguments)
            tool_calls.append(ToolCall(id=call_id, type="function", function=function))
    return ParsedToolCalls(tuple(tool_calls), _content(segments), tuple(report))


def _content(segments: Sequence[Segment]) -> str:
    rest = [segment for segment in segments if not segment.calls]
    if len(rest) == len(segments):
        return "".join(segment.raw for segment in rest)
    failed = [index for index, segment in enumerate(rest) if segment.status is not None]
    first, last = (failed[0], failed[-1] + 1) if failed else (len(rest), len(rest))
    head, middle, tail = (
        "".join(segment.raw for segment in part) for part in (rest[:first], rest[first:last], rest[last:])
    )
    return head.lstrip() + middle + tail.rstrip() if failed else head.strip()


def parse_qwen3_coder_tool_calls(text: str, tools: Iterable[object] | None) -> tuple[list[ToolCall], str]:
    """The calls of a finished generation in qwen3_coder's format, and the text around them."""
    parsed = parse_tool_calls(text, format_name="qwen3_coder", tools=tools)
    return list(parsed.tool_calls), parsed.content


def normalize_tool_call_arguments(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """Messages whose tool calls carry arguments as objects, because templates iterate over them.

    Only a string that is the strict JSON of an object is replaced, in a copy; the input and everything else
    stay as they are.
    """
    return [_with_object_arguments(message) for message in messages]


def _with_object_arguments(message: Mapping[str, object]) -> Mapping[str, object]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple) or not calls:
        return message
    return {**message, "tool_calls": [_normalize_call(call) for call in calls]}


def _normalize_call(call: object) -> object:
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": _decode_arguments(function)}
    return _decode_arguments(call)


def _decode_arguments(function: Mapping[str, object]) -> Mapping[str, object]:
    arguments = function.get("arguments")
    decoded = decode(arguments) if isinstance(arguments, str) else None
    if decoded is None or not isinstance(decoded.value, dict):
        return function
    return {**function, "arguments": decoded.value}
