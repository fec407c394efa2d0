"""Requests that begin like an earlier one, decoded and validated from there on only.

An agent sends its whole history with every turn: a thousand items, of which two are new. What was read of the others
stands here with the bytes that it was read from; a request that begins with the very same bytes shares those items.
Knows the wire form of a request; knows no model's fields but the one that holds the items.

Invariant, held against the plain way on arbitrary requests in `tests/nemo_gym/test_request_memo.py`: a request is read
as it would be without a memo, errors included, or not at all (`continued` returns None); but the items that are kept
have empty ids. Those of an earlier turn are checked and let go, and with them the bytes of the request, of which they
are 99 %: the next request is read into the same memory, which is still in the processor's cache.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar, cast

import msgspec
import orjson
from pydantic import BaseModel, ValidationError

from nemo_gym import json_ids
from nemo_gym.grown_list import GrownList, Made
from nemo_gym.json_ids import Numbers
from nemo_gym.token_ids import LogProbs, TokenIds
from nemo_gym.token_metadata import TOKEN_FIELDS, TokenIDLogProbMixin

Model = TypeVar("Model", bound=BaseModel)

MAX_ITEMS: Final = 20_000
"""Items that are kept, over all conversations. Each is half a dozen Python objects, which every full garbage collection
walks: 5 to 10 ms in all."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Bytes of requests that are kept, without the ids in them. As Python objects they are there once more, four times as
large where a text has a character beyond the 16-bit ones."""

FEWEST_ITEMS: Final = 8
"""Shorter requests are read whole, which takes less than looking for their beginning."""

BEGINNING: Final = 256
"""Bytes of a request by which the conversations of one session, sub-agents' among them, are told apart."""

_BLANKS: Final = b" \t\n\r"
_PLACE: Final = secrets.token_hex(16)
_PLACE_JSON: Final = orjson.dumps(_PLACE)
_EMPTY: Final[dict[str, Numbers]] = {
    name: LogProbs() if name == "generation_log_probs" else TokenIds() for name in TOKEN_FIELDS
}


@dataclass(frozen=True, slots=True)
class _Known:
    """The beginning of one request, up to and with its last item."""

    text: bytes
    """Its bytes, a stand-in for each array of ids."""
    head: int
    """Where the items begin in it."""
    arrays: int
    """Arrays of ids that were cut out of it."""
    items: tuple[object, ...]
    """As they were validated; those that carried ids have empty ones."""
    carriers: Mapping[int, Mapping[str, int]]
    """Items that carried ids -> the places of their arrays among those of the request."""
    made: Made


class RequestMemo:
    """The latest request of each conversation; those that were silent for longest are forgotten first.

    Holds no ids. May be called from any thread. For servers that never change an item in place, and that do
    nothing with the ids of earlier turns.
    """

    def __init__(
        self, *, max_items: int = MAX_ITEMS, max_bytes: int = MAX_BYTES, fewest_items: int = FEWEST_ITEMS
    ) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._fewest_items = fewest_items
        self._known: OrderedDict[Hashable, _Known] = OrderedDict()
        self._items = 0
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def items(self) -> int:
        """Number of items that are kept."""
        return self._items

    def continued(
        self,
        conversation: Hashable,
        text: bytes,
        arrays: Sequence[Numbers],
        model_class: type[Model],
        field: str,
    ) -> Model | None:
        """The request of which `json_ids.cut` made `text` and `arrays`, if it is a valid one and begins like the one
        before it in this conversation; None for any other.

        Its items, the list under `field`, are a GrownList. The earlier ones among them are the very same objects.
        """
        key = (conversation, text[:BEGINNING])
        known = self._known.get(key)
        if known is None or not text.startswith(known.text):
            return None
        rest = text[len(known.text) :].lstrip(_BLANKS)
        new_text = rest[1:].lstrip(_BLANKS)
        if not rest.startswith(b",") or new_text.startswith(b"]"):
            return None
        request = _Request.of(known.text[: known.head] + new_text, known.head, field)
        if request is None or not _belong_together(known, arrays):
            return None
        body = request.body(field)
        if body is None or json_ids.put_back(body, arrays) != len(arrays) - known.arrays:
            return None
        new = cast("list[object]", body[field])
        model = _validated(body, model_class)
        if model is None:
            return None
        validated = cast("list[object]", getattr(model, field))
        carriers = _carriers(new, validated, arrays)
        if carriers is None:
            return None
        earlier = len(known.items)
        items = GrownList(
            [*known.items, *_without_ids(validated, carriers)], known=earlier, before=known.made
        )
        setattr(model, field, items)
        now = _Known(
            text=text[: len(text) - request.behind].rstrip(_BLANKS),
            head=known.head,
            arrays=len(arrays),
            items=tuple(items),
            carriers={
                **known.carriers,
                **{earlier + index: places for index, places in carriers.items()},
            },
            made=items.made,
        )
        self._remember(key, now)
        return model

    def new_bytes(self, conversation: Hashable, text: bytes) -> int:
        """How many bytes of the text would be decoded by `continued`, if it begins like what is known."""
        known = self._known.get((conversation, text[:BEGINNING]))
        return 0 if known is None else max(0, len(text) - len(known.text))

    def wants(self, model: BaseModel, field: str) -> bool:
        """Whether a request has enough items to be remembered."""
        items = getattr(model, field)
        return isinstance(items, list) and len(items) >= self._fewest_items

    def remember(
        self,
        conversation: Hashable,
        text: bytes,
        arrays: Sequence[Numbers],
        body: Mapping[str, object],
        model: BaseModel,
        field: str,
    ) -> None:
        """Note a request that was read without this memo, for the ones that will begin like it; `body` is its JSON, the
        arrays put back.
        """
        if not self.wants(model, field):
            return
        items: list[object] = getattr(model, field)
        at = _opening(field).search(text)
        request = _Request.of(text, at.end(), field) if at is not None else None
        if at is None or request is None or request.rest(field) is None:
            return
        carriers = _carriers(cast("list[object]", body[field]), items, arrays)
        if carriers is None or sum(map(len, carriers.values())) != len(arrays):
            return
        grown = GrownList(_without_ids(items, carriers))
        setattr(model, field, grown)
        known = _Known(
            text=text[: len(text) - request.behind].rstrip(_BLANKS),
            head=at.end(),
            arrays=len(arrays),
            items=tuple(grown),
            carriers=carriers,
            made=grown.made,
        )
        self._remember((conversation, text[:BEGINNING]), known)

    def _remember(self, key: Hashable, known: _Known) -> None:
        fits = len(known.items) <= self._max_items and len(known.text) <= self._max_bytes
        with self._lock:
            self._count(None, self._known.pop(key, None))
            if not fits:  # it would push out all others, and then itself
                return
            self._known[key] = known
            self._count(known, None)
            while self._items > self._max_items or self._bytes > self._max_bytes:
                self._count(None, self._known.popitem(last=False)[1])

    def _count(self, added: _Known | None, removed: _Known | None) -> None:
        for known, sign in ((added, 1), (removed, -1)):
            if known is not None:
                self._items += sign * len(known.items)
                self._bytes += sign * len(known.text)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request's JSON text, taken apart."""

    others: bytes
    """The text with a string, the place, for the list of the items."""
    listed: bytes
    """The list of the items."""
    behind: int
    """How many bytes of the text are left where the list is closed, its bracket included."""

    @classmethod
    def of(cls, text: bytes, start: int, field: str) -> _Request | None:
        """`start` is behind the bracket that opens the list. None where that is not the list under `field`."""
        try:
            listed = bytes(_decoder(field).decode(text).items)
        except (msgspec.MsgspecError, RecursionError):
            return None
        if not text.startswith(listed, start - 1):
            return None
        end = start - 1 + len(listed)
        return cls(b"%b%b%b" % (text[: start - 1], _PLACE_JSON, text[end:]), listed, len(text) - end + 1)

    def body(self, field: str) -> dict[str, object] | None:
        """The decoded request; None for what is no JSON, or where another list than this one would be read."""
        rest = self.rest(field)
        try:
            # In an object, as deep as it is in the whole: how deep JSON may be is counted from there.
            items = orjson.loads(b'{"":%b}' % self.listed)[""]
        except orjson.JSONDecodeError:
            return None
        return None if rest is None or not isinstance(items, list) else {**rest, field: items}

    def rest(self, field: str) -> dict[str, object] | None:
        """The decoded request with the place for the list; None as for `body`."""
        try:
            rest = orjson.loads(self.others)
        except orjson.JSONDecodeError:
            return None
        return rest if isinstance(rest, dict) and rest.get(field) == _PLACE else None


class _Listed(msgspec.Struct):
    items: msgspec.Raw


@lru_cache(maxsize=8)
def _opening(field: str) -> re.Pattern[bytes]:
    return re.compile(rb'"%b"[ \t\n\r]*:[ \t\n\r]*\[' % field.encode())


@lru_cache(maxsize=8)
def _decoder(field: str) -> msgspec.json.Decoder[_Listed]:
    """Finds the text of the list under `field`, without decoding what is in it."""
    return msgspec.json.Decoder(
        msgspec.defstruct("Listed", [("items", msgspec.Raw, msgspec.field(name=field))], bases=(_Listed,))
    )


def _validated(body: Mapping[str, object], model_class: type[Model]) -> Model | None:
    """None for an invalid request: the error names the places of the whole one."""
    try:
        return model_class.model_validate(body)
    except ValidationError:
        return None


def _carriers(
    items: Sequence[object], validated: Sequence[object], arrays: Sequence[Numbers]
) -> dict[int, dict[str, int]] | None:
    """Items with ids -> the places of their arrays; None where ids stand elsewhere than a turn's do, or with them what
    is as large as they are.
    """
    places = {id(array): place for place, array in enumerate(arrays)}
    carriers: dict[int, dict[str, int]] = {}
    for index, item in enumerate(items):
        fields = item if isinstance(item, dict) else {}
        if fields.get("routed_experts") is not None:
            return None
        own = {name: fields[name] for name in TOKEN_FIELDS if fields.get(name) is not None}
        if not own:
            continue
        if own.keys() != _EMPTY.keys() or not all(id(array) in places for array in own.values()):
            return None
        if not isinstance(validated[index], (TokenIDLogProbMixin, dict)):
            return None
        carriers[index] = {name: places[id(array)] for name, array in own.items()}
    return carriers


def _without_ids(items: Sequence[object], carriers: Mapping[int, object]) -> list[object]:
    return [_emptied(item) if index in carriers else item for index, item in enumerate(items)]


def _belong_together(known: _Known, arrays: Sequence[Numbers]) -> bool:
    """Whether this request's ids of the earlier turns are as many as their log probabilities."""
    return all(
        len(arrays[places["generation_token_ids"]]) == len(arrays[places["generation_log_probs"]])
        for places in known.carriers.values()
    )


def _emptied(item: object) -> object:
    if isinstance(item, TokenIDLogProbMixin):
        return item.model_copy(update=_EMPTY)
    return {**cast("Mapping[str, object]", item), **_EMPTY}
