"""Sequences of token ids that share their beginnings, packed.

A Python int in a list costs about 36 bytes; a trainer's server holds hundreds of millions of ids. Here an
id takes as many half bytes as its decimal text has characters and one for a comma: 3.1 bytes for a
vocabulary of 150,000. The text of a sequence, which the next request's body needs, is made of that five
times as fast as of integers. This room knows ids and nothing of what they mean: no turns, no sessions.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from nemo_gym.id_text import PackedIds, beginning, count_numbers, pack, unpack
from nemo_gym.token_ids import TokenIds

NOTHING_KNOWN: Final[Mapping[int, bytes]] = MappingProxyType({})

_NO_BASE: Final = 2**32 - 1
_LINK: Final = 3
"""Numbers per link: the base, how many characters are shared with it, and how many ids the sequence has in all."""


def common_prefix(left: bytes, right: bytes) -> int:
    """How many characters two canonical texts share at their beginning, as whole ids.

    A comma that follows the last shared id is not counted.
    """
    low = _equal_bytes(left, right)
    if _id_ends(left, low) and _id_ends(right, low):
        return low
    return max(left.rfind(b",", 0, low), 0)


def _equal_bytes(left: bytes, right: bytes) -> int:
    """How many bytes are equal at the beginning. By halves, because memcmp is far faster than a loop."""
    low, high = 0, min(len(left), len(right))
    if left.startswith(right) or right.startswith(left):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _id_ends(text: bytes, position: int) -> bool:
    return position == len(text) or text[position : position + 1] == b","


class SharedSequences:
    """Sequences of ids, numbered from 0. Each is the first ids of an earlier one, then ids of its own.

    Invariant: `sequence(add(ids, ...)) == ids`, whatever is offered as a base. How much is shared is found by
    comparing the ids, never taken from the caller. Each shares more with its base than the base with its own.
    """

    __slots__ = ("_links", "_own", "stored")

    def __init__(self) -> None:
        self._links = array("I")
        self._own: list[PackedIds] = []
        self.stored = 0
        """Number of ids that these sequences hold themselves, those of `add_held` left out."""

    def add(
        self, ids: TokenIds, bases: Iterable[int] = (), texts: Mapping[int, bytes] = NOTHING_KNOWN
    ) -> int:
        """Store `ids` behind the longest beginning that one of `bases` has in common with them."""
        base, characters = self.best_base(ids, bases, texts)
        own = ids.text[characters:].removeprefix(b",")
        self.stored += count_numbers(own)
        return self._append(base, characters, len(ids), pack(own))

    def add_held(self, packed: PackedIds, length: int) -> int:
        """Store a reference to `length` packed ids, which someone else holds and counts."""
        return self._append(None, 0, length, packed)

    def best_base(
        self, ids: TokenIds, bases: Iterable[int], texts: Mapping[int, bytes] = NOTHING_KNOWN
    ) -> tuple[int | None, int]:
        """Which of `bases` shares most with the beginning of `ids`, and how many characters that is.

        `texts` has those sequences whose text the caller got from here before, so that it is not made again.
        """
        best, characters = None, 0
        for base in bases:
            text = texts.get(base)
            count = common_prefix(self._text(base) if text is None else text, ids.text)
            if count > characters:
                best, characters = base, count
        # Straight to the one that owns the last shared id: a thousand retries are no chain of a thousand.
        while best is not None and characters <= self._shared_characters(best):
            best = self._base(best)
        return best, characters

    def is_sequence(self, index: int, ids: TokenIds) -> bool:
        """Whether sequence `index` is `ids`. Another length or another end is seen without looking at the beginning."""
        if self._links[_LINK * index + 2] != len(ids) or not ids.text.endswith(unpack(self._own[index])):
            return False
        return self._text(index) == ids.text

    def sequence(self, index: int) -> TokenIds:
        """All ids of sequence `index`."""
        return TokenIds.of_text(self._text(index), self._links[_LINK * index + 2])

    def _text(self, index: int) -> bytes:
        # Put together packed, so that a session of a thousand turns is unpacked in one go and not a thousand times.
        pieces = [self._own[index]]
        while (wanted := self._shared_characters(index)) > 0:
            index = self._base(index)
            behind = self._shared_characters(index)
            # One comma stands between what the base shares with its own base and what it adds.
            pieces.append(beginning(self._own[index], wanted - behind - (1 if behind else 0)))
        return unpack(PackedIds(b"".join(reversed(pieces))))

    def _append(self, base: int | None, shared_characters: int, length: int, own: PackedIds) -> int:
        self._links.extend((_NO_BASE if base is None else base, shared_characters, length))
        self._own.append(own)
        return len(self._own) - 1

    def _base(self, index: int) -> int:
        return self._links[_LINK * index]

    def _shared_characters(self, index: int) -> int:
        return self._links[_LINK * index + 1]


class PromptPool:
    """Prompts that several sessions begin with, each stored once for as long as someone holds it.

    The rollouts of a GRPO group start from the same prompt, often the longest part of their sessions.
    """

    def __init__(self) -> None:
        self._held: dict[PackedIds, _Held] = {}
        self.stored = 0
        """Number of ids in the pool."""

    def hold(self, prompt: TokenIds) -> PackedIds:
        """The one packed copy of `prompt`; give it back with `release` as often as it was taken."""
        packed = pack(prompt.text)
        held = self._held.get(packed)
        if held is None:
            held = self._held[packed] = _Held(packed, len(prompt))
            self.stored += held.count
        held.holders += 1
        return held.prompt

    def release(self, prompt: PackedIds) -> None:
        held = self._held[prompt]
        held.holders -= 1
        if not held.holders:
            del self._held[prompt]
            self.stored -= held.count


class _Held:
    __slots__ = ("count", "holders", "prompt")

    def __init__(self, prompt: PackedIds, count: int) -> None:
        self.prompt = prompt
        self.count = count
        self.holders = 0
