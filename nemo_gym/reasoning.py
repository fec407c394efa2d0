"""Reasoning inside text: the `<think>` spans that agents see and send back.

Pure string work. It must not guess: a lone `</think>` or an unclosed `<think>` is content, because only who
knows the prompt's end knows whether reasoning was open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


def wrap_reasoning_in_think_tags(texts: Iterable[str]) -> str:
    """One span per non-empty text, in order, with nothing between."""
    return "".join(f"{_OPEN}{text}{_CLOSE}" for text in texts if text)


def extract_reasoning_from_content(content: str) -> tuple[list[str], str]:
    """All spans' texts, and the content with the spans cut out. Whitespace is kept on both sides.

    `wrap_reasoning_in_think_tags` undoes it where the spans came first, character for character. A span goes
    from an opening tag to the first closing one behind it. One pass: where an opening tag has no end, no later
    one has, and a model in a loop writes thousands of them.
    """
    spans: list[str] = []
    rest: list[str] = []
    position = 0
    while (start := content.find(_OPEN, position)) >= 0:
        end = content.find(_CLOSE, start + len(_OPEN))
        if end < 0:
            break
        rest.append(content[position:start])
        spans.append(content[start + len(_OPEN) : end])
        position = end + len(_CLOSE)
    rest.append(content[position:])
    return spans, "".join(rest)
