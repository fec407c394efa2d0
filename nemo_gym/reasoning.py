"""Reasoning inside text: the `<think>` spans that agents see and send back.

Pure string work. It must not guess: a lone `</think>` or an unclosed `<think>` is content, because only who
knows the prompt's end knows whether reasoning was open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

THINK_TAG_PATTERN: Final = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def wrap_reasoning_in_think_tags(texts: Iterable[str]) -> str:
    """One span per non-empty text, in order, with nothing between."""
    return "".join(f"<think>{text}</think>" for text in texts if text)


def extract_reasoning_from_content(content: str) -> tuple[list[str], str]:
    """All spans' texts, and the content with the spans cut out. Whitespace is kept on both sides.

    `wrap_reasoning_in_think_tags` undoes it where the spans came first, character for character.
    """
    return THINK_TAG_PATTERN.findall(content), THINK_TAG_PATTERN.sub("", content)
