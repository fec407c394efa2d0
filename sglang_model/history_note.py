"""Step 10 of the splice: how a rendering of the history would differ from the ids that are kept.

Splicing keeps what the model saw, old reasoning included; a server that renders every turn anew would show
it another history. That difference is part of what a trainer must know. Pure text.
"""

from __future__ import annotations

from sglang_model.splice_types import HistoryNote

_OPEN, _CLOSE = "<think>", "</think>"


def history_note(head: str, prompt_text: str | None) -> HistoryNote:
    """Compare the rendering in front of the reply with the stored prompt, both as text."""
    if prompt_text is None:
        return HistoryNote.UNKNOWN
    if head.startswith(prompt_text):
        return HistoryNote.PRESERVED
    expected = without_thinking(prompt_text).rstrip().removesuffix(_OPEN)
    # Where thinking goes, blank space around it may stay: Qwen3 keeps it in a content that was split beforehand.
    if _CLOSE in prompt_text and _dense(without_thinking(head)).startswith(_dense(expected)):
        return HistoryNote.THINKING_STRIPPED
    return HistoryNote.REWRITTEN


def without_thinking(text: str) -> str:
    """The text without closed `<think>` blocks and the blank space behind them."""
    kept: list[str] = []
    at = 0
    while (start := text.find(_OPEN, at)) >= 0 and (end := text.find(_CLOSE, start)) >= 0:
        kept.append(text[at:start])
        at = end + len(_CLOSE)
        while text[at : at + 1].isspace():
            at += 1
    return "".join([*kept, text[at:]])


def _dense(text: str) -> str:
    return "".join(text.split())
