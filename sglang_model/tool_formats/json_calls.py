"""A call written as JSON, `{"name": ..., "arguments": {...}}`: what hermes, llama3_json, mistral and
nemotron share.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_model.strict_json import Decoded, decode, decode_at, encodable, encode, items_of, members_of
from sglang_model.tool_formats.segments import ParseStatus, SampledCall

_ARGUMENT_KEYS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True)
class ReadCalls:
    """The calls of one JSON value that ends at `end`. All or none: any status but OK comes without calls."""

    status: ParseStatus
    end: int
    calls: tuple[SampledCall, ...] = ()


def read_calls(text: str, start: int) -> ReadCalls | None:
    """Reads the object, or the array of objects, that begins at `start`; None when no JSON value does."""
    decoded = decode_at(text, start)
    return None if decoded is None else calls_of(text, decoded)


def calls_of(text: str, decoded: Decoded) -> ReadCalls:
    """The calls of a value that `decode_at` has read from `text`."""
    objects = list(items_of(text, decoded)) if isinstance(decoded.value, list) else [decoded]
    calls: list[SampledCall] = []
    for candidate in objects:
        call = _read_call(text, candidate)
        if isinstance(call, ParseStatus):
            return ReadCalls(call, decoded.end)
        calls.append(call)
    if not calls:
        return ReadCalls(ParseStatus.NOT_AN_OBJECT, decoded.end)
    return ReadCalls(ParseStatus.OK, decoded.end, tuple(calls))


def looks_like_call(decoded: Decoded) -> bool:
    """Whether JSON that no tag announces is meant as a call: a name *and* arguments, not just any object."""
    value = decoded.value
    return isinstance(value, dict) and "name" in value and any(key in value for key in _ARGUMENT_KEYS)


def _read_call(text: str, candidate: Decoded) -> SampledCall | ParseStatus:
    if not isinstance(candidate.value, dict):
        return ParseStatus.NOT_AN_OBJECT
    members = members_of(text, candidate)
    name = candidate.value.get("name")
    if not isinstance(name, str) or not name.strip() or not encodable(name):
        return ParseStatus.MISSING_NAME
    key = next((key for key in _ARGUMENT_KEYS if key in members), None)
    arguments = NO_ARGUMENTS if key is None else arguments_text(text, members[key])
    if arguments is None:
        return ParseStatus.INVALID_ARGUMENTS
    call_id = candidate.value.get("id")
    return SampledCall(name, arguments, call_id if isinstance(call_id, str) else None)


def arguments_text(text: str, arguments: Decoded) -> str | None:
    """The JSON object that the sampled arguments stand for, or None.

    An object is handed on exactly as sampled: no number is rounded, no key reordered. A string is decoded
    once, because models (and histories) quote the object; null and an empty string are how some say that
    there are no arguments.
    """
    value = arguments.value
    if isinstance(value, dict):
        return text[arguments.start : arguments.end]
    if value is None:
        return NO_ARGUMENTS
    if not isinstance(value, str):
        return None
    if not value.strip():
        return NO_ARGUMENTS
    quoted = decode(value)
    if quoted is None or not isinstance(quoted.value, dict):
        return None
    inner = value[quoted.start : quoted.end]
    return inner if encodable(inner) else encode(quoted.value)
