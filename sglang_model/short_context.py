"""Finding a fragment from the end of a conversation alone, where that was proved to give the same.

Rendering the whole history for every follow-up turn costs what the history costs; what stands behind the last reply
hardly ever depends on it. A template may number its rounds or merge its tool results, though, so nothing is assumed:
for each kind of turn the short rendering is compared with the whole one on the first turns, and again whenever a
history has doubled. One difference, and that kind of turn is rendered whole from then on.

Pure: decides which contexts to render, renders nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sglang_model.message_forms import Message
from sglang_model.splice_types import Fragment, GenerationEnd, Refusal, SpliceRequest

PROOFS: Final = 2
"""Equal renderings that are wanted before a short one is trusted."""

MAX_KINDS: Final = 4096
"""Kinds of turns that are remembered: tools and template arguments can be other ones with every request."""

SYSTEM_ROLES: Final = ("system", "developer")


class Context(Enum):
    """Which renderings a turn needs."""

    WHOLE = "whole"
    BOTH = "both"
    SHORT = "short"


@dataclass
class _Kind:
    proofs: int = 0
    proved_to: int = 0
    """The longest history, in messages, for which the two were equal."""
    differs: bool = False


def short_previous(previous: Sequence[Message]) -> tuple[Message, ...] | None:
    """The leading system messages and the last user message, or None when that is no shorter or no conversation."""
    head = 0
    while head < len(previous) and previous[head].get("role") in SYSTEM_ROLES:
        head += 1
    user = next((m for m in reversed(previous[head:]) if m.get("role") == "user"), None)
    return None if user is None or len(previous) <= head + 1 else (*previous[:head], user)


class ShortContexts:
    """What was proved, per kind of turn. Forgets the kinds that were not used for longest."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[tuple[object, ...], _Kind] = OrderedDict()

    def wanted(self, key: tuple[object, ...], history: int) -> Context:
        """The renderings for a turn behind `history` messages."""
        kind = self._kinds.setdefault(key, _Kind())
        self._kinds.move_to_end(key)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        if kind.differs:
            return Context.WHOLE
        return Context.SHORT if kind.proofs >= PROOFS and history < 2 * kind.proved_to else Context.BOTH

    def learn(self, key: tuple[object, ...], history: int, *, equal: bool) -> None:
        """Note the result of a comparison."""
        kind = self._kinds.setdefault(key, _Kind())
        kind.differs = kind.differs or not equal
        kind.proofs += 1
        kind.proved_to = max(kind.proved_to, history)


def turn_kind(rendering: bytes, request: SpliceRequest) -> tuple[object, ...]:
    """What a fragment may depend on besides the history: template inputs, the reply's form, its end, the new roles."""
    calls = request.assistant.get("tool_calls")
    return (
        rendering,
        len(calls) if isinstance(calls, list) else 0,
        bool(request.assistant.get("content")),
        _end_of(request.end),
        tuple(str(message.get("role")) for message in request.new_messages),
    )


def same_fragment(whole: Fragment | Refusal, short: Fragment | Refusal) -> bool:
    """Whether both found the same text to stand at the same place."""
    if isinstance(whole, Refusal) or isinstance(short, Refusal):
        return False
    return (whole.text, whole.left, whole.flags) == (short.text, short.left, short.flags)


def _end_of(end: GenerationEnd) -> tuple[str, str | None]:
    return end.kind.value, end.stop_token
