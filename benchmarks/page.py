"""Writes the generated part of docs/performance.md and the plot beside it."""

from __future__ import annotations

from benchmarks.paths import PAGE
from benchmarks.plot import plot
from benchmarks.records import Results
from benchmarks.report import PLOT, between_markers, report
from benchmarks.summary import summarise


def write_page(results: Results) -> None:
    """Raises ValueError for a page without markers."""
    page = between_markers(PAGE.read_text(encoding="utf-8"), report(results))
    PAGE.write_text(page, encoding="utf-8")
    (PAGE.parent / PLOT).write_text(plot(summarise(results)), encoding="utf-8")
