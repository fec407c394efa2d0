"""The digests of a conversation, not made again for the part that the session sent before, letter for letter.

A rollout sends its whole history with every turn. What a message means takes 4 microseconds to find out; that thirty
messages are the same bytes as last time takes 20 for all of them. Holds digests only, no text and no ids.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from sglang_model.conversation_digest import ConversationDigests, digest_conversation

MAX_MESSAGES: Final = 200_000
"""Messages whose digests are kept, over all sessions: about 30 MB."""


@dataclass(frozen=True, slots=True)
class _Known:
    written: bytes
    """A hash of the messages as JSON, in the client's own order of keys."""
    digests: ConversationDigests


class DigestMemo:
    """The conversation that each session sent last; sessions that were silent for longest are forgotten first.

    Invariant: `digests(id, messages) == digest_conversation(messages)`, whatever came before. May be called from any
    thread.
    """

    def __init__(self, *, max_messages: int = MAX_MESSAGES) -> None:
        self._max_messages = max_messages
        self._messages = 0
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def digests(self, session_id: str, messages: Sequence[object]) -> ConversationDigests:
        """The digests of all prefixes of `messages`."""
        known = self._known.get(session_id)
        count = 0 if known is None else known.digests.messages
        begun = _written(messages[:count]) if known is not None and count <= len(messages) else None
        if known is None or begun is None or begun.digest() != known.written:
            begun, digests = _written(()), digest_conversation(messages)
            count = 0
        else:
            digests = known.digests.followed_by(*messages[count:])
        rest = _written(messages[count:], begun)
        if rest is not None:
            self._remember(session_id, _Known(rest.digest(), digests))
        return digests

    def _remember(self, session_id: str, known: _Known) -> None:
        with self._lock:
            old = self._known.pop(session_id, None)
            self._known[session_id] = known
            self._messages += known.digests.messages - (old.digests.messages if old is not None else 0)
            while self._messages > self._max_messages:
                _, forgotten = self._known.popitem(last=False)
                self._messages -= forgotten.digests.messages


def _written(messages: Sequence[object], begun: hashlib.blake2b | None = None) -> hashlib.blake2b | None:
    """A hash of the messages as they are written, behind those of `begun`; None for what is no JSON."""
    hasher = hashlib.blake2b(digest_size=16) if begun is None else begun
    try:
        for message in messages:
            hasher.update(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
    except TypeError:
        return None
    return hasher
