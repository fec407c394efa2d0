"""Cuts the arrays of the token triple out of JSON text and puts them back, without looking into them.

Exact: a key in quotes, a colon and a bracket cannot stand inside a JSON string, where quotes have backslashes in front.
Only compact JSON (no space behind the colon) is cut; what is not cut stays where it is, which costs time and no more.
"""

from __future__ import annotations

from collections.abc import Iterator

_OPENINGS = (b'"prompt_token_ids":[', b'"generation_token_ids":[', b'"generation_log_probs":[')


def cut(text: bytes) -> tuple[bytes, list[bytes]]:
    """The text with those arrays empty, and what stood between their brackets, in order."""
    kept: list[bytes] = []
    arrays: list[bytes] = []
    start = 0
    for left, right in _spans(text):
        kept.append(text[start:left])
        arrays.append(text[left:right])
        start = right
    if not arrays:
        return text, arrays
    kept.append(text[start:])
    return b"".join(kept), arrays


def restore(text: bytes, arrays: list[bytes]) -> bytes:
    """The inverse of `cut`, also when the text was decoded and encoded in between: keys keep their order in that.

    Raises ValueError when there is not exactly one empty array for each.
    """
    parts: list[bytes] = []
    start = 0
    empty = (left for left, right in _spans(text) if left == right)
    for left, array in zip(empty, arrays, strict=True):
        parts += (text[start:left], array)
        start = left
    parts.append(text[start:])
    return b"".join(parts)


def _spans(text: bytes) -> Iterator[tuple[int, int]]:
    """Where the arrays lie, brackets left out, in order. Each key is looked for once, and never inside an array."""
    found = {opening: text.find(opening) for opening in _OPENINGS}
    while found := {opening: at for opening, at in found.items() if at >= 0}:
        opening = min(found, key=found.__getitem__)
        left = found[opening] + len(opening)
        right = text.index(b"]", left)
        yield left, right
        for each, at in found.items():
            if at < right:
                found[each] = text.find(each, right)
