"""mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]` (to v7) or `[TOOL_CALLS]NAME[ARGS]{...}`
(v11 and later).

Nothing closes a call; its JSON ends it. Mistral's templates refuse a call id that has not exactly nine
letters or digits, so this format makes such ids, and keeps the sampled one (`"id"`, `[CALL_ID]`), which the
tool's result has to repeat.
"""

from __future__ import annotations

import re
import uuid

from sglang_model.argument_types import DeclaredTools
from sglang_model.strict_json import decode_at, skip_whitespace
from sglang_model.tool_formats.json_calls import arguments_text, read_calls
from sglang_model.tool_formats.segments import ParseStatus, SampledCall, Segment

_MARKER = "[TOOL_CALLS]"
_HEAD = re.compile(r"([^\[\]{}\n]*)(?:\[CALL_ID\]([^\[\]{}\n]*))?\[ARGS\]")
_USABLE_ID = re.compile(r"[A-Za-z0-9]{9}")


def new_mistral_call_id(sampled: str | None) -> str:
    """The sampled id if the template will take it, else nine random hexadecimal digits."""
    if sampled is not None and _USABLE_ID.fullmatch(sampled):
        return sampled
    return uuid.uuid4().hex[:9]


def parse_mistral(text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]:  # noqa: ARG001
    """Cuts `text` at every marker. Calls carry their own JSON types, so the tools' schemas are not needed."""
    segments: list[Segment] = []
    cursor = 0
    while (start := text.find(_MARKER, cursor)) >= 0:
        if start > cursor:
            segments.append(Segment(text[cursor:start]))
        segments.append(_read_block(text, start, finished=finished))
        cursor = start + len(segments[-1].raw)
    if cursor < len(text):
        segments.append(Segment(text[cursor:]))
    return segments


def _read_block(text: str, start: int, *, finished: bool) -> Segment:
    body = skip_whitespace(text, start + len(_MARKER))
    head = _HEAD.match(text, body)
    if head is not None:
        return _read_named(text, start, head, finished=finished)
    read = read_calls(text, body) if text.startswith(("[", "{"), body) else None
    if read is None:
        return _broken(text, start, finished=finished)
    return Segment(text[start : read.end], read.status, read.calls)


def _read_named(text: str, start: int, head: re.Match[str], *, finished: bool) -> Segment:
    decoded = decode_at(text, head.end())
    if decoded is None:
        return _broken(text, start, finished=finished)
    raw = text[start : decoded.end]
    name, arguments = head[1].strip(), arguments_text(text, decoded)
    if not name:
        return Segment(raw, ParseStatus.MISSING_NAME)
    if arguments is None:
        return Segment(raw, ParseStatus.INVALID_ARGUMENTS)
    return Segment(raw, ParseStatus.OK, (SampledCall(name, arguments, head[2] and head[2].strip()),))


def _broken(text: str, start: int, *, finished: bool) -> Segment:
    """What a marker announces and is no call, up to the next marker.

    When the budget ended the generation, all that follows a torso may belong to it: nothing of it is a call.
    """
    if not finished:
        return Segment(text[start:], ParseStatus.UNCLOSED_BLOCK)
    end = text.find(_MARKER, start + len(_MARKER))
    return Segment(text[start : end if end >= 0 else len(text)], ParseStatus.INVALID_JSON)
