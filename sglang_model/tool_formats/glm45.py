"""glm45 and glm47: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>...</tool_call>`.

GLM-4.5 puts newlines between the tags, GLM-4.7 none; both are read. Values are raw text, kept to the last
space; the tool's schema gives the type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from sglang_model.argument_types import DeclaredTools
from sglang_model.strict_json import JsonValue, encode
from sglang_model.tool_formats.segments import ParseStatus, SampledCall, Segment
from sglang_model.tool_formats.tags import Kind, TagList

_TAGS = re.compile(r"</?(?:tool_call|arg_key|arg_value)>")
_KINDS: Mapping[str, Kind] = {
    "<tool_call": "block",
    "</tool_call": "/block",
    "<arg_key": "key",
    "</arg_key": "/key",
    "<arg_value": "value",
    "</arg_value": "/value",
}
_NAME = re.compile(r"[^\s<>{}\[\]()\"',;]+")


def parse_glm45(text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]:
    """Cuts `text` at every `<tool_call>`."""
    tags = TagList(text, _TAGS, _KINDS)
    reader = _Reader(tags, tools, finished=finished)
    segments: list[Segment] = []
    cursor = 0
    for index in range(len(tags)):
        start = tags.start(index)
        if start < cursor or tags.kind(index) != "block":
            continue
        if start > cursor:
            segments.append(Segment(text[cursor:start]))
        segments.append(reader.read_block(index))
        cursor = start + len(segments[-1].raw)
    if cursor < len(text):
        segments.append(Segment(text[cursor:]))
    return segments


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
        """Reads the block at the tag `index`, a `<tool_call>`."""
        tags = self._tags
        name = self._name(index)
        arguments: dict[str, JsonValue] = {}
        inside, position = index + 1, tags.start(index + 1)
        if _NAME.fullmatch(name) is None:
            return self._broken(index, self._status_of_bad_name(name, inside))
        while tags.kind(inside) == "key":
            end = self._pair_end(inside)
            if isinstance(end, ParseStatus):
                return self._broken(index, end)
            key = tags.text[tags[inside].end : tags.start(inside + 1)].strip()
            value = tags.text[tags[inside + 2].end : tags.start(end)]
            arguments[key] = self._tools.coerce(name, key, value)
            inside, position = end + 1, tags[end].end
        kind = tags.kind(inside)
        call = SampledCall(name, encode(arguments))
        if kind == "/block":
            return Segment(tags.text[tags.start(index) : tags[inside].end], ParseStatus.OK, (call,))
        stopped = kind == "block" or (kind is None and self._finished)
        if stopped and (arguments or self._tools.declares(name)):
            return Segment(tags.text[tags.start(index) : position], ParseStatus.OK, (call,), repaired=True)
        unclosed = kind in (None, "block")
        return self._broken(index, ParseStatus.UNCLOSED_BLOCK if unclosed else ParseStatus.INVALID_MARKUP)

    def _name(self, index: int) -> str:
        return self._tags.text[self._tags[index].end : self._tags.start(index + 1)].strip()

    def _status_of_bad_name(self, name: str, inside: int) -> ParseStatus:
        if name:
            return ParseStatus.INVALID_MARKUP
        unclosed = self._tags.kind(inside) in (None, "block")
        return ParseStatus.UNCLOSED_BLOCK if unclosed else ParseStatus.MISSING_NAME

    def _pair_end(self, index: int) -> int | ParseStatus:
        """The tag that ends the pair whose `<arg_key>` is at `index`, or what is wrong with the pair.

        A whole block inside a value is text; the beginning of one that never ends is the next call.
        """
        tags = self._tags
        for step, kind in ((1, "/key"), (2, "value")):
            if tags.kind(index + step) != kind:
                unclosed = tags.kind(index + step) in (None, "block")
                return ParseStatus.UNCLOSED_BLOCK if unclosed else ParseStatus.INVALID_MARKUP
        if not tags.is_blank(tags[index + 1].end, index + 2):
            return ParseStatus.INVALID_MARKUP
        index, visited = index + 3, list[int]()
        while index < len(tags) and index not in self._endless:
            visited.append(index)
            if tags.kind(index) == "/value" and tags.is_followed_by(index, "key", "/block", "block", None):
                return index
            if (
                tags.kind(index) == "block"
                and tags.kind(index + 1) == "key"
                and _NAME.fullmatch(self._name(index))
            ):
                if index not in tags.ends:
                    break
                index = tags.ends[index]
            index += 1
        self._endless.update(visited)
        return ParseStatus.UNCLOSED_BLOCK

    def _broken(self, index: int, status: ParseStatus) -> Segment:
        """A block that is no call: up to its closing tag, or to where the next block begins.

        When the budget ended the generation, all that follows an unclosed block may belong to it: nothing
        of it is a call.
        """
        tags = self._tags
        start, end = tags.start(index), len(tags.text)
        if status is ParseStatus.UNCLOSED_BLOCK and not self._finished:
            return Segment(tags.text[start:], status)
        for inside in range(index + 1, len(tags)):
            if tags.kind(inside) in ("block", "/block"):
                end = tags.start(inside) if tags.kind(inside) == "block" else tags[inside].end
                break
        return Segment(tags.text[start:end], status)
