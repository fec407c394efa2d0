"""The report of a run in markdown: targets first, then every table that the records fill. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from benchmarks.nemo_gym_home import HOME_VARIABLE, VERSION
from benchmarks.points import POINTS
from benchmarks.profile_turns import POINT as PROFILED
from benchmarks.profile_turns import TOTAL
from benchmarks.quantiles import ratio
from benchmarks.records import Results
from benchmarks.servers import SERVERS
from benchmarks.stall import STALLS
from benchmarks.summary import Summary, by_prompt_size, summarise
from benchmarks.tables import Row, figure, table
from benchmarks.targets import NEMO_GYM, TARGETS, growth

BEGIN = "<!-- bench:begin -->"
END = "<!-- bench:end -->"
SAMPLED_TURNS = (2, 10, 20, 30)
HISTORY_SIZES = tuple(1_000 * 2**power for power in range(8))
PLOT = "performance.svg"


def report(results: Results, *, plot: bool = True) -> str:
    """All sections that have something to say, the machine first."""
    summary = summarise(results)
    sections = [
        ("Machine", machine_list(results.machine)),
        (
            "Targets",
            _WITHOUT_VERDICT * results.machine.get("run", "").startswith("quick") + targets_table(summary),
        ),
        ("CPU per request", cpu_table(summary) + (f"\n\n![CPU per request]({PLOT})" if plot else "")),
        ("Latency, throughput, memory", details_table(summary)),
        ("Growth over a conversation", growth_tables(summary)),
        ("Cost against history", history_table(summary)),
        ("Event-loop stalls", stall_table(summary)),
        ("Where a turn's CPU goes", profile_table(summary)),
        ("Memory", memory_table(summary)),
        ("Start-up", startup_table(summary)),
    ]
    return "\n\n".join(f"## {title}\n\n{text}" for title, text in sections if text)


_WITHOUT_VERDICT = """One short round: which targets are met can only be told from a whole run on an idle machine.

"""


def between_markers(page: str, text: str) -> str:
    """The page with `text` in place of what stands between its markers. Raises ValueError without them."""
    if BEGIN not in page or END not in page:
        raise ValueError(f"expected the markers {BEGIN} and {END} in the page")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"


def machine_list(machine: dict[str, str]) -> str:
    return "\n".join(f"- {name}: {value}" for name, value in machine.items())


def targets_table(summary: Summary) -> str:
    rows: list[Row] = [
        (
            target.title,
            figure(target.measure(summary)) + target.unit,
            f"{target.sense} {target.bound:g}{target.unit}",
            target.verdict(summary),
        )
        for target in TARGETS
        if target.verdict(summary) != "not measured"
    ]
    text = table(("target", "measured", "bound", ""), rows, left=1)
    if summary.cells and NEMO_GYM not in summary.servers():
        note = f"nemo-gym {VERSION} was not measured; {HOME_VARIABLE} names an environment that has it."
        text = f"{text}\n\n{note}".strip()
    return text


def cpu_table(summary: Summary) -> str:
    """Milliseconds of the server's CPU per request, a row per point and a column per server."""
    servers = [name for name in SERVERS if name in summary.servers()]
    rows: list[Row] = [
        [POINTS[point].title, *(summary.cpu_ms(point, server) for server in servers)]
        for point in POINTS
        if point in summary.points()
    ]
    return table(("ms of CPU per request", *(SERVERS[name].title for name in servers)), rows)


def details_table(summary: Summary) -> str:
    head = ("point", "server", "CPU ms", "p50 ms", "p95 ms", "p99 ms", "req/s", "RSS MB", "peak MB")
    ratios = ("nemo-gym's CPU / this", "this CPU / floor's")
    rows: list[Row] = [
        (
            POINTS[point].title,
            SERVERS[server].title,
            *(cell.cpu_ms, cell.p50_ms, cell.p95_ms, cell.p99_ms, cell.requests_per_second),
            *(cell.rss_mb, cell.rss_peak_mb),
            summary.cpu_ratio(point, NEMO_GYM, server),
            summary.cpu_ratio(point, server, SERVERS[server].floor),
            cell.foreign_cores,
        )
        for point in POINTS
        for server in SERVERS
        if (cell := summary.cell(point, server)) is not None
    ]
    return table((*head, *ratios, "foreign cores"), rows, left=2)


def growth_tables(summary: Summary) -> str:
    """What later turns take and cost, for conversations of one session at a time."""
    parts = []
    for point in ("growth-echoed", "growth-bare"):
        rows: list[Row] = [
            (
                SERVERS[server].title,
                *_turns(cell.turn_ms),
                growth(summary, point, server, "turn_ms"),
                *_turns(cell.turn_cpu_ms),
                growth(summary, point, server, "turn_cpu_ms"),
            )
            for server in SERVERS
            if (cell := summary.cell(point, server)) is not None
        ]
        head = ("server", *(f"turn {turn}, ms" for turn in SAMPLED_TURNS), "30 / 2")
        cpu = (*(f"turn {turn}, CPU ms" for turn in SAMPLED_TURNS), "CPU 30 / 2")
        if rows:
            parts.append(f"{POINTS[point].title}:\n\n{table((*head, *cpu), rows)}")
    return "\n\n".join(parts)


def _turns(values: Sequence[float]) -> list[float]:
    return [values[turn - 1] if turn <= len(values) else math.nan for turn in SAMPLED_TURNS]


def history_table(summary: Summary) -> str:
    """CPU per follow-up turn against the length of the history, spliced and rendered whole."""
    spliced, whole = (summary.cell("history", server) for server in ("generate", "generate-whole"))
    if spliced is None or whole is None:
        return ""
    costs, whole_costs = (by_prompt_size(cell, HISTORY_SIZES) for cell in (spliced, whole))
    rows: list[Row] = [
        (f"{size:,}", cost, whole_costs[size], ratio(whole_costs[size], cost))
        for size, cost in costs.items()
        if size in whole_costs
    ]
    head = ("history, tokens, from", "spliced: CPU ms per turn", "rendered whole", "ratio")
    return f"{POINTS['history'].title}:\n\n{table(head, rows)}"


def readings_table(
    summary: Summary, measurement: str, columns: Mapping[str, str], *, first: str = "server"
) -> str:
    """One row per server that the measurement has readings of."""
    measured = {server for found, server, _ in summary.readings if found == measurement}
    rows: list[Row] = [
        (SERVERS[server].title, *(summary.reading(measurement, server, name) for name in columns))
        for server in SERVERS
        if server in measured
    ]
    return table((first, *columns.values()), rows)


def stall_table(summary: Summary) -> str:
    columns = {
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "max_ms": "max ms",
        "idle_p50_ms": "idle p50 ms (subtracted)",
        "idle_p99_ms": "idle p99 ms",
        "seconds": "seconds of load",
    }
    parts = [
        f"`GET /` every 2 ms during {point.title}:\n\n{text}"
        for point in STALLS
        if (text := readings_table(summary, point.name, columns))
    ]
    return "\n\n".join(parts)


def profile_table(summary: Summary) -> str:
    """A row per stage, the dearest first; milliseconds and shares of the whole turn."""
    servers = [name for name in SERVERS if not math.isnan(summary.reading("profile", name, TOTAL))]
    stages = {name for found, _, name in summary.readings if found == "profile"} - {TOTAL}
    costs = {stage: [summary.reading("profile", server, stage) for server in servers] for stage in stages}
    totals = [summary.reading("profile", server, TOTAL) for server in servers]
    rows: list[Row] = [
        (
            stage,
            *(
                each
                for cost, total in zip(costs[stage], totals, strict=True)
                for each in (cost, _share(cost, total))
            ),
        )
        for stage in sorted(stages, key=lambda stage: -sum(cost for cost in costs[stage] if cost > 0))
    ]
    head = [text for server in servers for text in (f"{SERVERS[server].title}: ms", "share")]
    return f"{PROFILED.title}:\n\n{table(('stage', *head), rows)}" if rows else ""


def _share(cost: float, total: float) -> str:
    return "-" if math.isnan(cost) else f"{100 * cost / total:.0f} %"


def memory_table(summary: Summary) -> str:
    columns = {
        "rss_bytes_per_token": "RSS, bytes per token of a session",
        "rss_mb_per_session": "RSS, MB per 100k session",
        "store_bytes_per_token": "session store, bytes per token",
        "group_bytes_per_token": "session store, groups of 8, bytes per token seen",
    }
    return readings_table(summary, "memory", columns)


def startup_table(summary: Summary) -> str:
    columns = {"seconds": "seconds until GET / is answered", "cpu_seconds": "CPU seconds", "rss_mb": "RSS MB"}
    return readings_table(summary, "start-up", columns)
