"""JSON calls between an opening and a closing tag: the grammar of hermes and of nemotron.

A block holds one call object, several, or an array of them. It is taken as a whole or, with its tags, left
in the text. Where it ends is decided by a JSON decoder, so a tag inside a string argument is part of the
argument.
"""

from __future__ import annotations

import re
from functools import cache

from sglang_model.strict_json import skip_whitespace
from sglang_model.tool_formats.json_calls import read_calls
from sglang_model.tool_formats.segments import ParseStatus, SampledCall, Segment


def parse_json_blocks(text: str, opening: str, closing: str, *, finished: bool) -> list[Segment]:
    """Cuts `text` at every block of the two tags."""
    segments: list[Segment] = []
    cursor = 0
    while (start := text.find(opening, cursor)) >= 0:
        if start > cursor:
            segments.append(Segment(text[cursor:start]))
        block = _read_block(text, start, opening, closing, finished=finished)
        segments.append(block)
        cursor = start + len(block.raw)
    if cursor < len(text):
        segments.append(Segment(text[cursor:]))
    return segments


def _read_block(text: str, start: int, opening: str, closing: str, *, finished: bool) -> Segment:
    status, calls, position = _read_values(text, start + len(opening))
    if calls or status is not ParseStatus.OK:
        if text.startswith(closing, position):
            return Segment(text[start : position + len(closing)], status, calls)
        if position == len(text) and not finished:
            return Segment(text[start:], ParseStatus.UNCLOSED_BLOCK)
        if position == len(text) or text.startswith(opening, position):
            return Segment(text[start:position], status, calls, repaired=bool(calls))
    return _broken_block(text, start, _either(opening, closing).search(text, position), finished=finished)


def _read_values(text: str, position: int) -> tuple[ParseStatus, tuple[SampledCall, ...], int]:
    """Reads values until something else comes: the status of the first that is no call, else all calls."""
    status, calls = ParseStatus.OK, list[SampledCall]()
    position = skip_whitespace(text, position)
    while text.startswith(("{", "["), position) and (read := read_calls(text, position)) is not None:
        calls.extend(read.calls)
        status = read.status if status is ParseStatus.OK else status
        position = skip_whitespace(text, read.end)
    return status, tuple(calls) if status is ParseStatus.OK else (), position


def _broken_block(text: str, start: int, tag: re.Match[str] | None, *, finished: bool) -> Segment:
    """A block whose inside is not JSON ends with the next closing tag, or before the next opening one.

    When the budget ended the generation, all that follows an unclosed block may belong to it: nothing of it
    is a call.
    """
    if tag is not None and tag.lastgroup == "closing":
        return Segment(text[start : tag.end()], ParseStatus.INVALID_JSON)
    end = tag.start() if tag is not None and finished else len(text)
    return Segment(text[start:end], ParseStatus.UNCLOSED_BLOCK)


@cache
def _either(opening: str, closing: str) -> re.Pattern[str]:
    return re.compile(f"{re.escape(opening)}|(?P<closing>{re.escape(closing)})")
