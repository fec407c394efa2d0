"""Where the CPU of a turn goes in our server, stage by stage, at the point of 20 echoed turns."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import orjson

from benchmarks.effort import Effort
from benchmarks.fleet import BenchmarkError, Fleet, Target
from benchmarks.points import POINTS
from benchmarks.records import Reading
from benchmarks.visits import load_spec, run_load

MEASUREMENT = "profile"
SERVERS = ("chat", "generate")
POINT = replace(POINTS["turns-20"], name=MEASUREMENT, servers=SERVERS)
TOTAL = "cpu_ms_per_request"
WRITTEN_SECONDS = 10.0
VISITS = 24
"""The system takes a sample every 4 ms of CPU, whatever it is asked for: 80 in a visit."""


def profile_turns(fleet: Fleet, seed: int, effort: Effort, without: Collection[str]) -> Iterator[Reading]:
    """Milliseconds of CPU per request by stage, over all visits, and `TOTAL`, which is their sum."""
    visits = 1 if effort is Effort.QUICK else VISITS
    for name in SERVERS:
        if name in without:
            continue
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "profile.json"
            target = fleet.profiled(name, out)
            fleet.configure(target.server.engine, POINT.shape)
            costs, counts = list[float](), Counter[str]()
            for number in range(visits):
                _samples(target, out)
                spec = load_spec(target, POINT, fleet, seed + number)
                costs.append(run_load(spec, what=f"{MEASUREMENT} on {name}")["cpu_ms_per_request"])
                counts.update(_samples(target, out))
            fleet.retire(target.process)
        cost = sum(costs) / len(costs)
        yield Reading(MEASUREMENT, name, TOTAL, cost)
        for stage, count in counts.most_common():
            yield Reading(MEASUREMENT, name, stage, cost * count / counts.total())


def _samples(target: Target, out: Path) -> dict[str, int]:
    """The samples since the last call."""
    out.unlink(missing_ok=True)
    os.kill(target.process.pid, signal.SIGUSR1)
    deadline = time.perf_counter() + WRITTEN_SECONDS
    while time.perf_counter() < deadline:
        if out.exists() and (text := out.read_bytes()):
            return cast("dict[str, int]", orjson.loads(text))
        time.sleep(0.01)
    raise BenchmarkError(
        f"the profiled {target.server.name} wrote no samples:\n{target.process.last_words()}"
    )
