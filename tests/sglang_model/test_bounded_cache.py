from __future__ import annotations

from sglang_model.bounded_cache import MAX_ENTRIES, BoundedCache


def test_what_was_set_first_is_forgotten_when_there_is_too_much() -> None:
    cache: BoundedCache[int, str] = BoundedCache()
    for key in range(MAX_ENTRIES + 2):
        cache[key] = str(key)
    assert len(cache) == MAX_ENTRIES
    assert 0 not in cache
    assert 1 not in cache
    assert cache[2] == "2"
    assert cache[MAX_ENTRIES + 1] == str(MAX_ENTRIES + 1)
