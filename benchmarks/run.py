"""One run: the tokenizer, the corpus, the servers, and one measurement after the other."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks.effort import Effort
from benchmarks.fleet import Fleet
from benchmarks.machine import describe_machine
from benchmarks.measurements import MEASUREMENTS
from benchmarks.points import Point
from benchmarks.records import Reading, ResultsFile, Visit
from benchmarks.tables import figure
from benchmarks.tokenizer import VOCABULARY_SIZE, make_corpus, train_tokenizer
from benchmarks.visits import measure_point

TOKENIZER_VARIABLE = "BENCH_TOKENIZER"
_SEEDS_PER_POINT = 100


@dataclass(frozen=True)
class Plan:
    """What a run measures, in this order, and without which servers."""

    name: str
    points: Sequence[Point]
    measurements: Sequence[str]
    without: Collection[str]
    effort: Effort


def run(plan: Plan, out: ResultsFile) -> None:
    """Measure everything, print each figure as it comes, and write all to `out`. Raises BenchmarkError."""
    started = time.monotonic()
    # No two runs have a prompt in common, so nothing that a cache might keep is ever asked for again.
    seed = secrets.randbelow(10**6) * 10_000
    with tempfile.TemporaryDirectory(prefix="bench-") as name, _fleet(Path(name), plan, out) as fleet:
        for record in _records(fleet, plan, seed):
            out.add(record)
            print(_line(record), flush=True)
    out.machine({"took": f"{(time.monotonic() - started) / 60:.1f} minutes"})


def _records(fleet: Fleet, plan: Plan, seed: int) -> Iterator[Visit | Reading]:
    for point in plan.points:
        yield from measure_point(fleet, point, seed, without=plan.without)
        seed += _SEEDS_PER_POINT
    for name in plan.measurements:
        yield from MEASUREMENTS[name](fleet, seed, plan.effort, plan.without)
        seed += _SEEDS_PER_POINT


@contextmanager
def _fleet(work: Path, plan: Plan, out: ResultsFile) -> Iterator[Fleet]:
    given = os.environ.get(TOKENIZER_VARIABLE)
    if given:
        folder = Path(given).absolute()
        if not (folder / "tokenizer.json").is_file():
            raise SystemExit(f"{TOKENIZER_VARIABLE}: there is no tokenizer.json in {folder}")
        size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
        described = f"the one that {TOKENIZER_VARIABLE} names, {size:,} entries"
    else:
        folder = train_tokenizer(work / "tokenizer")
        described = f"trained for the run on generated text, {VOCABULARY_SIZE:,} entries"
    out.machine(describe_machine(tokenizer=described, run=plan.name))
    with Fleet(tokenizer=folder, corpus=make_corpus(folder).save(work / "corpus.json"), logs=work) as fleet:
        yield fleet


def _line(record: Visit | Reading) -> str:
    if isinstance(record, Reading):
        return f"{record.measurement:16} {record.server:16} {record.name:24} {record.value:10.3f}"
    result = record.result
    return (
        f"{record.point:16} {record.server:16} round {record.round + 1}: {result['requests']:4} requests, "
        f"CPU {result['cpu_ms_per_request']:8.2f} ms, p50 {result['p50_ms']:8.2f} ms, p99 {result['p99_ms']:8.2f} ms, "
        f"{result['requests_per_second']:7.1f}/s, foreign cores {figure(result['foreign_cores'])}"
    )
