"""Made-up words that mark a place in a rendering: at the reply's last rendered value, in front of new
messages.

A template is a program, so the place of a text in its output is found by running it: with a word in the
text's stead, or in front of it. Pure data; knows no template.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_model.message_forms import ArgumentForm, Message, MessageForms, message_text, parsed_arguments

_LETTERS = 18
"""26^18 words: no conversation holds one by chance, and none can be guessed. A repeated word is refused
anyway.
"""
_TO_LETTER = (string.ascii_lowercase * 10).encode()[:256]


def new_word() -> str:
    """A word of small letters, which no template escapes, trims or splits."""
    return secrets.token_bytes(_LETTERS).translate(_TO_LETTER).decode()


@dataclass(frozen=True)
class Placement:
    """Where in the reply the word stands: in the arguments of call number `call`, or as the content."""

    call: int | None


def placements(assistant: Message) -> tuple[Placement, ...]:
    """The places to try, the last rendered value first: last call to first, then the content."""
    calls = assistant.get("tool_calls") if isinstance(assistant, Mapping) else None
    count = len(calls) if isinstance(calls, list | tuple) else 0
    return (*(Placement(i) for i in reversed(range(count))), Placement(None))


def starred(assistant: Message, word: str, placement: Placement, forms: MessageForms) -> dict[str, object]:
    """The normalised reply with one value replaced by the word, and everything a turn's end may depend on
    kept.

    Ids, names, order and number of calls stay, because templates count and show them, and so does a content
    in front of the calls, which some templates write behind them.
    """
    calls = assistant.get("tool_calls")
    if placement.call is None or not isinstance(calls, list):
        return _with_content(assistant, word)
    marked = list(calls)
    marked[placement.call] = _with_arguments(calls[placement.call], word, forms)
    return {**assistant, "tool_calls": marked}


def shielded(assistant: Message, word: str, stops: Sequence[str]) -> Message:
    """The normalised reply with a word in place of each stop token that its text spells.

    A template that writes the content behind the calls would put such a text in front of the turn's real
    end, where it would be taken for it; the word shows that.
    """

    def without_stops(text: str) -> str:
        for stop in stops:
            text = text.replace(stop, word)
        return text

    content = assistant.get("content")
    if isinstance(content, str):
        return {**assistant, "content": without_stops(content)}
    if isinstance(content, list):
        return {**assistant, "content": [{**part, "text": without_stops(part["text"])} for part in content]}
    return assistant


def _with_arguments(call: dict[str, object], word: str, forms: MessageForms) -> dict[str, object]:
    # One argument, so that it is the last however the template orders them; under its own name, if it has
    # one.
    arguments = parsed_arguments(call)
    key = next(reversed(arguments), "value") if isinstance(arguments, dict) else "value"
    value: object = {key: word}
    if forms.arguments is ArgumentForm.STRING:
        value = json.dumps(value, ensure_ascii=False)
    function = call["function"]
    return {**call, "function": {**(function if isinstance(function, dict) else {}), "arguments": value}}


def marked(message: Message, word: str) -> dict[str, object]:
    """A normalised new message with the word in front of its text, or in its stead where it is blank.

    The text itself stays, because templates look into it (`/no_think`, `<tool_response>`).
    """
    text = message_text(message).lstrip()
    return _with_content(message, f"{word} {text}" if text else word)


def _with_content(message: Message, text: str) -> dict[str, object]:
    parts = isinstance(message.get("content"), list)
    return {**message, "content": [{"type": "text", "text": text}] if parts else text}
