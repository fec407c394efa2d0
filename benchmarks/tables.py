"""Markdown tables. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

Row: TypeAlias = Sequence[str | float]


def figure(value: float) -> str:
    """Three significant digits, and never an exponent; "-" for what was not measured."""
    if math.isnan(value):
        return "-"
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 3)}f}"


def table(head: Sequence[str], rows: Sequence[Row], *, left: int = 1) -> str:
    """A table with its first `left` columns to the left and numbers to the right; empty without rows."""
    if not rows:
        return ""
    ruler = [":--" if column < left else "--:" for column in range(len(head))]
    lines = [_line(head), _line(ruler)]
    for row in rows:
        if len(row) != len(head):
            raise ValueError(f"expected {len(head)} cells in a row, got {len(row)}")
        lines.append(_line([cell if isinstance(cell, str) else figure(cell) for cell in row]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
