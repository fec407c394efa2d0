"""The fast path: JSON in and out without ever decoding the id arrays in it.

A request that echoes twenty turns is 99 % token ids, and an engine's answer nearly so. `loads` cuts the arrays
out of the bytes, decodes what is left, and puts the texts back as `TokenIds` and `LogProbs`; `dumps` joins
those in as the text they are.

Invariants, which `tests/nemo_gym/test_json_ids.py` checks against the slow, obvious way on arbitrary input:

* `loads(raw)` equals `orjson.loads(raw)`, error for error outside of what is cut, but that an array under one of
  the three names is a `TokenIds` or `LogProbs` of the same numbers where it stands in a place that `_holders`
  names; anywhere else it is a list.
* What is cut has nothing but digits, commas and blanks, and in log probabilities signs, dots and exponents: the cut
  cannot change where any other value begins or ends, and an array of anything else is not cut. Whether `1,,2` is a
  list is asked when somebody reads it.
* A name is only taken where its opening quote is not escaped. Inside a JSON string every quote is, and an
  unescaped one followed by the name, a quote and a colon is a key or no JSON.
* What stands in for an array is a string with a random part that no caller can know; if one of them turns up in
  an unexpected place, the whole text is decoded the slow way.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import orjson

from nemo_gym.id_text import BETWEEN
from nemo_gym.token_ids import LogProbs, TokenIds

Numbers = TokenIds | LogProbs

_KINDS: Final[dict[bytes, type[Numbers]]] = {
    b"prompt_token_ids": TokenIds,
    b"generation_token_ids": TokenIds,
    b"generation_log_probs": LogProbs,
}
_PLACES: Final = ("input", "messages", "choices", "output")
_NAMES: Final = tuple(name.decode() for name in _KINDS)
_ALLOWED: Final = {TokenIds: b"0123456789, \t\n\r", LogProbs: b"0123456789, \t\n\r.-+eE"}
_LONG: Final = 16_384
_COMMA: Final = ord(",")
_NINE: Final = ord("9")
_FIELD: Final = re.compile(rb'"(%b)"[ \t\n\r]*:[ \t\n\r]*\[' % b"|".join(_KINDS))
_ADJACENT_FIELD: Final = re.compile(rb"[ \t\n\r]*,[ \t\n\r]*" + _FIELD.pattern)
_ENDING: Final = b'_token_ids"'
_ID_FIELD_LENGTHS: Final = tuple(len(name) + 2 for name, kind in _KINDS.items() if kind is TokenIds)
_STAND_IN: Final = f"{secrets.token_hex(16)}:".encode()
_STAND_IN_TEXT: Final = _STAND_IN.decode()
_PLACE: Final = secrets.token_hex(16)
_PLACE_JSON: Final = orjson.dumps(_PLACE)


def loads(
    raw: bytes, *, will_be_read: bool = False, decode: Callable[[bytes], object] = orjson.loads
) -> object:
    """Decode JSON, what is left of it with `decode`. Raises orjson.JSONDecodeError.

    `will_be_read` promises that every array is read by the caller before it is used, as those of an engine's
    answer are: then they are not looked through here.
    """
    return decoded(raw, *_cut(raw, _anything_flat if will_be_read else _only_numbers), decode)


def decoded(
    raw: bytes,
    text: bytes,
    arrays: Sequence[Numbers],
    decode: Callable[[bytes], object] = orjson.loads,
) -> object:
    """The value of `raw`, of which `cut` made `text` and `arrays`. Raises orjson.JSONDecodeError."""
    try:
        value = decode(text)
    except ValueError:
        return orjson.loads(raw)  # for the error's position in the whole
    return value if put_back(value, arrays) == len(arrays) else orjson.loads(raw)


def cut(raw: bytes) -> tuple[bytes, list[Numbers]]:
    """The JSON text with a stand-in for each array under one of the names, and the arrays.

    Texts that begin with the same bytes have the same stand-ins there: the first array's, the second's, and so on.
    """
    return _cut(raw, _only_numbers)


def dumps(value: object) -> bytes:
    """Encode JSON compactly. Raises orjson.JSONEncodeError, a TypeError; ids that are none are its `__cause__`.

    The arrays are joined in at the end, which copies each of them once; handed to orjson they would be copied twice.
    """
    texts: list[bytes] = []

    def stand_in(part: object) -> str:
        texts.append(_text_of(part))
        return _PLACE

    around = orjson.dumps(value, default=stand_in).split(_PLACE_JSON)
    if len(around) != len(texts) + 1:  # somebody wrote that very text
        return orjson.dumps(value, default=lambda part: orjson.Fragment(b"[%b]" % _text_of(part)))
    pieces = around[:1]
    for text, behind in zip(texts, around[1:], strict=True):
        pieces += (b"[", text, b"]", behind)
    return b"".join(pieces)


def _text_of(part: object) -> bytes:
    if isinstance(part, (TokenIds, LogProbs)):
        return part.text
    raise TypeError(f"Type is not JSON serializable: {type(part).__name__}")


def _only_numbers(text: bytes, kind: type[Numbers]) -> bool:
    if kind is TokenIds and len(text) > _LONG:
        # In five looks at the whole, without a copy of it.
        characters = np.frombuffer(text, np.uint8)
        if characters.min() >= _COMMA and characters.max() <= _NINE:
            return not any(byte in text for byte in BETWEEN)
    return not text.translate(None, _ALLOWED[kind])


def _anything_flat(text: bytes, _kind: type[Numbers]) -> bool:
    return b"[" not in text and b"{" not in text


def _cut(raw: bytes, may_be_cut: Callable[[bytes, type[Numbers]], bool]) -> tuple[bytes, list[Numbers]]:
    pieces: list[bytes] = []
    arrays: list[Numbers] = []
    whole = memoryview(raw)
    before = dict.fromkeys(_KINDS, whole[:0])
    done = position = end = 0
    while (field := _next_array(raw, position)) is not None:
        start = position = field.end()
        kind, known = _KINDS[field[1]], before[field[1]]
        # The prompt of a turn begins with that of the turn before it, so of most only the end is new; and what has
        # been cut has neither a bracket nor a quote.
        unread = start + len(known) if raw.startswith(known, start) else start
        # The bracket that ends it ends all that were opened in front of that one: found once for all of them.
        end = end if end >= start else raw.find(b"]", unread)
        if end < 0:
            break
        # Also where names stand inside each other: nothing is copied for those.
        if raw.find(b'"', unread, end) >= 0:
            continue
        if not may_be_cut(raw[unread:end], kind):
            continue
        # A view: most of a request's ids are dropped without anybody looking at them.
        text = before[field[1]] = whole[start:end]
        pieces += (raw[done : start - 1], b'"%b%d"' % (_STAND_IN, len(arrays)))
        arrays.append(kind.unread(text))
        done = position = end + 1
    if not arrays:
        return raw, arrays
    pieces.append(raw[done:])
    return b"".join(pieces), arrays


def _next_array(raw: bytes, start: int) -> re.Match[bytes] | None:
    """The next of the names from `start` on, with the colon and the bracket behind it; None if there is none.

    A triple's fields stand side by side, so the one behind an array is looked for right there. Everywhere else
    one search for what two of the names end with is enough, and it never runs through an array that will be cut;
    log probabilities that stand elsewhere than behind ids are decoded as any other list.
    """
    adjacent = _ADJACENT_FIELD.match(raw, start)
    if adjacent is not None:
        return adjacent
    at = raw.find(_ENDING, start)
    while at >= 0:
        end = at + len(_ENDING)
        for length in _ID_FIELD_LENGTHS:
            field = _FIELD.match(raw, end - length) if end - length >= start else None
            if field is not None and raw[end - length - 1 : end - length] != b"\\":
                return field
        at = raw.find(_ENDING, end)
    return None


def put_back(value: object, arrays: Sequence[Numbers]) -> int:
    """Put the arrays where their stand-ins are, and return how many were found."""
    found = 0
    if not arrays:
        return found
    for holder in _holders(value):
        for name in _NAMES:
            stand_in = holder.get(name)
            if isinstance(stand_in, str) and stand_in.startswith(_STAND_IN_TEXT):
                holder[name] = arrays[int(stand_in.removeprefix(_STAND_IN_TEXT))]
                found += 1
    return found


def _holders(value: object) -> Iterator[dict[str, object]]:
    """The objects in which ids are expected: the elements of a request's `input` or `messages`; an engine's answer, the
    elements of its `output`, its choices and their messages.
    """
    if not isinstance(value, dict):
        return
    yield value
    for place in _PLACES:
        elements = value.get(place)
        for element in elements if isinstance(elements, list) else ():
            if isinstance(element, dict):
                yield element
                message = element.get("message") if place == "choices" else None
                if isinstance(message, dict):
                    yield message
