"""The measurements that are no load points, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum

from benchmarks.fleet import Fleet
from benchmarks.records import Reading


class Effort(Enum):
    """How much a measurement may take: a smoke run only shows that it works."""

    QUICK = "quick"
    WHOLE = "whole"


Measurement = Callable[[Fleet, int, Effort, Collection[str]], Iterator[Reading]]

MEASUREMENTS: dict[str, Measurement] = {}
