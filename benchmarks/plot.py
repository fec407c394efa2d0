"""The plot of a run: CPU per request against prompt size, and CPU per turn along conversations. Pure."""

from __future__ import annotations

from benchmarks.points import POINTS
from benchmarks.servers import SERVERS
from benchmarks.summary import Summary
from benchmarks.svg import Chart, Line, draw

PROMPT_POINTS = ("1k-c64", "8k-c16", "32k-c16", "100k-c16")
COLOURS = {
    "chat": "#1f77b4",
    "chat-spliced": "#17becf",
    "chat-training": "#4b5fc1",
    "generate": "#2ca02c",
    "nemo-gym": "#d62728",
    "floor-chat": "#7f7f7f",
    "floor-generate": "#b0a070",
}


def plot(summary: Summary) -> str:
    """SVG text with one chart beside the other."""
    return draw(
        [
            _against_prompt_size(summary),
            _along_turns(summary, "growth-echoed"),
            _along_turns(summary, "growth-bare"),
        ]
    )


def _against_prompt_size(summary: Summary) -> Chart:
    lines = []
    for server, colour in COLOURS.items():
        cells = ((POINTS[point].prompt_tokens, summary.cell(point, server)) for point in PROMPT_POINTS)
        values = [(float(tokens), cell.cpu_ms) for tokens, cell in cells if cell is not None]
        lines.append(Line(SERVERS[server].title, colour, values))
    return Chart("One turn, ids not yet echoed", "prompt tokens", "ms of CPU per request", lines, log_x=True)


def _along_turns(summary: Summary, point: str) -> Chart:
    lines = []
    for server, colour in COLOURS.items():
        cell = summary.cell(point, server)
        costs = cell.turn_cpu_ms if cell is not None else ()
        values = [(float(turn), cost) for turn, cost in enumerate(costs, start=1)]
        lines.append(Line(SERVERS[server].title, colour, values))
    return Chart(POINTS[point].title, "turn", "ms of CPU per turn", lines)
