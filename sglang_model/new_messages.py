"""Proves that every new message stands in a rendering behind the reply, and where the first of them starts.

Templates leave out messages of roles they do not know, or move system messages to the front; a fragment
made from such a rendering would lose the environment's words without a trace. Two proofs: a text that can
come from nowhere else stands there once; or a second rendering, with a made-up word in front of every new
text, shows the places. Pure text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_model.message_forms import Message, message_text
from sglang_model.splice_types import Refusal, RefusalReason, SpecialTokens, SpliceFlag
from sglang_model.turn_end import common_prefix_length

_DISTINCTIVE = 24
"""Characters from which on a text is not part of a template's own scaffolding by chance."""
_RECOGNISABLE = 6
"""Letters in a row that show an altered text to be there."""


def plainly_present(
    full: str, start: int, new_messages: Sequence[Message], known_texts: Sequence[str], tokens: SpecialTokens
) -> bool:
    """Whether each new text stands exactly once in the rendering, behind `start`, in order, and nowhere
    else before.

    Saves a rendering in the usual case of long tool results. Short texts, texts that spell special tokens
    and texts that also stand in an earlier message or a tool prove nothing, for a template may write those
    itself.
    """
    at = start
    for message in new_messages:
        text = message_text(message).strip()
        if len(text) < _DISTINCTIVE or tokens.occur_in(text) or any(text in known for known in known_texts):
            return False
        found = full.find(text)
        if found < at or full.find(text, found + 1) >= 0:
            return False
        at = found + len(text)
    return True


def texts_of(messages: Sequence[Message], tools: Sequence[Message] | None) -> list[str]:
    """All text of a conversation that a template could write a second time."""
    texts = [message_text(message) for message in messages]
    return [*texts, json.dumps(list(tools), ensure_ascii=False, default=str)] if tools else texts


@dataclass(frozen=True)
class MarkedTail:
    """What stands behind the reply when each new text has its word in front: the text between those words."""

    head: str
    tail: str
    words: tuple[str, ...]

    def lost(self, new_messages: Sequence[Message]) -> Refusal | None:
        """A new message that is not rendered behind the reply; one without text may be left out."""
        for i, (message, word) in enumerate(zip(new_messages, self.words, strict=True)):
            if word in self.tail or not message_text(message).strip():
                continue
            where = f"new message {i} of role {str(message.get('role'))[:20]!r}"
            if word in self.head:
                return Refusal(
                    RefusalReason.NEW_MESSAGE_HOISTED,
                    f"{where} is rendered in front of the reply by the template",
                )
            return Refusal(RefusalReason.NEW_MESSAGE_DROPPED, f"{where} is not rendered by the template")
        return None

    def bound(self, tail: str) -> int:
        """Where the first new text starts in the real tail, at the latest: up to there both renderings
        agree.
        """
        places = [at for word in self.words if (at := self.tail.find(word)) >= 0]
        return min([common_prefix_length(tail, self.tail), *places])

    def closing(self, new_messages: Sequence[Message]) -> str | None:
        """What stands behind the last new text; None if the template changes it."""
        shown = [pair for pair in zip(new_messages, self.words, strict=True) if pair[1] in self.tail]
        if not shown:
            return None
        text = message_text(shown[-1][0]).strip()
        rest = self.tail.partition(shown[-1][1])[2].lstrip()
        return rest[len(text) :].lstrip() if rest.startswith(text) else None

    def prove(self, tail: str, new_messages: Sequence[Message]) -> frozenset[SpliceFlag] | Refusal:
        """Whether the real tail is the marked one without the words; flags a text that the template
        changed.
        """
        texts = [message_text(message) for message in new_messages]
        places = _places(tail, self.tail, self.words, texts)
        if places is None:
            return _recognised(tail, self.bound(tail), texts)
        shown = all(_shown(tail, at, text) for at, text in zip(places, texts, strict=True) if text.strip())
        return frozenset() if shown else frozenset({SpliceFlag.NEW_MESSAGE_ALTERED})


def _places(tail: str, marked: str, words: Sequence[str], texts: Sequence[str]) -> list[int] | None:
    """Where each text starts in `tail`, if `tail` is `marked` with each word taken out; None if it is not.

    A message without text may be left out in both (place -1).
    With the word went the blank space in front of the text; it comes back if the template keeps it, raw or
    escaped.
    """
    order = sorted((at, i) for i, word in enumerate(words) if (at := marked.find(word)) >= 0)
    places = [-1] * len(words)
    at = read = 0
    for place, i in order:
        piece = marked[read:place]
        if not tail.startswith(piece, at):
            return None
        at += len(piece)
        places[i] = at
        read = place + len(words[i]) + (1 if texts[i].strip() else 0)
        stop = min((p for p, _ in order if p > place), default=len(marked))
        following = marked[read:stop]
        blank = texts[i][: len(texts[i]) - len(texts[i].lstrip())]
        at = next((at + len(b) for b in _blanks(blank) if tail.startswith(b + following, at)), -1)
        if at < 0:
            return None
    return places if tail[at:] == marked[read:] else None


def _blanks(blank: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((blank, json.dumps(blank)[1:-1], "")))


def _shown(tail: str, at: int, text: str) -> bool:
    forms = (text, text.strip(), json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    stripped = (json.dumps(text.strip())[1:-1], json.dumps(text.strip(), ensure_ascii=False)[1:-1])
    return any(tail.startswith(form, at) for form in (*forms, *stripped))


def _recognised(tail: str, start: int, texts: Sequence[str]) -> frozenset[SpliceFlag] | Refusal:
    """The weak proof, for a template that renders a marked text otherwise: each text's longest word, in
    order.
    """
    at = start
    for i, text in enumerate(texts):
        word = max(_words(text), key=len, default="")
        found = tail.find(word, at)
        if text.strip() and (len(word) < _RECOGNISABLE or found < 0):
            return Refusal(
                RefusalReason.NEW_MESSAGE_UNPROVEN,
                f"the template changes new message {i} of {len(text)} characters beyond recognition",
            )
        at = max(at, found + len(word))
    return frozenset({SpliceFlag.NEW_MESSAGE_ALTERED})


def _words(text: str) -> list[str]:
    return "".join(character if character.isalnum() else " " for character in text).split()
