"""The ids of pieces stay within their budget of bytes, and the unused go first."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.token_ids import TokenIds
from sglang_model.segment_cache import ENTRY_BYTES, SegmentCache

IDS = TokenIds([1, 22, 333])


def size(text: str, ids: TokenIds = IDS) -> int:
    return sys.getsizeof(text) + sys.getsizeof(ids.text) + ENTRY_BYTES


def test_what_was_encoded_is_found_by_an_equal_text():
    cache = SegmentCache(10_000)
    cache.put("ab", IDS)
    assert cache.get("".join(["a", "b"])) is IDS
    assert cache.get("abc") is None
    assert (cache.hits, cache.misses, len(cache), cache.bytes) == (1, 1, 1, size("ab"))


def test_the_text_that_was_not_used_for_longest_goes_first():
    cache = SegmentCache(size("a") * 2)
    for text in ("a", "b"):
        cache.put(text, IDS)
    cache.get("a")
    cache.put("c", IDS)
    assert cache.get("b") is None
    assert cache.get("a") is not None
    assert cache.get("c") is not None
    assert cache.bytes == size("a") * 2


def test_a_text_that_is_larger_than_the_budget_drives_nothing_out():
    cache = SegmentCache(size("a"))
    cache.put("a", IDS)
    cache.put("b" * 10_000, IDS)
    assert len(cache) == 1
    assert cache.get("a") is not None


def test_wide_characters_are_counted_as_what_they_take():
    cache = SegmentCache(100_000)
    cache.put("🚀" * 1000, IDS)
    assert cache.bytes > 4000


def test_a_text_that_two_have_encoded_is_kept_and_counted_once():
    cache = SegmentCache(10_000)
    cache.put("a", IDS)
    cache.put("a", TokenIds([1, 22, 333]))
    assert (len(cache), cache.bytes) == (1, size("a"))


def test_without_a_budget_nothing_is_kept():
    cache = SegmentCache(0)
    cache.put("a", IDS)
    assert cache.get("a") is None
    assert (cache.bytes, len(cache)) == (0, 0)


@pytest.mark.parametrize("budget", [0, 500, 2000])
@given(uses=st.lists(st.tuples(st.text(max_size=8), st.integers(0, 60)), max_size=40))
def test_the_budget_always_holds_and_the_bytes_are_those_of_the_entries(budget, uses):
    cache = SegmentCache(budget)
    kept: dict[str, int] = {}
    for text, count in uses:
        ids = TokenIds([7] * count)
        if cache.get(text) is None:
            cache.put(text, ids)
            kept[text] = size(text, ids)
        assert cache.bytes <= budget
    assert cache.bytes == sum(bytes_ for text, bytes_ in kept.items() if cache.get(text) is not None)
