"""Token ids in four bytes each, and sequences of them that share their beginnings.

A Python int in a list costs about 36 bytes; a trainer's server holds hundreds of millions of ids. This room
knows ids and nothing of what they mean: no turns, no sessions, no text.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NewType

from nemo_gym.errors import UpstreamContractError

PackedIds = NewType("PackedIds", bytes)
"""Token ids as unsigned 32-bit integers of this machine's byte order, one after another."""

ID_SIZE: Final = 4

_LARGEST: Final = 2**32 - 1
_CHUNK: Final = 4096


def pack_ids(ids: Sequence[int]) -> PackedIds:
    """Return `ids` packed. Raises UpstreamContractError for what is no integer from 0 to 2**32 - 1."""
    try:
        return PackedIds(array("I", ids).tobytes())
    except (OverflowError, TypeError):
        raise UpstreamContractError(
            f"expected {len(ids)} integer token ids from 0 to {_LARGEST}, got at least one other value. No "
            "vocabulary is that large: the engine's answer was misread or is broken"
        ) from None


def unpack_ids(packed: PackedIds) -> array[int]:
    """Return the ids as an `array('I')` of the caller's own."""
    return array("I", packed)


def count_ids(packed: PackedIds) -> int:
    return len(packed) // ID_SIZE


def common_prefix(left: PackedIds, right: PackedIds) -> int:
    """Return how many ids both sequences have in common at their beginning."""
    end = min(len(left), len(right))
    start = 0
    # A chunk at a time, because comparing bytes is a memcmp and a loop over ids is not.
    while start < end:
        stop = min(start + _CHUNK, end)
        if left[start:stop] != right[start:stop]:
            pairs = zip(
                unpack_ids(PackedIds(left[start:stop])), unpack_ids(PackedIds(right[start:stop])), strict=True
            )
            return start // ID_SIZE + next(i for i, (one, other) in enumerate(pairs) if one != other)
        start = stop
    return end // ID_SIZE


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

    def add(self, ids: PackedIds, bases: Iterable[int] = ()) -> int:
        """Store `ids` behind the longest beginning that one of `bases` has in common with them."""
        base, shared = self.best_base(ids, bases)
        own = PackedIds(ids[shared * ID_SIZE :])
        self.stored += count_ids(own)
        return self._append(base, shared, own)

    def add_held(self, ids: PackedIds) -> int:
        """Store a reference to `ids`, which someone else holds and counts."""
        return self._append(None, 0, ids)

    def best_base(self, ids: PackedIds, bases: Iterable[int]) -> tuple[int | None, int]:
        """Return which of `bases` has most ids in common with the beginning of `ids`, and how many."""
        best, shared = None, 0
        for base in bases:
            count = common_prefix(self.sequence(base), ids)
            if count > shared:
                best, shared = base, count
        # Straight to the one that owns the last shared id: a thousand retries are no chain of a thousand.
        while best is not None and shared <= self._shared(best):
            best = self._base(best)
        return best, shared

    def sequence(self, index: int) -> PackedIds:
        """Return all ids of sequence `index`."""
        pieces: list[bytes] = []
        wanted = self.length(index)
        while wanted:
            shared = self._shared(index)
            pieces.append(self._own[index][: (wanted - shared) * ID_SIZE])
            wanted, index = shared, self._base(index)
        return PackedIds(b"".join(reversed(pieces)))

    def length(self, index: int) -> int:
        return self._shared(index) + count_ids(self._own[index])

    def _append(self, base: int | None, shared: int, own: PackedIds) -> int:
        self._links.extend((0 if base is None else base, shared))
        self._own.append(own)
        return len(self._own) - 1

    def _base(self, index: int) -> int:
        return self._links[2 * index]

    def _shared(self, index: int) -> int:
        return self._links[2 * index + 1]


class PromptPool:
    """Prompts that several sessions begin with, each stored once for as long as someone holds it.

    The rollouts of a GRPO group start from the same prompt, often the longest part of their sessions.
    """

    def __init__(self) -> None:
        self._held: dict[PackedIds, _Held] = {}
        self.stored = 0
        """Number of ids in the pool."""

    def hold(self, prompt: PackedIds) -> PackedIds:
        """Return the one copy of `prompt`; give it back with `release` as often as it was taken."""
        held = self._held.get(prompt)
        if held is None:
            held = self._held[prompt] = _Held(prompt)
            self.stored += count_ids(prompt)
        held.holders += 1
        return held.prompt

    def release(self, prompt: PackedIds) -> None:
        held = self._held[prompt]
        held.holders -= 1
        if not held.holders:
            del self._held[prompt]
            self.stored -= count_ids(prompt)


class _Held:
    __slots__ = ("holders", "prompt")

    def __init__(self, prompt: PackedIds) -> None:
        self.prompt = prompt
        self.holders = 0
