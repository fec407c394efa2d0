"""What the load generator is told, and what it reports."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TypedDict, cast

from benchmarks.conversation import Dialect


@dataclass(frozen=True)
class LoadSpec:
    """One visit at one server."""

    port: int
    pid: int
    engine_pid: int
    """The engine's work is nobody's: neither the server's nor foreign."""
    dialect: Dialect
    corpus: str
    seed: int
    prompt_tokens: int
    concurrency: int
    sessions: int
    turns: int = 1
    group: int = 1
    user_tokens: int = 64
    echo_ids: bool = True
    with_tool: bool = False
    must_splice: bool = False
    """A follow-up turn that is not spliced is an error: something else than splicing would be measured."""
    longest_prompt: int | None = None
    """A session ends when its prompt has become so long."""
    cpu_per_turn: bool = False
    """Read the server's CPU time around every turn; means something at a concurrency of 1 only."""
    warm_up: int = 1
    max_seconds: float = 30.0
    """No session is started later than that; one that was started is finished."""


class TurnCost(TypedDict):
    prompt_tokens: int
    cpu_ms: float


class LoadResult(TypedDict):
    """Times in milliseconds, memory in megabytes. `turn_ms[k]` is the median latency of turn k + 1."""

    requests: int
    started_at: float
    """By time.perf_counter(), which all processes of a Linux machine share."""
    seconds: float
    requests_per_second: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    cpu_ms_per_request: float
    client_cpu_ms_per_request: float
    foreign_cores: float
    """NaN where the load was too short to tell: the machine counts in steps of 10 ms."""
    rss_before_mb: float
    rss_after_mb: float
    rss_peak_mb: float
    turn_ms: list[float]
    turn_costs: list[TurnCost]


def load_result(record: dict[str, object]) -> LoadResult:
    """A result as JSON brought it: JSON has no NaN, and null stands for it."""
    known = {key: math.nan if value is None else value for key, value in record.items()}
    return cast("LoadResult", known)


@dataclass
class Samples:
    """What is written down while a load runs."""

    seconds: list[float] = field(default_factory=list)
    by_turn: dict[int, list[float]] = field(default_factory=dict)
    costs: list[TurnCost] = field(default_factory=list)

    def add(self, turn: int, seconds: float) -> None:
        self.seconds.append(seconds)
        self.by_turn.setdefault(turn, []).append(seconds)
