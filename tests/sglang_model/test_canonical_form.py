from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from sglang_model.canonical_form import canonical_form

_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def _same(left: object, right: object) -> bool:
    """Equality of JSON values, by the slow and obvious way."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and left == right


@given(JSON_VALUES, JSON_VALUES)
def test_two_values_have_the_same_form_exactly_when_they_are_the_same_value(
    left: object, right: object
) -> None:
    assert (canonical_form(left) == canonical_form(right)) == _same(left, right)


@given(JSON_VALUES)
def test_the_form_outlives_a_round_trip_through_json_with_sorted_keys(value: object) -> None:
    if _finite(value):
        assert canonical_form(json.loads(json.dumps(value, sort_keys=True))) == canonical_form(value)


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return all(map(_finite, value)) if isinstance(value, list) else True


def test_neighbours_do_not_run_together() -> None:
    forms = [
        canonical_form(value)
        for value in (
            ["ab", "c"],
            ["a", "bc"],
            ["abc"],
            [["a"], "bc"],
            ["s1:a"],
            {"a": "bc"},
            [1, 23],
            [12, 3],
        )
    ]
    assert len(set(forms)) == len(forms)


def test_numbers_that_are_equal_have_one_form_and_true_is_no_number() -> None:
    assert canonical_form(1) == canonical_form(1.0)
    assert canonical_form(0) == canonical_form(-0.0)
    assert canonical_form(1) != canonical_form(True)
    assert canonical_form(2**53) != canonical_form(2**53 + 1)


def test_a_number_of_ten_thousand_digits_raises_nothing() -> None:
    assert canonical_form(10**10_000) != canonical_form(10**10_000 + 1)


def test_text_that_looks_like_a_float_stays_text() -> None:
    assert canonical_form(["1.0", 1.0]) == canonical_form(["1.0", 1]) != canonical_form(["1", 1])
    assert canonical_form(1e16) == canonical_form(10**16)


def test_half_a_surrogate_pair_has_a_form() -> None:
    assert canonical_form("\ud83d") == canonical_form("\ud83d") != canonical_form("\ud83e")


def test_what_is_no_json_value_equals_nothing_not_even_itself() -> None:
    odd = object()
    for value in (odd, [odd], {"a": {odd}}, {("a",): 1}):
        assert canonical_form(value) != canonical_form(value)


def test_nesting_without_end_equals_nothing_and_does_not_raise() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert canonical_form(endless) != canonical_form(endless)


def test_a_hundred_levels_are_followed() -> None:
    def nested(leaf: str) -> object:
        value: object = leaf
        for _ in range(100):
            value = {"a": [value]}
        return value

    assert canonical_form(nested("x")) == canonical_form(nested("x")) != canonical_form(nested("y"))
