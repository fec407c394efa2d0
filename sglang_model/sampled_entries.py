"""SGLang's `meta_info` decoded by type: one look at `output_token_logprobs` reads its entries and checks them. Pure.

The entries, [logprob, id, text], are most of an answer without its prompt's ids. As plain JSON each becomes a list
with a text that nobody reads, and every number is asked for its type and its range afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias, overload

import msgspec
import orjson

from nemo_gym.id_text import LARGEST_ID
from nemo_gym.token_ids import LogProbs, TokenIds


@dataclass(frozen=True, slots=True)
class SampledEntries(Sequence[list[object]]):
    """All entries, in columns of one length. Made only by `decode_meta_info`, which has checked them: ids are integers
    from 0 to `LARGEST_ID`, log probabilities floats.

    For whoever reads the engine's own field it is the sequence of `[logprob, id, None]`.
    """

    token_ids: list[int]
    logprobs: list[float]

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, index: int) -> list[object]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[object]]: ...
    def __getitem__(self, index: int | slice) -> list[object] | list[list[object]]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        entry: list[object] = [self.logprobs[index], self.token_ids[index], None]
        return entry

    def first(self, count: int | None) -> tuple[TokenIds, LogProbs]:
        """The first entries, all without a `count`. Raises ValueError for a log probability that is not finite."""
        logprobs = self.logprobs[:count]
        finite = math.isfinite(sum(logprobs))
        return TokenIds(self.token_ids[:count]), LogProbs(logprobs) if finite else LogProbs.checked(logprobs)


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """The first two elements of a list; msgspec coerces nothing but whole numbers to floats, and skips the rest."""

    logprob: float
    token_id: Annotated[int, msgspec.Meta(ge=0, le=LARGEST_ID)]


Scalar: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float | bool | str | None
"""What msgspec makes the same of as orjson. Integers beyond 64 bits become floats there."""

_NAME: Final = "output_token_logprobs"
_META: Final = msgspec.json.Decoder(dict[str, Scalar | dict[str, msgspec.Raw] | list[_Entry]])


def decode_meta_info(raw: msgspec.Raw) -> object:
    """As `orjson.loads`, but `output_token_logprobs` is `SampledEntries` where every entry is as it should be.

    Where one is not, all is plain JSON, for whoever reads it to say what is wrong. Raises ValueError for what is no
    JSON, unless it stands in the text of an entry.
    """
    try:
        meta: Mapping[str, object] = _META.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        return loads(raw)
    decoded: dict[str, object] = {}
    for name, value in meta.items():
        if isinstance(value, list) and name == _NAME:
            decoded[name] = _in_columns(value)
        elif isinstance(value, list) and value:
            return loads(raw)  # something else whose elements look like entries
        elif isinstance(value, dict):
            decoded[name] = {key: loads(inner) for key, inner in value.items()}
        else:
            decoded[name] = value
    return decoded


def loads(raw: msgspec.Raw) -> object:
    """Decode a value that msgspec only looked over."""
    value: object = orjson.loads(memoryview(raw))
    return value


def _in_columns(entries: list[_Entry]) -> SampledEntries:
    return SampledEntries([entry.token_id for entry in entries], [entry.logprob for entry in entries])
