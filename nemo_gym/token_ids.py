"""Token ids and log probabilities of one turn: sequences that keep the text which JSON has for them.

Ids are data that nobody reads on the way, so they travel as text: the engine's answer has them as text, the
agent's answer needs them as text, and a turn has tens of thousands. Their elements become Python numbers
only for those who ask for them. This module knows no API shape and no engine.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Self, TypeVar, overload

import orjson
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from nemo_gym.by_reference import by_reference
from nemo_gym.id_text import LARGEST_ID, count_ids, count_numbers, first_numbers, joined, last_numbers

N = TypeVar("N", int, float)


class _Numbers(Sequence[N]):
    """An immutable sequence of numbers as JSON text without brackets.

    Made of numbers by calling the class, which trusts the caller, or by `checked`, which does not; of text
    by `of_text` (trusted) or `unread`. Text is *unread* until someone asks for it or for an element: what
    an agent sends back of an earlier turn is carried, counted, and normally dropped without a look. Equal
    to any sequence of the same numbers.
    """

    __slots__ = ("_is_read", "_length", "_text")
    _text: bytes | memoryview
    _kind: ClassVar[str]
    __hash__: ClassVar[None]  # type: ignore[assignment]  # equal to lists, which have none

    def __init__(self, numbers: Iterable[N] = ()) -> None:
        elements = numbers if isinstance(numbers, list) else list(numbers)
        self._text = orjson.dumps(elements)[1:-1]
        self._length: int | None = len(elements)
        self._is_read = True

    @classmethod
    def of_text(cls, text: bytes, length: int | None = None) -> Self:
        """The numbers of a text that is known to be right and without whitespace; `length` if it is known
        too.
        """
        return cls._carrying(text, length, is_read=True)

    @classmethod
    def unread(cls, text: bytes | memoryview) -> Self:
        """Whatever stood between the brackets of a JSON array. A view is copied by the first who looks at it."""
        return cls._carrying(text, None, is_read=False)

    @classmethod
    def _carrying(cls, text: bytes | memoryview, length: int | None, *, is_read: bool) -> Self:
        made = cls.__new__(cls)
        made._text, made._length, made._is_read = text, length, is_read
        return made

    @classmethod
    @abstractmethod
    def checked(cls, raw: object, where: str = "") -> Self:
        """Check `raw` element by element and keep it; an instance is returned as it is."""

    @property
    def text(self) -> bytes:
        """JSON's text of the numbers, without brackets and whitespace. Raises ValueError when what was
        carried is none.
        """
        return self.read()._carried

    def read(self, where: str = "") -> Self:
        """Check what is carried, unless that was done, and return itself. Raises ValueError as `checked`
        does.
        """
        if not self._is_read:
            self._text, self._length = self._checked(self._carried, where or self._kind)
            self._is_read = True
        return self

    @property
    def _carried(self) -> bytes:
        """The text as it came. From here on it no longer keeps in memory what it was a view of."""
        if not isinstance(self._text, bytes):
            self._text = bytes(self._text)
        return self._text

    @property
    def json(self) -> bytes:
        """The JSON array. Raises ValueError as `text` does."""
        return b"[%b]" % self.text

    def tolist(self) -> list[N]:
        """The numbers, made anew with every call. Raises ValueError as `text` does."""
        numbers: list[N] = orjson.loads(self.json)
        return numbers

    @classmethod
    def _checked(cls, text: bytes, where: str) -> tuple[bytes, int]:
        """The text as a compact writer has it, and how many numbers it has."""
        try:
            raw: object = orjson.loads(b"[%b]" % text)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{where}: expected a JSON array of numbers: {error.msg}") from None
        numbers = cls.checked(raw, where)
        return numbers.text, len(numbers)

    def __len__(self) -> int:
        if self._length is None:
            self._length = count_numbers(self._carried)
        return self._length

    def __bool__(self) -> bool:
        return bool(self._carried) and not self._carried.isspace()

    def __iter__(self) -> Iterator[N]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, index: int) -> N: ...
    @overload
    def __getitem__(self, index: slice) -> list[N]: ...
    def __getitem__(self, index: int | slice) -> N | list[N]:
        return self.tolist()[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            return self.text == other.text
        if isinstance(other, (list, tuple)):
            return self.tolist() == list(other)
        return NotImplemented

    def __add__(self, other: Iterable[N]) -> list[N]:
        return list(self) + list(other)

    def __radd__(self, other: Iterable[N]) -> list[N]:
        return list(other) + list(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(<{len(self)} numbers>)"


class TokenIds(_Numbers[int]):
    """Token ids, each an int from 0 to `LARGEST_ID`. A model's field of this type carries an instance by
    reference.
    """

    __slots__ = ()
    _kind = "token ids"

    @classmethod
    def checked(cls, raw: object, where: str = "token ids") -> Self:
        """Check `raw`, a list or tuple, and keep it; an instance is returned as it is.

        Nothing is coerced: `True`, `"12"` and `3.0` are signs that something else than ids was read. Raises
        ValueError with the index and the kind of the first bad element, never with the list.
        """
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, (list, tuple)):
            raise ValueError(f"{where}: expected a list of token ids, got {type(raw).__name__}")  # noqa: TRY004  one kind of error for pydantic
        if not set(map(type, raw)) <= {int}:
            index = next(i for i, element in enumerate(raw) if type(element) is not int)
            raise ValueError(
                f"{where}[{index}]: expected an integer token id, got {type(raw[index]).__name__}"
            )
        if raw and min(raw) < 0:
            index = next(i for i, element in enumerate(raw) if element < 0)
            raise ValueError(f"{where}[{index}]: expected a token id >= 0, got {raw[index]}")
        if raw and max(raw) > LARGEST_ID:
            index = next(i for i, element in enumerate(raw) if element > LARGEST_ID)
            raise ValueError(f"{where}[{index}]: expected a token id of at most ten digits")
        return cls(raw)

    @classmethod
    def of_array(cls, text: bytes) -> Self | None:
        """The ids of a JSON value, unread, if it is a list of neither texts nor lists nor objects; None otherwise."""
        is_flat = text[:1] == b"[" and not any(text.find(character, 1) >= 0 for character in b'["{')
        return cls.unread(text[1:-1]) if is_flat else None

    @classmethod
    def chained(cls, parts: Iterable[TokenIds]) -> Self:
        """The ids of the parts, one behind the other."""
        chain = list(parts)
        known = [part._length for part in chain if part._length is not None]
        length = sum(known) if len(known) == len(chain) else None
        return cls.of_text(joined(*(part.text for part in chain)), length)

    def carries(self, text: bytes) -> bool:
        """Whether these are the ids of `text`, as far as one can tell without reading: a copy is, byte for
        byte.
        """
        return self._carried == text

    def first(self, count: int) -> Self:
        """The first `count` ids, of which there must be as many; no integer is made."""
        return self.of_text(first_numbers(self.text, count), count)

    def last(self, count: int) -> list[int]:
        """The last ids, at most `count`, without looking at the others."""
        return last_numbers(self.text, count)

    @classmethod
    def _checked(cls, text: bytes, where: str) -> tuple[bytes, int]:
        count = count_ids(text)
        if count is not None:
            return text, count
        # As Python's json writes lists. Only that blank is taken away: without all blanks "1 2" would be the id 12.
        closer = text.replace(b", ", b",")
        count = count_ids(closer)
        if count is not None:
            return closer, count
        return super()._checked(text, where)

    @classmethod
    def __get_pydantic_core_schema__(cls, _s: object, _h: GetCoreSchemaHandler) -> CoreSchema:
        return by_reference(cls.checked, core_schema.list_schema(core_schema.int_schema()))

    @classmethod
    def __get_pydantic_json_schema__(cls, _s: CoreSchema, _h: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}


class LogProbs(_Numbers[float]):
    """Log probabilities, each a finite float. Otherwise as `TokenIds`."""

    __slots__ = ()
    _kind = "log probs"

    @classmethod
    def checked(cls, raw: object, where: str = "log probs") -> Self:
        """Check `raw`, a list or tuple, and keep it; an instance is returned as it is.

        JSON writes -1.0 as -1 at times, so ints are taken and become floats; bools, strings, null, NaN and
        infinities are not. Raises ValueError with the index and the kind of the first bad element.
        """
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, (list, tuple)):
            raise ValueError(f"{where}: expected a list of numbers, got {type(raw).__name__}")  # noqa: TRY004
        kinds = set(map(type, raw))
        if not kinds <= {float, int}:
            index = next(i for i, element in enumerate(raw) if type(element) not in (float, int))
            raise ValueError(f"{where}[{index}]: expected a log probability, got {type(raw[index]).__name__}")
        if int in kinds:
            raw = [_as_float(element) for element in raw]
        # A sum is finite only of finite numbers; that of huge ones may not be, so then each is looked at.
        if not math.isfinite(sum(raw)) and not all(map(math.isfinite, raw)):
            index = next(i for i, element in enumerate(raw) if not math.isfinite(element))
            raise ValueError(f"{where}[{index}]: expected a finite log probability, got {raw[index]}")
        return cls(raw)

    @classmethod
    def __get_pydantic_core_schema__(cls, _s: object, _h: GetCoreSchemaHandler) -> CoreSchema:
        return by_reference(cls.checked, core_schema.list_schema(core_schema.float_schema()))

    @classmethod
    def __get_pydantic_json_schema__(cls, _s: CoreSchema, _h: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "array", "items": {"type": "number"}}


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
