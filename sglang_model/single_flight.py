"""One computation for all who ask for the same at the same time.

Eight rollouts of a group arrive together with the same prompt; the first one's work serves the others. Knows nothing of
what is computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class _Flight(Generic[V]):
    """A computation under way, its keys, and how many wait for it."""

    def __init__(self, keys: Sequence[str], work: asyncio.Task[Sequence[V]]) -> None:
        self.keys = keys
        self.work = work
        self.waiting = 0

    def values(self) -> dict[str, V]:
        """What it found. Raises what the computation raised."""
        return dict(zip(self.keys, self.work.result(), strict=True))

    @property
    def succeeded(self) -> bool:
        return not self.work.cancelled() and self.work.exception() is None


class SingleFlight(Generic[V]):
    """No key is computed twice at a time, and no computation outlives the last one who waits for it.

    A computation belongs to nobody: whoever began it may be cancelled, and the others get its result all the same.
    Where it fails, it fails for the one who began it; the others begin again. For one event loop.
    """

    def __init__(self) -> None:
        self.shared = 0
        """How many values were waited for that another request was computing."""
        self._flights: dict[str, _Flight[V]] = {}

    async def values(
        self, keys: Iterable[str], compute: Callable[[list[str]], Awaitable[Sequence[V]]]
    ) -> dict[str, V]:
        """The values of all keys; `compute` is asked once for those that nobody is computing."""
        wanted = missing = list(dict.fromkeys(keys))
        found: dict[str, V] = {}
        while missing:
            own = self._begin([key for key in missing if key not in self._flights], compute)
            flights = list(dict.fromkeys(self._flights[key] for key in missing))
            await self._landed(flights)
            for flight in flights:
                if flight is own or flight.succeeded:
                    found.update(flight.values())
            self.shared += sum(key in found and (own is None or key not in own.keys) for key in missing)
            missing = [key for key in missing if key not in found]
        return {key: found[key] for key in wanted}

    def _begin(
        self, keys: list[str], compute: Callable[[list[str]], Awaitable[Sequence[V]]]
    ) -> _Flight[V] | None:
        if not keys:
            return None

        async def work() -> Sequence[V]:
            return await compute(keys)

        flight = _Flight(keys, asyncio.get_running_loop().create_task(work()))
        self._flights.update(dict.fromkeys(keys, flight))
        # The first callback of the task: who waits for it must not find it again when it has failed.
        flight.work.add_done_callback(lambda _: self._forget(flight))
        return flight

    async def _landed(self, flights: Sequence[_Flight[V]]) -> None:
        """Wait for all of them, and call off those that nobody waits for any more."""
        for flight in flights:
            flight.waiting += 1
        try:
            await asyncio.wait([flight.work for flight in flights])
        finally:
            for flight in flights:
                flight.waiting -= 1
                if not flight.waiting and not flight.work.done():
                    self._forget(flight)
                    flight.work.cancel()

    def _forget(self, flight: _Flight[V]) -> None:
        for key in flight.keys:
            if self._flights.get(key) is flight:
                del self._flights[key]
        if not flight.work.cancelled() and flight.work.done():
            # Asked for here, so that a failure which nobody waited for is not reported as never retrieved.
            flight.work.exception()
