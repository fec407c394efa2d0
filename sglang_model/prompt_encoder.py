"""The text of a prompt into ids: cut, looked up, encoded once for all who ask, and put together as JSON text.

Short texts are encoded on the event loop and long ones in threads, a few at a time. The first prompts that are cut are
encoded whole as well, and again whenever their number has doubled: one difference, and nothing is cut any more. Knows
a function that encodes texts, and no tokenizer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from nemo_gym.token_ids import TokenIds
from sglang_model.segment_cache import SegmentCache
from sglang_model.segments import Cuts
from sglang_model.single_flight import SingleFlight

LOG = logging.getLogger(__name__)

SMALL_TEXT: Final = 4_096
"""Characters up to which a text is encoded on the event loop: that takes a millisecond, a thread and back 0.2 ms."""

COMPARED_FIRST: Final = 8
COMPARED_CHARACTERS: Final = 100_000
"""So many cut prompts are encoded whole as well, whatever they are, or fewer if those are so long together."""


class PromptEncoder:
    """What it returns are the ids of the whole text, as far as a proof and comparisons can show. For one event loop.

    `encode` is called with texts in the event loop's thread or in one of `threads`.
    """

    def __init__(
        self,
        encode: Callable[[list[str]], list[TokenIds]],
        threads: Executor,
        *,
        cuts: Cuts,
        cache: SegmentCache,
    ) -> None:
        self.cuts = cuts
        self.cache = cache
        self.flights: SingleFlight[TokenIds] = SingleFlight()
        self.compared = 0
        self.differing = 0
        """Prompts whose pieces gave other ids than the whole: 1 ends all cutting."""
        self._encode = encode
        self._threads = threads
        self._cut_prompts = 0
        self._compared_characters = 0

    def pieces(self, text: str) -> list[str]:
        """The pieces in which a text will be encoded. Hashes them too, so that a thread can do both."""
        pieces = self.cuts.pieces(text)
        for piece in pieces:
            hash(piece)
        return pieces

    async def ids(self, pieces: Sequence[str]) -> TokenIds:
        """The ids of the text that the pieces make up. Raises what `encode` raises."""
        known = {piece: ids for piece in pieces if (ids := self.cache.get(piece)) is not None}
        missing = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        own = 0

        async def encode(texts: list[str]) -> list[TokenIds]:
            nonlocal own
            own += len(texts)
            return self._remember(texts, await self._in_thread(texts))

        if sum(map(len, missing)) > SMALL_TEXT:
            known.update(await self.flights.values(missing, encode))
        elif missing:
            # Even waiting for one who is encoding a short text takes longer than encoding it.
            own = len(missing)
            known.update(zip(missing, self._remember(missing, self._encode(missing)), strict=True))
        ids = TokenIds.chained([known[piece] for piece in pieces])
        if own and len(pieces) > 1 and self._is_to_be_compared(sum(map(len, pieces))):
            return await self._compared(ids, "".join(pieces))
        return ids

    def _remember(self, texts: list[str], encoded: list[TokenIds]) -> list[TokenIds]:
        for text, ids in zip(texts, encoded, strict=True):
            self.cache.put(text, ids)
        return encoded

    def _is_to_be_compared(self, characters: int) -> bool:
        self._cut_prompts += 1
        count = self._cut_prompts
        first = count <= COMPARED_FIRST and self._compared_characters < COMPARED_CHARACTERS
        self._compared_characters += characters if first else 0
        return first or count & (count - 1) == 0

    async def _compared(self, ids: TokenIds, text: str) -> TokenIds:
        self.compared += 1
        (whole,) = self._encode([text]) if len(text) <= SMALL_TEXT else await self._in_thread([text])
        if whole == ids:
            return ids
        self.differing += 1
        self.cuts = Cuts()
        LOG.warning(
            "a prompt of %d characters has %d ids in pieces and others as a whole (%d): prompts are not cut at special "
            "tokens any more, and this one got the ids of the whole",
            len(text),
            len(ids),
            len(whole),
        )
        return whole

    async def _in_thread(self, texts: list[str]) -> list[TokenIds]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._encode, texts)
