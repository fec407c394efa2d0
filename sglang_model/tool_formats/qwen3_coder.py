"""qwen3_coder: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`.

Values are raw text between two newlines; the tool's schema gives the type. What models leave out and what is
still read as a call: the opening `<tool_call>` (common), the closing one, `</function>` after a closed
parameter, and a `</parameter>` before the next declared parameter or the end of the function.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from sglang_model.argument_types import DeclaredTools
from sglang_model.strict_json import JsonValue, encode
from sglang_model.tool_formats.segments import ParseStatus, SampledCall, Segment
from sglang_model.tool_formats.tags import Kind, TagList

_TAGS = re.compile(r"</?tool_call>|<function=[^<>\n]*>|</function>|<parameter=[^<>\n]*>|</parameter>")
_CLOSING = "</tool_call>"
_KINDS: Mapping[str, Kind] = {
    "<tool_call": "block",
    "</tool_call": "/block",
    "<function": "function",
    "</function": "/function",
    "<parameter": "parameter",
    "</parameter": "/parameter",
}


def parse_qwen3_coder(text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]:
    """Cuts `text` at every function element, with or without its wrapper."""
    tags = TagList(text, _TAGS, _KINDS)
    reader = _Reader(tags, tools, finished=finished)
    segments: list[Segment] = []
    cursor = 0
    for index in range(len(tags)):
        start = tags.start(index)
        if start < cursor or tags.kind(index) not in ("block", "function"):
            continue
        if start > cursor:
            segments.append(Segment(text[cursor:start]))
        segments.append(reader.read_block(index))
        cursor = start + len(segments[-1].raw)
    if cursor < len(text):
        segments.append(Segment(text[cursor:]))
    return segments


@dataclass(slots=True)
class _Function:
    """A function element while it is read: reading has come to `position`, the next tag is at `index`."""

    name: str
    index: int
    position: int
    arguments: dict[str, JsonValue] = field(default_factory=dict)
    closed: bool = False
    repaired: bool = False


class _Reader:
    """Reads the blocks of one text.

    Remembers the tags from which no value finds an end, so that a model stuck in a loop of openings costs
    linear time.
    """

    def __init__(self, tags: TagList, tools: DeclaredTools, *, finished: bool) -> None:
        self._tags = tags
        self._tools = tools
        self._finished = finished
        self._endless: set[int] = set()

    def read_block(self, index: int) -> Segment:
        """Reads the block at the tag `index`, a `<tool_call>` or a bare `<function=...>`."""
        tags = self._tags
        wrapped = tags.kind(index) == "block"
        if wrapped and not tags.is_followed_by(index, "function"):
            return self._broken(index, index + 1, ParseStatus.INVALID_MARKUP)
        function = self._read_function(index + wrapped)
        if isinstance(function, ParseStatus):
            return self._broken(index, index + wrapped + 1, function)
        end, closed = function.position, function.closed and not wrapped
        if tags.kind(function.index) == "/block" and tags.is_blank(end, function.index):
            end, closed = tags[function.index].end, True
        if not closed and not self._finished and _CLOSING.startswith(tags.text[end:].strip()):
            return Segment(tags.text[tags.start(index) :], ParseStatus.UNCLOSED_BLOCK)
        raw = tags.text[tags.start(index) : end]
        if not function.name:
            return Segment(raw, ParseStatus.MISSING_NAME)
        repaired = function.repaired or not (wrapped and closed and function.closed)
        call = SampledCall(function.name, encode(function.arguments))
        return Segment(raw, ParseStatus.OK, (call,), repaired)

    def _read_function(self, head: int) -> _Function | ParseStatus:
        tags = self._tags
        function = _Function(tags[head].name, head + 1, tags[head].end)
        while tags.kind(function.index) == "parameter" and tags.is_blank(function.position, function.index):
            if not self._read_parameter(function):
                return ParseStatus.UNCLOSED_BLOCK
        kind = tags.kind(function.index)
        if not tags.is_blank(function.position, function.index) or kind == "/parameter":
            unclosed = kind in (None, "block", "function")
            return ParseStatus.UNCLOSED_BLOCK if unclosed else ParseStatus.INVALID_MARKUP
        if kind == "/function":
            function.position, function.closed = tags[function.index].end, True
            function.index += 1
        elif kind != "/block" and not function.arguments and not self._tools.declares(function.name):
            return ParseStatus.UNCLOSED_BLOCK
        return function

    def _read_parameter(self, function: _Function) -> bool:
        """Reads the parameter at `function.index`; false when its value has no end."""
        tags, head = self._tags, function.index
        end = self._value_end(function, tags[head].name)
        if end is None:
            return False
        value = tags.text[tags[head].end : tags.start(end)].removeprefix("\n").removesuffix("\n")
        function.arguments[tags[head].name] = self._tools.coerce(function.name, tags[head].name, value)
        closed = tags.kind(end) == "/parameter"
        function.index, function.position = (end + 1, tags[end].end) if closed else (end, tags.start(end))
        function.repaired |= not closed
        return True

    def _value_end(self, function: _Function, key: str) -> int | None:
        """The tag that ends the value of the parameter at `function.index`.

        A whole call inside a value is text, such as an example in a file that is being written; the beginning
        of one that never ends is the next call of a model that forgot to close this one.
        """
        tags, visited = self._tags, list[int]()
        index, own = function.index + 1, True
        while index < len(tags) and index not in self._endless:
            own = own and tags.kind(index) not in ("block", "function")
            if not own:
                visited.append(index)
            if self._begins_call(index):
                if index not in tags.ends:
                    break
                index = tags.ends[index]
            elif self._ends_value(index) or (own and self._begins_parameter(function, index, key)):
                return index
            index += 1
        self._endless.update(visited)
        return None

    def _begins_call(self, index: int) -> bool:
        tag = self._tags[index]
        if tag.kind == "block":
            return self._tags.is_followed_by(index, "function")
        return tag.kind == "function" and self._tools.declares(tag.name)

    def _ends_value(self, index: int) -> bool:
        kind = self._tags.kind(index)
        if kind == "/parameter":
            return self._tags.is_followed_by(
                index, "parameter", "/function", "/block", "block", "function", None
            )
        return kind == "/function" and self._tags.is_followed_by(index, "/block", "block", "function", None)

    def _begins_parameter(self, function: _Function, index: int, key: str) -> bool:
        """Whether an opening parameter tag inside a value shows that `</parameter>` was left out."""
        tag = self._tags[index]
        if tag.kind != "parameter" or tag.name == key or tag.name in function.arguments:
            return False
        if self._tools.has_open_parameters(function.name):
            return self._tags.text[tag.start - 1] == "\n"
        return self._tools.has_parameter(function.name, tag.name)

    def _broken(self, index: int, inside: int, status: ParseStatus) -> Segment:
        """A block that is no call: up to its own closing tag, or to where the next block begins.

        When the budget ended the generation, all that follows an unclosed block may belong to it: nothing
        of it is a call.
        """
        tags = self._tags
        start, end = tags.start(index), len(tags.text)
        if status is ParseStatus.UNCLOSED_BLOCK and not self._finished:
            return Segment(tags.text[start:], status)
        closing = "/block" if tags.kind(index) == "block" else "/function"
        while (kind := tags.kind(inside)) is not None:
            if kind in ("block", "function", closing):
                end = tags[inside].end if kind == closing else tags.start(inside)
                break
            inside += 1
        return Segment(tags.text[start:end], status)
