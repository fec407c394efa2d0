"""What must be shown, as data: each target is a measured number and a bound for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.quantiles import ratio
from benchmarks.summary import Summary

NEMO_GYM = "nemo-gym"

Figure = Literal["turn_ms", "turn_cpu_ms"]


@dataclass(frozen=True)
class Target:
    """`measure` gives the number of a run, NaN where it was not measured."""

    title: str
    sense: Literal["at least", "at most"]
    bound: float
    unit: str
    measure: Callable[[Summary], float]

    def verdict(self, summary: Summary) -> str:
        measured = self.measure(summary)
        if math.isnan(measured):
            return "not measured"
        met = measured >= self.bound if self.sense == "at least" else measured <= self.bound
        return "met" if met else "MISSED"


def _cheaper(title: str, point: str, server: str, factor: float) -> Target:
    """CPU per request of nemo-gym over ours."""
    return Target(
        f"{title}: CPU of nemo-gym over ours",
        "at least",
        factor,
        "x",
        lambda summary: summary.cpu_ratio(point, NEMO_GYM, server),
    )


def _near_the_floor(title: str, point: str, server: str, floor: str, factor: float) -> Target:
    """CPU per request of ours over the floor's."""
    return Target(
        f"{title}: our CPU over the floor's",
        "at most",
        factor,
        "x",
        lambda summary: summary.cpu_ratio(point, server, floor),
    )


def _flat(title: str, point: str, server: str, factor: float, figure: Figure) -> Target:
    what = "CPU" if figure == "turn_cpu_ms" else "latency"
    return Target(
        f"{title}: {what} of turn 30 over turn 2",
        "at most",
        factor,
        "x",
        lambda summary: growth(summary, point, server, figure),
    )


def growth(summary: Summary, point: str, server: str, figure: Figure) -> float:
    """Turn 30 over turn 2 of one session."""
    cell = summary.cell(point, server)
    turns: Sequence[float] = () if cell is None else getattr(cell, figure)
    return ratio(turns[29], turns[1]) if len(turns) >= 30 else math.nan


def _no_more(title: str, measurement: str, server: str, name: str, bound: float, unit: str) -> Target:
    return Target(title, "at most", bound, unit, lambda summary: summary.reading(measurement, server, name))


def _quick_turns(server: str) -> Target:
    def p50(summary: Summary) -> float:
        cell = summary.cell("slow-engine", server)
        return math.nan if cell is None else cell.p50_ms

    return Target(f"{server}, 256 sessions, an engine that takes 1 s: turn p50", "at most", 1_300, " ms", p50)


_AGAINST_BOTH = (
    ("chat 1k, c=64", "1k-c64", "chat", "floor-chat", 2.0, 2.0),
    ("chat 8k, c=16", "8k-c16", "chat", "floor-chat", 3.5, 1.6),
    ("chat 32k, c=16", "32k-c16", "chat", "floor-chat", 4.5, 1.5),
    ("chat 100k, c=16", "100k-c16", "chat", "floor-chat", 8.0, 1.5),
    ("chat, 20 turns, ids echoed", "turns-20", "chat", "floor-chat", 10.0, 1.8),
    ("generate, 20 turns, ids echoed", "turns-20", "generate", "floor-generate", 7.0, 1.8),
    ("generate 8k, groups of 8, 6 turns", "group-8k", "generate", "floor-generate", 2.5, 2.5),
)

_GROWTH = (
    ("32k first prompt, ids echoed", "growth-echoed", 3.0),
    ("8k first prompt, ids not echoed", "growth-bare", 1.3),
)
_GROWING: tuple[tuple[str, Figure], ...] = (
    ("chat", "turn_ms"),
    ("chat", "turn_cpu_ms"),
    ("generate", "turn_ms"),
    ("generate", "turn_cpu_ms"),
    # Its latency contains what the stub takes to render.
    ("chat-training", "turn_cpu_ms"),
)

TARGETS = (
    *(
        target
        for title, point, server, floor, less, more in _AGAINST_BOTH
        for target in (
            _cheaper(title, point, server, less),
            _near_the_floor(title, point, server, floor, more),
        )
    ),
    _near_the_floor("generate, cold unique 100k prompt", "cold-100k-c1", "generate", "floor-generate", 1.3),
    *(
        _flat(f"{server}, {title}", point, server, factor, figure)
        for title, point, factor in _GROWTH
        for server, figure in _GROWING
    ),
    _no_more(
        "event-loop stall while eight 100k prompts are encoded: p99",
        "stall-encoding",
        "generate",
        "p99_ms",
        10.0,
        " ms",
    ),
    *(
        _no_more(f"event-loop stall during {title}, {server}: p99", measurement, server, "p99_ms", 5.0, " ms")
        for title, measurement, servers in (
            ("a tool-using conversation up to 128k tokens", "stall-history", ("chat-spliced", "generate")),
            ("5 echoed turns from 128k tokens on", "stall-long", ("chat", "chat-training", "generate")),
        )
        for server in servers
    ),
    _quick_turns("chat"),
    _quick_turns("generate"),
    _no_more(
        "session store, bookkeeping included, per token",
        "memory",
        "generate",
        "store_bytes_per_token",
        6.0,
        " bytes",
    ),
)
