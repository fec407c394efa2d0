"""The measurements that are no load points, by name, in the order in which a run takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

from benchmarks.effort import Effort
from benchmarks.fleet import Fleet
from benchmarks.memory import memory
from benchmarks.profile_turns import profile_turns
from benchmarks.records import Reading
from benchmarks.stall import STALLS, stalls
from benchmarks.startup import start_up

Measurement = Callable[[Fleet, int, Effort, Collection[str]], Iterator[Reading]]

MEASUREMENTS: dict[str, Measurement] = {
    **{point.name: partial(stalls, point) for point in STALLS},
    "memory": memory,
    "profile": profile_turns,
    "start-up": start_up,
}
"""Called with the fleet, a seed, the effort, and the servers to leave out."""
