from __future__ import annotations

import math

import pytest

from benchmarks.quantiles import median, quantile, ratio, slope
from benchmarks.stall import with_unasked


def test_a_quantile_is_one_of_the_values():
    values = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [quantile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0


def test_the_median_leaves_out_what_was_not_measured():
    assert median([3.0, math.nan, 1.0]) == 2.0
    assert median([3.0, 9.0, 1.0]) == 3.0


def test_nothing_has_no_quantile_median_ratio_or_slope():
    assert math.isnan(quantile([], 0.5))
    assert math.isnan(median([math.nan]))
    assert math.isnan(ratio(1.0, math.nan))
    assert math.isnan(ratio(1.0, 0.0))
    assert math.isnan(slope([(1.0, 2.0), (1.0, 3.0)]))


def test_the_slope_is_the_growth_per_step():
    assert slope([(0.0, 1.0), (2.0, 5.0), (4.0, 9.0)]) == pytest.approx(2.0)


def test_a_long_stall_counts_as_often_as_questions_would_have_met_it():
    assert with_unasked([0.001, 0.010, 0.001], interval=0.002) == pytest.approx(
        [0.001, 0.010, 0.008, 0.006, 0.004, 0.001]
    )
