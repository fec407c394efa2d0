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
    """What was made of one list, by who made it. Of nothing but that list, and never changed once it is there: another
    thread may be reading it.
    """

    of: dict[Hashable, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _MadeList:
    """A list that was made of the first `done` elements of another one, and in turn what was made of it."""

    done: int
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
    result: GrownList[B]
    done, result = made_list_before(values, name)
    result.extend(map(one, values[done:]))
    note_list(values, name, result, done=len(values))
    return result


def made_list_before(values: Sequence[object], key: Hashable) -> tuple[int, GrownList[B]]:
    """How many of the first `values` are done with by `key`, and the list that it made of them, to be continued."""
    known = made_before(values, key)
    if not isinstance(values, GrownList) or not isinstance(known, _MadeList) or known.done > values.known:
        return 0, GrownList()
    elements = cast("tuple[B, ...]", known.elements)
    return known.done, GrownList(elements, known=len(elements), before=known.made)


def note_list(values: Sequence[object], key: Hashable, result: GrownList[B], *, done: int) -> None:
    """Remember `result` as the list that `key` makes of the first `done` of `values`."""
    note(values, key, _MadeList(done, tuple(result), result.made))


def new_elements(values: Sequence[A]) -> Sequence[A]:
    """The elements of which nothing was made before."""
    return (
        values[values.known :]
        if isinstance(values, GrownList) and values.before and values.before.of
        else values
    )


def made_before(values: Sequence[object], key: Hashable) -> object:
    """What `key` made of the earlier beginning of `values`; None where nothing is known."""
    return values.before.of.get(key) if isinstance(values, GrownList) and values.before is not None else None


def note(values: Sequence[object], key: Hashable, made: object) -> None:
    """Remember what `key` makes of `values`, where anything is remembered of them."""
    if isinstance(values, GrownList):
        values.made.of[key] = made
