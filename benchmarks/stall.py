"""How long a server's event loop keeps others waiting: `GET /` from another process, while the server is at work.

What the same question takes on the idle server (its median) is taken off. The server's own threads and the load
generator share the machine with the probe, so on few cores a part of what remains is waiting for a core.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import orjson

from benchmarks.effort import Effort
from benchmarks.fleet import BenchmarkError, Fleet, Target
from benchmarks.paths import ROOT
from benchmarks.points import POINTS, Point
from benchmarks.probe import INTERVAL_SECONDS
from benchmarks.quantiles import quantile
from benchmarks.records import Reading
from benchmarks.visits import load_spec, run_load
from nemo_gym.parent_death import ending_with_this_process

IDLE_SECONDS = 1.0
ENCODING = Point(
    name="stall-encoding",
    title="the encoding of eight unique 100k prompts at once",
    servers=("generate", "floor-generate"),
    prompt_tokens=102_400,
    concurrency=8,
    sessions=8,
)
TURNS = Point(
    name="stall-turns",
    title="20 echoed turns from 32k on",
    servers=("chat", "chat-training", "generate", "nemo-gym", "floor-chat", "floor-generate"),
    prompt_tokens=32_768,
    concurrency=1,
    sessions=1,
    turns=20,
)
LONG = Point(
    name="stall-long",
    title="5 echoed turns from 128k on",
    servers=("chat", "chat-training", "generate", "floor-chat"),
    prompt_tokens=131_072,
    concurrency=1,
    sessions=1,
    turns=5,
)
HISTORY = replace(
    POINTS["history"],
    name="stall-history",
    title="tool rounds of about 350 tokens up to 128k, ids not echoed",
    servers=("chat-spliced", "generate", "generate-whole"),
)
STALLS = (ENCODING, TURNS, LONG, HISTORY)


def stalls(
    point: Point, fleet: Fleet, seed: int, effort: Effort, without: Collection[str]
) -> Iterator[Reading]:
    if effort is Effort.QUICK:
        point = point.in_quick()
    targets = [fleet.target(name) for name in point.servers if name not in without]
    for mode in dict.fromkeys(target.server.engine for target in targets):
        fleet.configure(mode, point.shape)
    for number in range(1 if effort is Effort.QUICK else 3):
        for target in targets:
            for name, value in _measure(fleet, target, point, seed + number).items():
                yield Reading(point.name, target.server.name, name, value, number)


def _measure(fleet: Fleet, target: Target, point: Point, seed: int) -> dict[str, float]:
    watcher = _start_probe(target.process.port)
    try:
        time.sleep(IDLE_SECONDS)
        busy_from = time.perf_counter()
        result = run_load(load_spec(target, point, fleet, seed), what=f"{point.name} on {target.server.name}")
        output, errors = watcher.communicate(timeout=60)
    finally:
        watcher.kill()
        watcher.wait()
    if watcher.returncode != 0:
        raise BenchmarkError(f"the probe of {target.server.name}: {errors.decode(errors='replace')[-500:]}")
    samples: list[tuple[float, float]] = orjson.loads(output)
    idle = [seconds for at, seconds in samples if at < busy_from]
    window = (result["started_at"], result["started_at"] + result["seconds"])
    return stall_figures(idle, [seconds for at, seconds in samples if window[0] <= at <= window[1]]) | {
        "seconds": result["seconds"]
    }


def stall_figures(idle: Sequence[float], busy: Sequence[float]) -> dict[str, float]:
    """Milliseconds beyond the median of the idle server."""
    usual = quantile(idle, 0.5)
    stalls = [max(0.0, seconds - usual) for seconds in with_unasked(busy)]
    return {
        "p50_ms": 1e3 * quantile(stalls, 0.5),
        "p99_ms": 1e3 * quantile(stalls, 0.99),
        "max_ms": 1e3 * quantile(stalls, 1.0),
        "idle_p50_ms": 1e3 * usual,
        "idle_p99_ms": 1e3 * quantile(idle, 0.99),
    }


def with_unasked(samples: Sequence[float], interval: float = INTERVAL_SECONDS) -> list[float]:
    """The samples, and those that were not taken because the one before had not been answered.

    A question that waits keeps the next ones from being asked. Without them a stall of 200 ms would be one sample in a
    hundred, and a p99 blind to it.
    """
    found: list[float] = []
    for seconds in samples:
        found.append(seconds)
        waited = seconds - interval
        while waited > interval:
            found.append(waited)
            waited -= interval
    return found


def _start_probe(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ending_with_this_process([sys.executable, "-m", "benchmarks.probe", str(port)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
