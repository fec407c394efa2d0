"""Which replica of the engine serves a session."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

COOLDOWN_SECONDS = 15.0
"""How long a replica that could not be reached is passed over. Its sessions move, and come back afterwards."""


class Replicas:
    """Sticky choice among `count` replicas by rendezvous hashing.

    The same session has the same replica in every worker and process, because the choice depends on nothing but the
    session id and the number of replicas; there is no table that could grow. When a replica is down, only its own
    sessions move, spread over the others.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._down_until: dict[int, float] = {}

    def ranking(self, session_id: str, count: int) -> list[int]:
        """Indices of all replicas, the session's own first, those that are down last."""
        if count == 1:
            return [0]
        order = sorted(range(count), key=lambda index: _weight(session_id, index), reverse=True)
        return sorted(order, key=self.is_down)

    def is_down(self, index: int) -> bool:
        return self._clock() < self._down_until.get(index, 0.0)

    def mark_down(self, index: int) -> None:
        self._down_until[index] = self._clock() + COOLDOWN_SECONDS

    def mark_up(self, index: int) -> None:
        self._down_until.pop(index, None)


def _weight(session_id: str, index: int) -> bytes:
    return hashlib.sha256(f"{index}:{session_id}".encode()).digest()
