"""Cuts the arrays of the token triple out of JSON text and puts them back, without looking into them.

Exact: the closing quote of a key, a colon and a bracket cannot stand inside a JSON string, where the quote would have a
backslash in front and the key would end in it. Only compact JSON (no space behind the colon) is cut; what is not cut
stays where it is, so a caller is never wrong, only slower.
"""

from __future__ import annotations

_OPENING = b'":['
_KEYS = (b'"prompt_token_ids', b'"generation_token_ids', b'"generation_log_probs')


def cut(text: bytes) -> tuple[bytes, list[bytes]]:
    """The text with those arrays empty, and what stood between their brackets, in order."""
    kept: list[bytes] = []
    arrays: list[bytes] = []
    start = 0
    at = text.find(_OPENING)
    while at >= 0:
        left = at + len(_OPENING)
        if text.endswith(_KEYS, start, at):
            right = text.index(b"]", left)
            kept.append(text[start:left])
            arrays.append(text[left:right])
            start = left = right
        at = text.find(_OPENING, left)
    if not arrays:
        return text, arrays
    kept.append(text[start:])
    return b"".join(kept), arrays


def restore(text: bytes, arrays: list[bytes]) -> bytes:
    """The inverse of `cut`, also when the text was decoded and encoded in between; keys keep their order in that."""
    parts: list[bytes] = []
    waiting = iter(arrays)
    start = 0
    at = text.find(_OPENING)
    while at >= 0:
        left = at + len(_OPENING)
        if text.endswith(_KEYS, start, at) and text.startswith(b"]", left):
            parts += (text[start:left], next(waiting))
            start = left
        at = text.find(_OPENING, left)
    parts.append(text[start:])
    return b"".join(parts)
