"""Token ids as the text that JSON has for them, `1,22,333`, without ever making integers of it.

A prompt of 100,000 ids costs 3 ms to decode, as much again to check, and 0.7 ms to write; as text it is
compared with `memcmp`, checked in 0.2 ms and copied in 0.01 ms. Everything here takes and returns bytes.
Pure; knows no API, no model and no session.

*Canonical* text is what a compact JSON writer makes of a list of non-negative integers, brackets left out:
decimal digits without leading zeros, one comma between two numbers, no space. No ids are the empty text.
"""

from __future__ import annotations

from binascii import a2b_hex, b2a_hex
from typing import Final, NewType

import numpy as np
import numpy.typing as npt

PackedIds = NewType("PackedIds", bytes)
"""Canonical text at four bits per character: 3.1 bytes per id of a vocabulary of 150,000, less than an int32 array.

Each list begins with the nibble of a comma and may end with one nibble of padding, so packed lists that stand one
behind the other are the packed form of the concatenated list.
"""

MOST_DIGITS: Final = 10
LARGEST_ID: Final = 10**MOST_DIGITS - 1
"""No vocabulary is as large; a greater number is no id but something misread."""

_COMMA: Final = ord(",")
_DIGITS: Final = b"0123456789"
_TO_NIBBLE: Final = bytes(c if c in _DIGITS else ord("a") if c == _COMMA else ord("x") for c in range(256))
"""Digits to themselves, a comma to the hexadecimal digit `a`, all else to something that is no hexadecimal digit."""
_FROM_NIBBLE: Final = bytes(_COMMA if c == ord("a") else c for c in range(256))
_PADDING: Final = b"f"
_ZERO: Final = ord("0")
_EIGHT_DIGITS: Final = int.from_bytes(b"\x01" * 8, "little")
_SHORT: Final = 16_384
"""Characters up to which one plain loop is faster than setting an array up."""


def count_numbers(text: bytes) -> int:
    """How many numbers a list's text has, its brackets left out; the text need not be canonical."""
    if not text or text.isspace():
        return 0
    if len(text) < _SHORT:
        return text.count(b",") + 1
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _COMMA)) + 1


def count_ids(text: bytes) -> int | None:
    """How many ids canonical text has; None for text that is not canonical.

    Every byte is compared with a few others at once: 0.2 ms for 100,000 ids, where decoding and looking at
    each takes 6.
    """
    if not text:
        return 0
    characters = np.frombuffer(text, np.uint8)
    commas = characters == _COMMA
    digits = (characters - _ZERO) < len(_DIGITS)  # unsigned: what is below "0" wraps round to a large number
    count = int(np.count_nonzero(commas))
    if count + int(np.count_nonzero(digits)) != len(text):
        return None
    if commas[0] or commas[-1] or bool((commas[1:] & commas[:-1]).any()):
        return None
    if _has_large(text, digits):
        return None
    zeros = characters == _ZERO
    begins_with_zero = zeros[:-1] & np.concatenate(([True], commas[:-2]))
    return None if bool((begins_with_zero & digits[1:]).any()) else count + 1


def _has_large(text: bytes, digits: npt.NDArray[np.bool_]) -> bool:
    """Whether a number has more than ten digits. Those have eight in a row from some multiple of four on; no
    vocabulary's ids have.
    """
    for shift in (0, 4):
        words = digits[shift : shift + (len(digits) - shift) // 8 * 8].view(np.uint64)
        if bool((words == _EIGHT_DIGITS).any()):
            return any(len(number) > MOST_DIGITS for number in text.split(b","))
    return False


def pack(text: bytes) -> PackedIds:
    """Pack canonical text. Raises ValueError when there is anything but digits and commas in it."""
    return PackedIds(_from_hex(b"a" + text.translate(_TO_NIBBLE)) if text else b"")


def unpack(packed: PackedIds) -> bytes:
    """The canonical text of a packed list, or of several packed lists one behind the other."""
    return b2a_hex(packed).translate(_FROM_NIBBLE, _PADDING)[1:]


def last_numbers(text: bytes, count: int) -> list[int]:
    """The last ids of canonical text, at most `count` of them, without looking at the others."""
    if not text or count < 1:
        return []
    return [int(number) for number in text.rsplit(b",", count)[-count:]]


def joined(*texts: bytes) -> bytes:
    """The text of lists one behind the other."""
    return b",".join(filter(None, texts))


def _from_hex(nibbles: bytes) -> bytes:
    return a2b_hex(nibbles + _PADDING if len(nibbles) % 2 else nibbles)
