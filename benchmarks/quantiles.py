"""Numbers out of numbers: quantiles, medians, ratios. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed (nearest rank); NaN of nothing.

    A value that was measured, never one in between: the p99 of 50 latencies is the worst of them.
    """
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Iterable[float]) -> float:
    """The middle value, the mean of the two middle ones; NaN of nothing. NaNs are left out."""
    ordered = sorted(value for value in values if not math.isnan(value))
    if not ordered:
        return math.nan
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def ratio(dividend: float, divisor: float) -> float:
    """NaN where one of the two was not measured or nothing can be divided by it."""
    return dividend / divisor if divisor > 0 else math.nan


def slope(points: Sequence[tuple[float, float]]) -> float:
    """By how much y grows per x: least squares over (x, y); NaN for fewer than two different x."""
    if len({x for x, _ in points}) < 2:
        return math.nan
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
