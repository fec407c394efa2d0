from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from benchmarks.load_types import LoadResult
from benchmarks.paths import PAGE
from benchmarks.plot import plot
from benchmarks.points import POINTS, points_of
from benchmarks.records import Reading, Results, ResultsFile, Visit, read_results
from benchmarks.report import between_markers, report
from benchmarks.stall import STALLS
from benchmarks.summary import by_prompt_size, summarise
from benchmarks.tables import figure, table
from benchmarks.targets import TARGETS


def result(cpu_ms: float, *, turn_ms: tuple[float, ...] = (1.0,), **fields: object) -> LoadResult:
    made = {
        "requests": 10,
        "started_at": 0.0,
        "seconds": 1.0,
        "requests_per_second": 10.0,
        "p50_ms": 1.0,
        "p95_ms": 2.0,
        "p99_ms": 3.0,
        "cpu_ms_per_request": cpu_ms,
        "client_cpu_ms_per_request": 0.1,
        "foreign_cores": 0.0,
        "rss_before_mb": 50.0,
        "rss_after_mb": 60.0,
        "rss_peak_mb": 70.0,
        "turn_ms": list(turn_ms),
        "turn_costs": [],
    }
    return {**made, **fields}  # type: ignore[typeddict-item]


def results(*visits: Visit, readings: tuple[Reading, ...] = ()) -> Results:
    return Results({"CPU": "a machine"}, visits, readings)


def three_rounds(point: str, server: str, *cpu_ms: float) -> list[Visit]:
    return [Visit(point, server, number, result(cpu)) for number, cpu in enumerate(cpu_ms)]


def test_targets_are_judged_by_the_median_of_what_each_round_compares():
    """In rounds on an idle machine, on a busy one, and on one that was busy for two of the servers."""
    text = report(
        results(
            *three_rounds("8k-c16", "nemo-gym", 8.0, 24.0, 21.0),
            *three_rounds("8k-c16", "chat", 2.0, 6.0, 7.0),
            *three_rounds("8k-c16", "floor-chat", 1.0, 3.0, 1.0),
        )
    )
    assert "| chat 8k, c=16: CPU of nemo-gym over ours | 4.00x | at least 3.5x | met |" in text
    assert "| chat 8k, c=16: our CPU over the floor's | 2.00x | at most 1.6x | MISSED |" in text


def test_what_was_not_measured_is_no_target_and_no_row():
    text = report(results(*three_rounds("8k-c16", "chat", 2.0)))
    assert "at least" not in text
    assert "nemo-gym 0.4.0 was not measured" in text
    assert "Start-up" not in text


def test_growth_compares_turn_30_with_turn_2():
    visit = Visit("growth-bare", "generate", 0, result(1.0, turn_ms=(50.0, 10.0, *[11.0] * 27, 15.0)))
    target = next(target for target in TARGETS if "generate, 8k first prompt" in target.title)
    assert target.measure(summarise(results(visit))) == pytest.approx(1.5)
    assert target.verdict(summarise(results(visit))) == "MISSED"


def test_costs_are_gathered_by_the_length_of_the_prompt():
    costs = [
        {"prompt_tokens": tokens, "cpu_ms": cpu}
        for tokens, cpu in ((900, 9.0), (1_000, 1.0), (1_999, 3.0), (2_000, 7.0))
    ]
    summary = summarise(results(Visit("history", "generate", 0, result(1.0, turn_costs=costs))))
    cell = summary.cell("history", "generate")
    assert cell is not None
    assert by_prompt_size(cell, (1_000, 2_000)) == {1_000: 2.0, 2_000: 7.0}


def test_the_stages_of_a_turn_stand_with_their_shares_the_dearest_first():
    costs = {"cpu_ms_per_request": 4.0, "splice": 1.0, "web": 3.0}
    readings = [Reading("profile", "generate", name, cost) for name, cost in costs.items()]
    readings += [Reading("profile", "chat", name, 2.0) for name in ("cpu_ms_per_request", "web")]
    text = report(results(readings=readings))
    assert text.endswith("| web | 2.00 | 100 % | 3.00 | 75 % |\n| splice | - | - | 1.00 | 25 % |")


def test_results_survive_their_file(tmp_path):
    file = ResultsFile(tmp_path / "deep" / "run.jsonl")
    visit = Visit("1k-c64", "chat", 0, result(1.0, foreign_cores=math.nan))
    reading = Reading("start-up", "chat", "seconds", 1.5, 2)
    file.machine({"CPU": "a machine"})
    file.add(visit)
    file.add(reading)
    file.machine({"took": "1 minute"})
    read = read_results([file.path])
    assert read.machine == {"CPU": "a machine", "took": "1 minute"}
    assert read.readings == [reading]
    assert math.isnan(read.visits[0].result["foreign_cores"])
    assert read.visits[0].result["cpu_ms_per_request"] == 1.0


def test_only_the_marked_part_of_a_page_is_replaced():
    page = "above\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nbelow\n"
    assert between_markers(page, "new") == "above\n<!-- bench:begin -->\n\nnew\n\n<!-- bench:end -->\nbelow\n"
    with pytest.raises(ValueError, match="markers"):
        between_markers("a page", "new")


def test_the_performance_page_has_a_place_for_the_report():
    assert between_markers(PAGE.read_text(encoding="utf-8"), "new")


def test_figures_have_three_digits_and_no_exponents():
    assert [figure(value) for value in (0.0123, 1.0, 12.34, 1234.5, 0.0, math.nan)] == [
        "0.012",
        "1.00",
        "12.3",
        "1,234",
        "0",
        "-",
    ]


def test_a_row_of_the_wrong_length_is_refused():
    assert table(("a", "b"), [("x|y", 1.0)]) == "| a | b |\n| :-- | --: |\n| x\\|y | 1.00 |"
    with pytest.raises(ValueError, match="2 cells"):
        table(("a", "b"), [("x",)])


def test_the_plot_has_a_line_for_each_server_measured():
    visits = [
        Visit(point, server, 0, result(float(size)))
        for size, point in enumerate(("1k-c64", "8k-c16", "32k-c16"), start=1)
        for server in ("chat", "nemo-gym")
    ]
    document = ElementTree.fromstring(plot(summarise(results(*visits))))  # noqa: S314 - our own
    lines = document.findall(".//{http://www.w3.org/2000/svg}polyline")
    assert [len(line.attrib["points"].split()) for line in lines] == [3, 3]


def test_a_quick_run_is_a_smaller_run():
    whole = {point.name: point for point in points_of("default")}
    for point in points_of("quick"):
        assert point.name in whole
        assert point.rounds == 1
        assert point.concurrency <= point.sessions <= max(point.concurrency, whole[point.name].sessions)


def test_the_full_run_covers_the_whole_grid():
    measured = {
        (point.prompt_tokens, point.reply_tokens, point.concurrency)
        for point in points_of("full")
        if point.turns == 1 and point.latency_ms == 0
    }
    for prompt in (1_024, 8_192, 32_768, 102_400):
        for reply in (256, 2_048):
            assert {c for p, r, c in measured if (p, r) == (prompt, reply)} >= {1, 16, 64, 256}


def test_every_target_is_about_something_that_is_measured():
    """A target whose point or server was renamed would be "not measured" for ever."""
    every = [
        Visit(
            point,
            server,
            0,
            result(1.0, turn_ms=(1.0,) * 30, turn_costs=[{"prompt_tokens": 1, "cpu_ms": 1.0}] * 30),
        )
        for point in POINTS
        for server in POINTS[point].servers
    ]
    readings = (
        *(Reading(point.name, server, "p99_ms", 1.0) for point in STALLS for server in point.servers),
        Reading("memory", "generate", "store_bytes_per_token", 1.0),
    )
    summary = summarise(results(*every, readings=readings))
    assert [target.title for target in TARGETS if target.verdict(summary) == "not measured"] == []
