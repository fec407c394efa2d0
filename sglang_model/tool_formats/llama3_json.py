"""llama3_json: `{"name": ..., "parameters": {...}}`, several joined by `;` or whitespace, after an optional
`<|python_tag|>`.

Without the tag nothing sets a call apart from an answer that is JSON. So the turn has to *begin* with a
call object, one that has both a name and arguments; an object in the middle of prose is prose.
"""

from __future__ import annotations

import re
from dataclasses import replace

from sglang_model.argument_types import DeclaredTools
from sglang_model.strict_json import Decoded, decode_at, skip_whitespace
from sglang_model.tool_formats.json_calls import calls_of, looks_like_call
from sglang_model.tool_formats.segments import ParseStatus, Segment

_TAG = "<|python_tag|>"
_SEPARATOR = re.compile(r"\s*(?:;\s*)?")
_BEGINS_AS_CALL = re.compile(r'\{\s*"(?:name|parameters|arguments)"\s*:')


def parse_llama3_json(text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]:  # noqa: ARG001
    """Reads the calls at the beginning of the text and after every tag; what follows them is text.

    Calls carry their own JSON types, so the tools' schemas are not needed.
    """
    segments = _read_sequence(text, 0, tagged=False, finished=finished)
    cursor = sum(len(segment.raw) for segment in segments)
    while (tag := text.find(_TAG, cursor)) >= 0:
        if tag > cursor:
            segments.append(Segment(text[cursor:tag]))
        read = _read_sequence(text, tag, tagged=True, finished=finished)
        segments += read
        cursor = tag + sum(len(segment.raw) for segment in read)
    if cursor < len(text):
        segments.append(Segment(text[cursor:]))
    return segments


def _read_sequence(text: str, cursor: int, *, tagged: bool, finished: bool) -> list[Segment]:
    """Reads call objects one after the other; a separator is part of the call after it or the last."""
    segments: list[Segment] = []
    start = skip_whitespace(text, cursor + len(_TAG) if tagged else cursor)
    while (decoded := _announced(text, start, tagged=tagged)) is not None:
        read = calls_of(text, decoded)
        segments.append(Segment(text[cursor : read.end], read.status, read.calls))
        cursor = start = read.end
        separator = _SEPARATOR.match(text, start)
        start = start if separator is None else separator.end()
    if (tagged and not segments) or (_BEGINS_AS_CALL.match(text, start) and decode_at(text, start) is None):
        return [*segments, _broken(text, cursor, start, finished=finished)]
    if segments and (start == len(text) or text.startswith(_TAG, start)):
        segments[-1] = replace(segments[-1], raw=segments[-1].raw + text[cursor:start])
    return segments


def _announced(text: str, start: int, *, tagged: bool) -> Decoded | None:
    """The value at `start` if it is meant as a call: any object or array after the tag, else one that looks
    like it.
    """
    if not text.startswith(("{", "[") if tagged else "{", start):
        return None
    decoded = decode_at(text, start)
    return decoded if decoded is not None and (tagged or looks_like_call(decoded)) else None


def _broken(text: str, cursor: int, start: int, *, finished: bool) -> Segment:
    """What is announced as a call and is none, up to the next tag.

    When the budget ended the generation, all that follows a torso may belong to it: nothing of it is a call.
    """
    end = text.find(_TAG, start) if finished else -1
    status = ParseStatus.INVALID_JSON if finished else ParseStatus.UNCLOSED_BLOCK
    return Segment(text[cursor : end if end >= 0 else len(text)], status)
