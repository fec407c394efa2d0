"""What was sampled, per session, so that a follow-up turn can be sent with the very ids of the turns before
it.

How requests of one session run side by side: a request calls `find`, waits for the engine as long as that
takes, and calls `commit`. Nothing is held in between. A turn that fails, is aborted or loses its client
never commits, and the session is as it was. A commit names the turn that its request continued; whether
that turn is still there is compared at the commit, and no answer of this store ever mixes the ids of two
turns, however requests interleave.

This room knows no HTTP, no tokenizer and no template. All methods may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from nemo_gym.errors import ConfigError
from sglang_model.conversation_digest import ConversationDigests
from sglang_model.evictions import Eviction, EvictionReason, EvictionReport, OnEvict
from sglang_model.id_sequences import PromptPool
from sglang_model.recent_texts import DEFAULT_RECENT_TEXT_BYTES, RecentTexts
from sglang_model.session_tree import CheckedTurn, Match, MissReason, SessionTree, Turn, TurnHandle

__all__ = [
    "CommitOutcome",
    "EvictionReason",
    "InMemorySessionStore",
    "Match",
    "MissReason",
    "SessionStore",
    "StoreSize",
    "Turn",
    "TurnHandle",
]

logger = logging.getLogger(__name__)

DEFAULT_MAX_TOKENS: Final = 400_000_000
"""1.3 GB of ids, 4,000 sessions of 100,000 tokens; with its bookkeeping the store stays under 2.4 GB."""
DEFAULT_MAX_SESSIONS: Final = 200_000
"""For clients that start a session with every request: this many take a few hundred MB of bookkeeping."""
DEFAULT_MAX_AGE_SECONDS: Final = 4 * 3600.0
"""Longer than the slowest tool call or queue between two turns; a rollout silent for longer is over."""

_EXPIRED_PER_CALL: Final = 64
"""After a long silence thousands of sessions are due at once, and no request should wait for them all."""
_REMEMBERED_EVICTIONS: Final = 65_536


class CommitOutcome(StrEnum):
    """What became of a turn."""

    COMMITTED = "committed"
    STALE = "stale"
    """The turn that it continues is gone. It is stored all the same: on its own, with all its ids."""
    TOO_LARGE = "too_large"
    """It has more ids than the store may hold. Not stored, and nothing was dropped for it."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """What a store holds; `tokens` counts an id once, however many turns and sessions share it."""

    sessions: int
    turns: int
    tokens: int


class SessionStore(Protocol):
    """Where turns are kept. An implementation may wait for a network: call it from a worker thread."""

    def find(
        self, session_id: str, conversation: ConversationDigests, rendering: bytes
    ) -> Match | MissReason:
        """Return the latest point of `conversation` that is a stored turn, or why there is none.

        Only turns whose prompt was rendered from the inputs of `rendering` are taken.
        """

    def commit(self, session_id: str, parent: TurnHandle | None, turn: Turn) -> CommitOutcome:
        """Store a finished turn; `parent` is the handle of the match that its prompt was made from, if any.

        Raises UpstreamContractError if an id has more than ten digits.
        """

    def forget(self, session_id: str) -> None:
        """Drop the session, if it is there."""


class InMemorySessionStore:
    """The session store of one process.

    Invariants: what is found is what was committed, id by id. After every call there are at most
    `max_tokens` ids and `max_sessions` sessions; the session unused for longest goes first, and goes as a
    whole. A session unused for more than `max_age_seconds` is not found. Beside that there are at most
    `recent_text_bytes` bytes of latest turns that need no unpacking; what is found does not depend on them.
    The lock is held for dictionary work and copies of ids, and never while `on_evict`, the clock or the log
    is called.
    """

    def __init__(
        self,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        max_sessions: int = DEFAULT_MAX_SESSIONS,
        max_age_seconds: float = DEFAULT_MAX_AGE_SECONDS,
        recent_text_bytes: int = DEFAULT_RECENT_TEXT_BYTES,
        on_evict: OnEvict | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, bound in (
            ("max_tokens", max_tokens),
            ("max_sessions", max_sessions),
            ("max_age_seconds", max_age_seconds),
        ):
            if not bound > 0:
                raise ConfigError(f"session store: expected {name} above 0, got {bound}", param=name)
        self._max_tokens = max_tokens
        self._max_sessions = max_sessions
        self._max_age = max_age_seconds
        self._report = EvictionReport(on_evict).report
        self._clock = clock
        self._lock = threading.Lock()
        self._trees: OrderedDict[str, SessionTree] = OrderedDict()  # unused for longest first
        self._evicted: OrderedDict[str, None] = OrderedDict()
        self._pool = PromptPool()
        self._texts = RecentTexts(recent_text_bytes)
        self._planted = 0
        self._turns = 0
        self._tokens_in_trees = 0

    def find(
        self, session_id: str, conversation: ConversationDigests, rendering: bytes
    ) -> Match | MissReason:
        now = self._clock()
        evictions: list[Eviction] = []
        with self._lock:
            tree = self._live_tree(session_id, now, evictions)
            found = (
                self._why_no_session(session_id, conversation)
                if tree is None
                else tree.find(conversation, rendering, self._texts)
            )
        self._report(evictions, now)
        return found

    def commit(self, session_id: str, parent: TurnHandle | None, turn: Turn) -> CommitOutcome:
        checked = CheckedTurn.of(turn)
        size = len(checked.ids)
        if size > self._max_tokens:
            logger.warning(
                "session store: a turn of %d tokens is not kept, because max_tokens is %d; its next turn is "
                "rendered anew",
                size,
                self._max_tokens,
            )
            return CommitOutcome.TOO_LARGE
        now = self._clock()
        evictions: list[Eviction] = []
        with self._lock:
            tree = self._live_tree(session_id, now, evictions)
            stale = parent is not None and (tree is None or not tree.has_turn(parent))
            if tree is None:
                tree = self._plant(session_id, now)
            self._add(tree, checked, None if stale else parent)
            self._make_room(session_id, checked, now, evictions)
        self._report(evictions, now)
        return CommitOutcome.STALE if stale else CommitOutcome.COMMITTED

    def forget(self, session_id: str) -> None:
        with self._lock:
            if session_id in self._trees:
                self._drop(session_id)
            self._evicted.pop(session_id, None)

    def size(self) -> StoreSize:
        """Return what is held now."""
        now = self._clock()
        evictions: list[Eviction] = []
        with self._lock:
            self._expire(now, evictions)
            size = StoreSize(len(self._trees), self._turns, self._tokens)
        self._report(evictions, now)
        return size

    @property
    def recent_text_bytes(self) -> int:
        """What the latest turns take that are at hand as text, beside what is stored; at most as many as given."""
        return self._texts.bytes

    @property
    def _tokens(self) -> int:
        return self._tokens_in_trees + self._pool.stored

    def _live_tree(self, session_id: str, now: float, evictions: list[Eviction]) -> SessionTree | None:
        """The session's tree, marked as used now; None if there is none or it is too old."""
        self._expire(now, evictions)
        tree = self._trees.get(session_id)
        if tree is None:
            return None
        if self._too_old(tree, now):
            self._evict(session_id, EvictionReason.AGE, evictions)
            return None
        tree.last_used = now
        self._trees.move_to_end(session_id)
        return tree

    def _why_no_session(self, session_id: str, conversation: ConversationDigests) -> MissReason:
        if not conversation.assistant_ends:
            return MissReason.NEW_CONVERSATION
        return MissReason.EVICTED if session_id in self._evicted else MissReason.NO_SESSION

    def _too_old(self, tree: SessionTree, now: float) -> bool:
        return now - tree.last_used > self._max_age

    def _expire(self, now: float, evictions: list[Eviction]) -> None:
        for _ in range(_EXPIRED_PER_CALL):
            oldest = next(iter(self._trees), None)
            if oldest is None or not self._too_old(self._trees[oldest], now):
                return
            self._evict(oldest, EvictionReason.AGE, evictions)

    def _plant(self, session_id: str, now: float) -> SessionTree:
        lost_turns = session_id in self._evicted
        self._evicted.pop(session_id, None)
        self._planted += 1
        tree = self._trees[session_id] = SessionTree(self._planted, lost_turns=lost_turns)
        tree.last_used = now
        return tree

    def _add(self, tree: SessionTree, checked: CheckedTurn, parent: TurnHandle | None) -> None:
        turns, tokens = tree.turns, tree.stored
        tree.add(checked, parent, self._pool, self._texts)
        self._turns += tree.turns - turns
        self._tokens_in_trees += tree.stored - tokens

    def _make_room(
        self, session_id: str, checked: CheckedTurn, now: float, evictions: list[Eviction]
    ) -> None:
        """Drop others until all bounds hold; if this session alone is too large, drop all of it but this
        turn.
        """
        while len(self._trees) > self._max_sessions or self._tokens > self._max_tokens:
            too_many = len(self._trees) > self._max_sessions
            oldest = next(iter(self._trees))
            self._evict(oldest, EvictionReason.SESSIONS if too_many else EvictionReason.TOKENS, evictions)
            if oldest == session_id:
                self._add(self._plant(session_id, now), checked, None)

    def _evict(self, session_id: str, reason: EvictionReason, evictions: list[Eviction]) -> None:
        turns, tokens = self._drop(session_id)
        evictions.append(Eviction(reason, turns, tokens))
        self._evicted[session_id] = None
        if len(self._evicted) > _REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)

    def _drop(self, session_id: str) -> tuple[int, int]:
        """Remove a session; return its turns and how many ids that freed."""
        before = self._tokens
        tree = self._trees.pop(session_id)
        tree.release(self._pool, self._texts)
        self._turns -= tree.turns
        self._tokens_in_trees -= tree.stored
        return tree.turns, before - self._tokens
