"""The ids of each session's latest turn as text, beside the packed store and up to a budget of bytes.

A follow-up mostly continues the turn that its session stored last. Its ids are then at hand and need not be unpacked;
of a session that is not here they are. Knows ids and numbers of sessions; nothing here is the only copy of anything.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final

from nemo_gym.token_ids import TokenIds

DEFAULT_RECENT_TEXT_BYTES: Final = 64 * 2**20
"""A hundred sessions of 100,000 tokens, or five hundred of 20,000."""

ENTRY_BYTES: Final = 300
"""What an entry takes besides its text: a place in the dictionary and its list, a tuple, the object around the ids."""


class RecentTexts:
    """One sequence of ids per session, what was not used for longest goes first. Not for use by several threads.

    `bytes` never exceeds `max_bytes`. A sequence is named by its session's serial number and its own, and is never
    another one under the same name.
    """

    def __init__(self, max_bytes: int = DEFAULT_RECENT_TEXT_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._entries: OrderedDict[int, tuple[int, TokenIds]] = OrderedDict()

    def get(self, session: int, sequence: int) -> TokenIds | None:
        """The ids of a sequence, or None where they are not at hand."""
        found = self._entries.get(session)
        if found is None or found[0] != sequence:
            return None
        self._entries.move_to_end(session)
        return found[1]

    def put(self, session: int, sequence: int, ids: TokenIds) -> None:
        """Keep a sequence in place of the session's other one, unless it alone is larger than the budget."""
        self.drop(session)
        size = _size(ids)
        if size > self.max_bytes:
            return
        self._entries[session] = (sequence, ids)
        self.bytes += size
        while self.bytes > self.max_bytes:
            _, (_, oldest) = self._entries.popitem(last=False)
            self.bytes -= _size(oldest)

    def drop(self, session: int) -> None:
        """Keep nothing of a session, if anything is kept."""
        found = self._entries.pop(session, None)
        if found is not None:
            self.bytes -= _size(found[1])


def _size(ids: TokenIds) -> int:
    return sys.getsizeof(ids.text) + ENTRY_BYTES
