"""The ids of texts that were encoded before, up to a budget of bytes.

The rollouts of a group begin with the same prompt, and a conversation that is rendered anew repeats all but its end:
both are looked up by their pieces. Knows no tokenizer and no conversation, only texts and what became of them.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final

from nemo_gym.token_ids import TokenIds

DEFAULT_SEGMENT_CACHE_BYTES: Final = 64 * 2**20

ENTRY_BYTES: Final = 200
"""What an entry takes besides its two texts: a place in the dictionary and its list, and the object around the ids."""


class SegmentCache:
    """Text to ids, kept as JSON text; what was not used for longest goes first. Not for use by several threads.

    `bytes` never exceeds `max_bytes`. `hits` counts the texts that were found, `misses` those that had to be encoded.
    """

    def __init__(self, max_bytes: int = DEFAULT_SEGMENT_CACHE_BYTES) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._entries: OrderedDict[str, TokenIds] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, text: str) -> TokenIds | None:
        """The ids of a text, or None where they are not known."""
        ids = self._entries.get(text)
        if ids is not None:
            self._entries.move_to_end(text)
            self.hits += 1
        return ids

    def put(self, text: str, ids: TokenIds) -> None:
        """Remember what was encoded, unless it alone is larger than the budget."""
        self.misses += 1
        size = _size(text, ids)
        if size > self.max_bytes or text in self._entries:
            return
        self._entries[text] = ids
        self.bytes += size
        while self.bytes > self.max_bytes:
            self.bytes -= _size(*self._entries.popitem(last=False))


def _size(text: str, ids: TokenIds) -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids.text) + ENTRY_BYTES
