"""One computation serves all who ask at the same time, and nobody's failure or leaving is another's."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence

import pytest

from sglang_model.single_flight import SingleFlight


class Work:
    """A computation that goes on when it is let; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.cancelled = 0
        self.go = asyncio.Event()
        self.failures: list[Exception] = []

    async def __call__(self, keys: Sequence[str]) -> list[str]:
        self.asked.append(list(keys))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failures:
            raise self.failures.pop(0)
        return [key.upper() for key in keys]


async def turn() -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
async def work() -> Work:
    return Work()


@pytest.fixture
async def flights() -> SingleFlight[str]:
    return SingleFlight()


def ask(flights: SingleFlight[str], work: Work, *keys: str) -> asyncio.Task[dict[str, str]]:
    return asyncio.create_task(flights.values(keys, work))


async def test_eight_who_ask_together_are_served_by_one_computation(flights, work):
    tasks = [ask(flights, work, "a", "b") for _ in range(8)]
    await turn()
    work.go.set()
    assert await asyncio.gather(*tasks) == [{"a": "A", "b": "B"}] * 8
    assert work.asked == [["a", "b"]]
    assert flights.shared == 14


async def test_only_what_nobody_computes_is_computed(flights, work):
    first = ask(flights, work, "a", "b")
    await turn()
    second = ask(flights, work, "b", "c", "c")
    await turn()
    work.go.set()
    assert await first == {"a": "A", "b": "B"}
    assert await second == {"b": "B", "c": "C"}
    assert work.asked == [["a", "b"], ["c"]]


async def test_what_was_computed_before_is_computed_again_because_nothing_is_remembered(flights, work):
    work.go.set()
    assert await flights.values(["a"], work) == {"a": "A"}
    assert await flights.values(["a"], work) == {"a": "A"}
    assert work.asked == [["a"], ["a"]]


async def test_nothing_asked_is_nothing_computed(flights, work):
    assert await flights.values([], work) == {}
    assert work.asked == []


async def test_a_failure_is_that_of_who_began_and_the_next_one_begins_again(flights, work):
    work.failures.append(ValueError("first"))
    tasks = [ask(flights, work, "a") for _ in range(8)]
    await turn()
    work.go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], ValueError)
    assert results[1:] == [{"a": "A"}] * 7
    assert work.asked == [["a"], ["a"]]


async def test_where_everything_fails_everybody_fails_and_nobody_hangs(flights, work):
    work.failures += [ValueError("no")] * 3
    tasks = [ask(flights, work, "a") for _ in range(3)]
    await turn()
    work.go.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, ValueError) for result in results)
    assert await flights.values(["a"], work) == {"a": "A"}


async def test_the_one_who_began_may_leave(flights, work):
    first, *others = [ask(flights, work, "a") for _ in range(8)]
    await turn()
    first.cancel()
    await turn()
    work.go.set()
    assert await asyncio.gather(*others) == [{"a": "A"}] * 7
    assert first.cancelled()
    assert work.asked == [["a"]]


async def test_one_who_waits_may_leave_and_takes_nobody_along(flights, work):
    first, second, third = [ask(flights, work, "a") for _ in range(3)]
    await turn()
    second.cancel()
    await turn()
    work.go.set()
    assert await asyncio.gather(first, third) == [{"a": "A"}] * 2
    assert second.cancelled()


async def test_when_all_have_left_the_computation_is_called_off_and_can_begin_again(flights, work):
    tasks = [ask(flights, work, "a", "b") for _ in range(3)]
    await turn()
    for task in tasks:
        task.cancel()
    again = ask(flights, work, "a")
    await turn()
    assert work.cancelled == 1
    work.go.set()
    assert await again == {"a": "A"}
    assert work.asked == [["a", "b"], ["a"]]


async def test_a_failure_that_nobody_waited_for_is_not_reported(flights, work, caplog):
    class Stubborn(Work):
        async def __call__(self, keys: Sequence[str]) -> list[str]:
            try:
                await super().__call__(keys)
            except asyncio.CancelledError:
                raise ValueError("late") from None
            return []

    stubborn = Stubborn()
    task = ask(flights, stubborn, "a")
    await turn()
    task.cancel()
    await turn()
    del task
    gc.collect()
    assert caplog.text == ""


async def test_a_part_that_failed_is_computed_again_and_the_rest_is_kept(flights, work):
    failing, fine = Work(), Work()
    failing.failures.append(ValueError("no"))
    owner, other = ask(flights, failing, "a"), ask(flights, fine, "b")
    await turn()
    both = ask(flights, work, "a", "b", "c")
    await turn()
    for each in (failing, fine, work):
        each.go.set()
    assert await both == {"a": "A", "b": "B", "c": "C"}
    assert work.asked == [["c"], ["a"]]
    assert await other == {"b": "B"}
    with pytest.raises(ValueError, match="no"):
        await owner
