from __future__ import annotations

import ast
from pathlib import Path
from types import FrameType

from benchmarks.effort import Effort
from benchmarks.profile_turns import TOTAL, profile_turns
from benchmarks.profiled_server import LOOP, READING, STAGES, stage_of
from tests.benchmarks.test_fleet import fleet_in

ROOT = Path(__file__).parents[2]


def functions(source: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def test_every_stage_is_about_code_that_exists():
    for file, function in STAGES:
        source = (ROOT / file).read_text(encoding="utf-8")
        assert function is None or function in functions(source), (file, function)


def test_a_sample_belongs_to_the_innermost_frame_that_is_known():
    seen: list[str] = []

    def inner() -> None:
        import sys

        frame: FrameType | None = sys._getframe()
        seen.append(stage_of(frame))

    inner()
    read = compile("def read(call):\n    call()\n", "/anywhere/nemo_gym/request_body.py", "exec")
    names: dict[str, object] = {}
    exec(read, names)  # noqa: S102 - a function that stands in a file of that name
    names["read"](inner)  # type: ignore[operator]
    assert seen == [LOOP, READING]


def test_the_stages_of_a_turn_add_up_to_it(folder, corpus, tmp_path: Path):
    with fleet_in(tmp_path, folder, corpus) as fleet:
        readings = list(profile_turns(fleet, 1, Effort.QUICK, without={"chat"}))
    costs = {reading.name: reading.value for reading in readings}
    total = costs.pop(TOTAL)
    assert abs(sum(costs.values()) - total) < 1e-6
    assert len(costs) > 3
