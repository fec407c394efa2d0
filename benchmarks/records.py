"""What a run leaves: one record per measurement, as JSON lines. The report is made of them and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import orjson

from benchmarks.load_types import LoadResult, load_result


@dataclass(frozen=True)
class Visit:
    """One server at one point in one round."""

    point: str
    server: str
    round: int
    result: LoadResult


@dataclass(frozen=True)
class Reading:
    """One number of a measurement that is no load: a stall, a start, bytes per token. `round` counts repetitions."""

    measurement: str
    server: str
    name: str
    value: float
    round: int = 0


@dataclass(frozen=True)
class Results:
    """A whole run. `machine` names what it ran on."""

    machine: dict[str, str]
    visits: Sequence[Visit]
    readings: Sequence[Reading] = ()


class ResultsFile:
    """Takes every record down as it comes, so that a run that is stopped leaves what it had."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def machine(self, facts: dict[str, str]) -> None:
        self._append({"machine": facts})

    def add(self, record: Visit | Reading) -> None:
        self._append({"visit" if isinstance(record, Visit) else "reading": asdict(record)})

    def _append(self, line: object) -> None:
        with self.path.open("ab") as file:
            file.write(orjson.dumps(line) + b"\n")


def read_results(paths: Iterable[Path]) -> Results:
    """The records of one run, or of several that are taken as one; of facts about the machine the last word counts."""
    machine: dict[str, str] = {}
    visits, readings = [], []
    for path in paths:
        for line in path.read_bytes().splitlines():
            record = cast("dict[str, dict[str, object]]", orjson.loads(line))
            if "visit" in record:
                fields = record["visit"]
                result = load_result(cast("dict[str, object]", fields.pop("result")))
                visits.append(Visit(**fields, result=result))  # type: ignore[arg-type]
            elif "reading" in record:
                readings.append(Reading(**record["reading"]))  # type: ignore[arg-type]
            else:
                machine |= cast("dict[str, str]", record["machine"])
    return Results(machine, visits, readings)
