"""Runs the load points: round after round, each server once per round, each visit in a load process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterator

import orjson

from benchmarks.fleet import BenchmarkError, Fleet, Target
from benchmarks.load_types import LoadResult, LoadSpec, load_result
from benchmarks.paths import ROOT
from benchmarks.points import Point
from benchmarks.records import Visit
from nemo_gym.parent_death import ending_with_this_process

VISIT_SECONDS = 600.0


def measure_point(fleet: Fleet, point: Point, seed: int, *, without: Collection[str]) -> Iterator[Visit]:
    """Every visit of the point, as it is done. Raises BenchmarkError when an answer was no success."""
    servers = [name for name in point.servers if name not in without]
    # All are up before the first is measured: a start takes CPU from whoever runs beside it.
    targets = [fleet.target(name) for name in servers]
    for mode in dict.fromkeys(target.server.engine for target in targets):
        fleet.configure(mode, point.shape)
    for number in range(point.rounds):
        # The same prompts for every server of a round, and new ones in the next round and in the next run.
        for target in targets:
            result = run_load(
                load_spec(target, point, fleet, seed + number), what=f"{point.name} on {target.server.name}"
            )
            yield Visit(point.name, target.server.name, number, result)


def load_spec(target: Target, point: Point, fleet: Fleet, seed: int) -> LoadSpec:
    return LoadSpec(
        port=target.process.port,
        pid=target.process.pid,
        engine_pid=target.engine.pid,
        dialect=target.server.dialect,
        corpus=str(fleet.corpus),
        seed=seed,
        prompt_tokens=point.prompt_tokens,
        concurrency=point.concurrency,
        sessions=point.sessions,
        turns=point.turns,
        group=point.group,
        user_tokens=point.user_tokens,
        echo_ids=point.echo_ids,
        with_tool=point.reply == "tool",
        must_splice=target.server.splices,
        longest_prompt=point.longest_prompt,
        cpu_per_turn=point.cpu_per_turn,
        warm_up=point.concurrency,
    )


def run_load(spec: LoadSpec, *, what: str) -> LoadResult:
    """One visit in a process of its own. Raises BenchmarkError with the load generator's reason."""
    load = start_load(spec)
    try:
        output, errors = load.communicate(timeout=VISIT_SECONDS)
    finally:
        load.kill()
        load.wait()
    if load.returncode != 0:
        raise BenchmarkError(f"{what}: {errors.decode(errors='replace').strip()}")
    return load_result(orjson.loads(output))


def start_load(spec: LoadSpec) -> subprocess.Popen[bytes]:
    """A load generator that has been told what to do; `communicate` waits for its result."""
    process = subprocess.Popen(
        ending_with_this_process([sys.executable, "-m", "benchmarks.load"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
    )
    if process.stdin is not None:
        process.stdin.write(orjson.dumps(spec))
        process.stdin.close()
        process.stdin = None
    return process
