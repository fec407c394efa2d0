"""JSON as RFC 8259 has it, read from the middle of a text.

Python's decoder also takes `NaN`, `Infinity` and numbers too large for a float, which no other reader of a
tool call has to accept; here they are not JSON. Knows nothing about tool calls. Nothing here raises: what
is not JSON is `None`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

MAX_DEPTH = 100
"""Deeper values are refused: where Python's decoder and encoder give up depends on the caller's stack."""

_FIRST_WINDOW = 4096
_WINDOW_GROWTH = 8
"""A JSON error counts the lines before it, from the beginning of the text it was given. A value is therefore
read from windows that grow: a text with thousands of broken values costs what its broken values cost."""
_LONGEST_TOKEN = 16
"""Longer than any token but a string or a number: `-Infinity`, `false`, an escape."""

_WHITESPACE = re.compile(r"[ \t\n\r]*")
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


@dataclass(frozen=True, slots=True)
class Decoded:
    """A value and where its text stands: `text[start:end]` is exactly the JSON of `value`."""

    value: JsonValue
    start: int
    end: int


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("the number is too large for a float")
    return number


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def skip_whitespace(text: str, start: int) -> int:
    """The first position at or after `start` that is not JSON whitespace."""
    match = _WHITESPACE.match(text, start)
    return start if match is None else match.end()


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif match[0] in "]}":
            depth -= 1
    return False


def decode_at(text: str, start: int) -> Decoded | None:
    """Reads the JSON value that begins at `start` (after whitespace); None when there is none.

    ValueError covers malformed JSON and Python's limit on the digits of an integer.
    """
    start = skip_whitespace(text, start)
    window = _FIRST_WINDOW
    while True:
        part = text[start : start + window]
        try:
            value, length = _DECODER.raw_decode(part)
        except json.JSONDecodeError as error:
            if len(part) < window or not _is_cut(error, len(part)):
                return None
        except (ValueError, RecursionError):
            return None
        else:
            if length < len(part) or len(part) < window:
                return None if _too_deep(part[:length]) else Decoded(value, start, start + length)
        window *= _WINDOW_GROWTH


def _is_cut(error: json.JSONDecodeError, length: int) -> bool:
    """Whether more text could mend the error: it is at the end, or is a string that has not ended there."""
    return error.msg.startswith("Unterminated string") or error.pos > length - _LONGEST_TOKEN


def decode(text: str) -> Decoded | None:
    """Reads a text that is one JSON value and nothing else; None otherwise."""
    decoded = decode_at(text, 0)
    if decoded is None or skip_whitespace(text, decoded.end) != len(text):
        return None
    return decoded


def items_of(text: str, array: Decoded) -> Iterator[Decoded]:
    """The items of an array that `decode_at` has read from `text`, each with its place."""
    position = skip_whitespace(text, array.start + 1)
    while text[position] != "]":
        item = _reread(text, position)
        yield item
        position = _after_comma(text, item.end)


def members_of(text: str, mapping: Decoded) -> dict[str, Decoded]:
    """The members of an object that `decode_at` has read from `text`, each with its place.

    Of a repeated key the last one counts, as it does in `Decoded.value`.
    """
    members: dict[str, Decoded] = {}
    position = skip_whitespace(text, mapping.start + 1)
    while text[position] != "}":
        key = _reread(text, position)
        colon = skip_whitespace(text, key.end)
        member = _reread(text, skip_whitespace(text, colon + 1))
        members[str(key.value)] = member
        position = _after_comma(text, member.end)
    return members


def _reread(text: str, start: int) -> Decoded:
    value, end = _DECODER.raw_decode(text, start)
    return Decoded(value, start, end)


def _after_comma(text: str, position: int) -> int:
    position = skip_whitespace(text, position)
    return skip_whitespace(text, position + 1) if text[position] == "," else position


def encodable(text: str) -> bool:
    """Whether UTF-8 can hold the text: an escaped lone surrogate, once decoded, would break the HTTP
    response.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def encode(value: JsonValue) -> str:
    """JSON of a value, with non-ASCII characters as they are, except where only an escape can be sent."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if encodable(text) else json.dumps(value, allow_nan=False)
