"""Lists that begin like an earlier one, so that what was made of that one need not be made again.

An agent sends its whole history with every turn. The request memo (`request_memo.py`) recognises the part that is not
new; the steps behind it, each a function of one element after the other, hand that knowledge on to each other here.
Knows neither requests nor messages.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

A = TypeVar("A")
B = TypeVar("B")


@dataclass(slots=True)
class Made:
    """What was made of one list, by who made it. Of nothing but that list, and never changed once it is there."""

    of: dict[Hashable, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _MadeList:
    """A list that was made of another one, and in turn what was made of it."""

    elements: tuple[object, ...]
    made: Made


class GrownList(list[A], Generic[A]):
    """A list with the knowledge that it begins like an earlier one.

    `known` is how many elements it has in common with that, and `before` what was made of them; `made` is for what is
    made of this one. The elements are shared with earlier and later requests: whoever wants another element puts a new
    one in its place.
    """

    __slots__ = ("before", "known", "made")

    def __init__(self, elements: Iterable[A] = (), *, known: int = 0, before: Made | None = None) -> None:
        super().__init__(elements)
        self.known = known
        self.before = before
        self.made = Made()


def mapped(one: Callable[[A], B], values: Sequence[A], *, key: Hashable = None) -> list[B]:
    """`[one(value) for value in values]`, where `one` looks at nothing but the value.

    `key` names what `one` does where the function itself is another object with every call.
    """
    if not isinstance(values, GrownList):
        return [one(value) for value in values]
    name = one if key is None else key
    result: GrownList[B] = grown_from(values, name)
    result.extend(map(one, values[len(result) :]))
    keep(result, values, name)
    return result


def grown_from(values: Sequence[object], key: Hashable) -> GrownList[B]:
    """The list that `key` made of the earlier beginning of `values`, to be continued; empty where there is none."""
    known = made_before(values, key)
    if not isinstance(known, _MadeList):
        return GrownList()
    elements = cast("tuple[B, ...]", known.elements)
    return GrownList(elements, known=len(elements), before=known.made)


def keep(result: GrownList[B], values: Sequence[object], key: Hashable) -> None:
    """Remember `result` as the list that `key` makes of `values`."""
    note(values, key, _MadeList(tuple(result), result.made))


def new_elements(values: Sequence[A]) -> Sequence[A]:
    """The elements that the earlier list did not have."""
    return values[values.known :] if isinstance(values, GrownList) else values


def made_before(values: Sequence[object], key: Hashable) -> object:
    """What `key` made of the earlier beginning of `values`; None where nothing is known."""
    return values.before.of.get(key) if isinstance(values, GrownList) and values.before is not None else None


def note(values: Sequence[object], key: Hashable, made: object) -> None:
    """Remember what `key` makes of `values`, where anything is remembered of them."""
    if isinstance(values, GrownList):
        values.made.of[key] = made
