"""Telling the outside what a session store dropped. Knows numbers only, no sessions and no ids."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

LOG_SECONDS: Final = 10.0
"""A full store drops a session with almost every turn; the log gets one line in this time, with the sums."""


class EvictionReason(StrEnum):
    """Which bound a session had to give way to; the value is the name of the setting."""

    TOKENS = "max_tokens"
    SESSIONS = "max_sessions"
    AGE = "max_age_seconds"


class Eviction(NamedTuple):
    """One session that was dropped: its turns, and how many ids that freed."""

    reason: EvictionReason
    turns: int
    tokens: int


OnEvict = Callable[[EvictionReason, int, int], None]
"""Called as `on_evict(reason, turns, tokens)` from whichever thread made room."""


class EvictionReport:
    """Counts every eviction at once and logs sums at most every ten seconds; none is left out of the sums."""

    def __init__(self, on_evict: OnEvict | None) -> None:
        self._on_evict = on_evict
        self._lock = threading.Lock()
        self._unlogged: list[Eviction] = []
        self._logged_at: float | None = None

    def report(self, evictions: list[Eviction], now: float) -> None:
        """Report what one call of the store dropped; called without any lock of the store."""
        if not evictions:
            return
        if self._on_evict is not None:
            for reason, (_, turns, tokens) in _sums(evictions).items():
                self._on_evict(reason, turns, tokens)
        with self._lock:
            self._unlogged += evictions
            if self._logged_at is not None and now - self._logged_at < LOG_SECONDS:
                return
            due, self._unlogged = self._unlogged, []
            self._logged_at = now
        for reason, (sessions, turns, tokens) in _sums(due).items():
            logger.log(
                logging.INFO if reason is EvictionReason.AGE else logging.WARNING,
                "session store: dropped %d sessions (%d turns, %d tokens) for %s; a later turn of theirs is "
                "rendered anew and does not continue the sampled ids. Raise %s to keep more",
                sessions,
                turns,
                tokens,
                reason.value,
                reason.value,
            )


def _sums(evictions: Iterable[Eviction]) -> dict[EvictionReason, tuple[int, int, int]]:
    """Sessions, turns and tokens by reason."""
    sessions: Counter[EvictionReason] = Counter()
    turns: Counter[EvictionReason] = Counter()
    tokens: Counter[EvictionReason] = Counter()
    for eviction in evictions:
        sessions[eviction.reason] += 1
        turns[eviction.reason] += eviction.turns
        tokens[eviction.reason] += eviction.tokens
    return {reason: (sessions[reason], turns[reason], tokens[reason]) for reason in sessions}
