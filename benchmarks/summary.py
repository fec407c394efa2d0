"""Medians over the rounds, by point and server. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.load_types import LoadResult
from benchmarks.quantiles import median, ratio
from benchmarks.records import Reading, Results, Visit


@dataclass(frozen=True)
class Cell:
    """One server at one point: the median of its rounds, each figure for itself. Times in ms, memory in MB."""

    rounds: int
    requests: int
    cpu_ms: float
    cpu_ms_by_round: Sequence[float]
    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests_per_second: float
    rss_mb: float
    rss_peak_mb: float
    foreign_cores: float
    turn_ms: Sequence[float]
    turn_cpu_ms: Sequence[float]
    cpu_by_prompt: Sequence[tuple[int, float]]
    """(prompt tokens, CPU ms) of every turn of every round, where it was measured turn by turn."""


@dataclass(frozen=True)
class Summary:
    """What the tables and targets are made of. What was not measured is NaN, or not there."""

    cells: dict[tuple[str, str], Cell]
    readings: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def points(self) -> list[str]:
        return list(dict.fromkeys(point for point, _ in self.cells))

    def servers(self) -> list[str]:
        return list(dict.fromkeys(server for _, server in self.cells))

    def cell(self, point: str, server: str) -> Cell | None:
        return self.cells.get((point, server))

    def cpu_ms(self, point: str, server: str) -> float:
        cell = self.cell(point, server)
        return math.nan if cell is None else cell.cpu_ms

    def cpu_ratio(self, point: str, server: str, other: str) -> float:
        """CPU per request of one server over another's: the median of the rounds' ratios.

        Two visits of one round are seconds apart, and a machine that others use is as quick in both.
        """
        cells = self.cell(point, server), self.cell(point, other)
        rounds = [cell.cpu_ms_by_round if cell is not None else () for cell in cells]
        return median(ratio(one, another) for one, another in zip(*rounds, strict=False))

    def reading(self, measurement: str, server: str, name: str) -> float:
        return self.readings.get((measurement, server, name), math.nan)


def summarise(results: Results) -> Summary:
    visits: dict[tuple[str, str], list[Visit]] = defaultdict(list)
    for visit in results.visits:
        visits[visit.point, visit.server].append(visit)
    return Summary(
        {key: _cell([visit.result for visit in rounds]) for key, rounds in visits.items()},
        _readings(results.readings),
    )


def _cell(rounds: Sequence[LoadResult]) -> Cell:
    costs = [[cost["cpu_ms"] for cost in result["turn_costs"]] for result in rounds]
    return Cell(
        rounds=len(rounds),
        requests=sum(result["requests"] for result in rounds),
        cpu_ms=median(result["cpu_ms_per_request"] for result in rounds),
        cpu_ms_by_round=[result["cpu_ms_per_request"] for result in rounds],
        p50_ms=median(result["p50_ms"] for result in rounds),
        p95_ms=median(result["p95_ms"] for result in rounds),
        p99_ms=median(result["p99_ms"] for result in rounds),
        requests_per_second=median(result["requests_per_second"] for result in rounds),
        rss_mb=median(result["rss_after_mb"] for result in rounds),
        rss_peak_mb=max(result["rss_peak_mb"] for result in rounds),
        foreign_cores=median(result["foreign_cores"] for result in rounds),
        turn_ms=_medians_by_position([result["turn_ms"] for result in rounds]),
        turn_cpu_ms=_medians_by_position(costs),
        cpu_by_prompt=[
            (cost["prompt_tokens"], cost["cpu_ms"]) for result in rounds for cost in result["turn_costs"]
        ],
    )


def _medians_by_position(series: Sequence[Sequence[float]]) -> list[float]:
    """As long as the shortest of them."""
    return [median(values) for values in zip(*series, strict=False)]


def _readings(readings: Iterable[Reading]) -> dict[tuple[str, str, str], float]:
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for reading in readings:
        values[reading.measurement, reading.server, reading.name].append(reading.value)
    return {key: median(found) for key, found in values.items()}


def by_prompt_size(cell: Cell, sizes: Sequence[int]) -> dict[int, float]:
    """Mean CPU per turn of the turns whose prompt is at least so long and shorter than the next size."""
    found: dict[int, list[float]] = defaultdict(list)
    for tokens, cpu in cell.cpu_by_prompt:
        size = max((size for size in sizes if size <= tokens), default=None)
        if size is not None:
            found[size].append(cpu)
    return {size: sum(values) / len(values) for size, values in sorted(found.items())}
