"""`python -m benchmarks`, or `make bench`: every server side by side, in one run.

The whole run rewrites docs/performance.md. `--quick` and `--only` print their report and leave the page as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.effort import Effort
from benchmarks.fleet import BenchmarkError
from benchmarks.measurements import MEASUREMENTS
from benchmarks.nemo_gym_home import VERSION, install_nemo_gym
from benchmarks.page import write_page
from benchmarks.paths import RESULTS
from benchmarks.points import POINTS, Point, Tier, points_of
from benchmarks.records import ResultsFile, read_results
from benchmarks.report import report
from benchmarks.run import Plan, run
from benchmarks.servers import SERVERS
from benchmarks.targets import NEMO_GYM


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a smoke run: one round of fewer requests")
    size.add_argument("--full", action="store_true", help="every combination of the grid as well")
    names = ", ".join([*POINTS, *MEASUREMENTS])
    parser.add_argument("--only", action="append", metavar="NAME", help=f"one of {names}; may be repeated")
    parser.add_argument(
        "--servers", metavar="NAME,NAME", help=f"only these, where a point has them: {', '.join(SERVERS)}"
    )
    parser.add_argument("--rounds", type=int, help="rounds of every point; unset: the point's own number")
    parser.add_argument("--out", type=Path, help="file for the raw results; unset: one in benchmarks/results")
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        action="append",
        help="measure nothing, report what this file holds",
    )
    parser.add_argument(
        "--write", action="store_true", help="rewrite docs/performance.md from a part of a run too"
    )
    return parser.parse_args(argv)


def plan_of(options: argparse.Namespace) -> Plan:
    """What the options ask for. Raises BenchmarkError for a name that nothing has."""
    tier: Tier = "quick" if options.quick else "full" if options.full else "default"
    only, servers = set(options.only or ()), set((options.servers or "").split(",")) - {""}
    unknown = (only - POINTS.keys() - MEASUREMENTS.keys()) | (servers - SERVERS.keys())
    if unknown:
        raise BenchmarkError(f"nothing is called {', '.join(sorted(unknown))}; --help lists the names")
    points = [_sized(POINTS[name], options) for name in POINTS if name in only] if only else points_of(tier)
    without = SERVERS.keys() - servers if servers else set()
    if options.rounds:
        points = [replace(point, rounds=options.rounds) for point in points]
    return Plan(
        name="single points" if only else tier,
        points=points,
        measurements=[name for name in MEASUREMENTS if not only or name in only],
        without=without,
        effort=Effort.QUICK if options.quick else Effort.WHOLE,
    )


def as_far_as_installed(plan: Plan) -> Plan:
    """The plan without nemo-gym where it cannot be had, with a note."""
    if NEMO_GYM in plan.without:
        return plan
    missing = install_nemo_gym()
    if missing is None:
        return plan
    print(f"nemo-gym {VERSION} is not measured: {missing}")
    return replace(plan, without={*plan.without, NEMO_GYM})


def _sized(point: Point, options: argparse.Namespace) -> Point:
    return point.in_quick() if options.quick else point


def main(argv: Sequence[str]) -> int:
    options = arguments(argv)
    if sys.platform != "linux":
        print("benchmarks: only Linux says what a process costs, in /proc", file=sys.stderr)
        return 2
    out = options.out or RESULTS / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.jsonl"
    try:
        if not options.source:
            run(as_far_as_installed(plan_of(options)), ResultsFile(out))
        results = read_results(options.source or [out])
    except BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("benchmarks: interrupted; every server is stopped", file=sys.stderr)
        return 130
    partial = options.quick or options.only or options.servers or options.source
    if options.write or not partial:
        write_page(results)
    print("\n" + report(results, plot=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
