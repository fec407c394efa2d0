from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from benchmarks.__main__ import arguments, as_far_as_installed, plan_of
from benchmarks.fleet import BenchmarkError, Fleet
from benchmarks.memory import store_bytes_per_token
from benchmarks.proc import cpu_seconds, memory_mb
from benchmarks.stub_answers import Shape
from benchmarks.tokenizer import Corpus


def fleet_in(directory: Path, folder: Path, corpus: Corpus) -> Fleet:
    return Fleet(tokenizer=folder, corpus=corpus.save(directory / "corpus.json"), logs=directory)


def test_every_process_has_ended_when_the_run_fails(folder, corpus, tmp_path: Path):
    started = []

    def measure() -> None:
        with fleet_in(tmp_path, folder, corpus) as fleet:
            target = fleet.target("floor-chat")
            started.extend([target.process, target.engine])
            assert all(process.popen.poll() is None for process in started)
            assert cpu_seconds(target.process.pid) > 0
            assert memory_mb(target.process.pid) > 10
            raise RuntimeError("a measurement went wrong")

    with pytest.raises(RuntimeError, match="a measurement"):
        measure()
    assert [process.popen.poll() is None for process in started] == [False, False]


def test_the_stub_answers_in_the_size_it_was_told(folder, corpus, tmp_path: Path):
    with fleet_in(tmp_path, folder, corpus) as fleet:
        port = fleet.target("stub-generate").process.port
        fleet.configure("sglang", Shape(reply_tokens=7))
        answer = httpx.post(f"http://127.0.0.1:{port}/generate", json={"input_ids": [1, 2]}, trust_env=False)
    assert len(answer.json()["output_ids"]) == 7


def test_a_server_that_cannot_start_says_why(folder, corpus, tmp_path: Path):
    missing = tmp_path / "nothing"
    with (
        fleet_in(tmp_path, missing, corpus) as fleet,
        pytest.raises(BenchmarkError, match="ended while it started"),
    ):
        fleet.target("stub-chat")


def test_a_name_that_nothing_has_is_refused():
    with pytest.raises(BenchmarkError, match="9k-c3"):
        plan_of(arguments(["--only", "9k-c3"]))
    with pytest.raises(BenchmarkError, match="apache"):
        plan_of(arguments(["--servers", "chat,apache"]))


def test_nemo_gym_is_left_out_with_a_note_where_it_is_missing(monkeypatch, capsys, tmp_path: Path):
    monkeypatch.setenv("NEMO_GYM_HOME", str(tmp_path))
    plan = as_far_as_installed(plan_of(arguments(["--quick"])))
    assert set(plan.without) == {"nemo-gym"}
    assert "NEMO_GYM_HOME names no environment" in capsys.readouterr().out


def test_a_group_keeps_its_first_prompt_once():
    alone = store_bytes_per_token(group=1, sessions=4, turns=3, tokens=6_000)
    shared = store_bytes_per_token(group=4, sessions=4, turns=3, tokens=6_000)
    assert shared < 0.8 * alone
