from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.id_arrays import cut, restore

KEYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
numbers = st.lists(st.integers(0, 200_000) | st.floats(-50, 0, allow_nan=False), max_size=5)
texts = st.text(max_size=8) | st.sampled_from(['"prompt_token_ids":[1]', '\\"generation_log_probs":[', "]"])
keys = st.sampled_from([*KEYS, "content"]) | texts
documents = st.recursive(
    texts | numbers, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4)
)
objects = st.dictionaries(keys, documents, max_size=4)


def with_number_arrays_only(value):
    """Under the three keys there are arrays of numbers, as in every answer; elsewhere anything."""
    if isinstance(value, list):
        return [with_number_arrays_only(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: (
            [1, 2] if not isinstance(one, list) or not all(isinstance(n, int | float) for n in one) else one
        )
        if key in KEYS
        else with_number_arrays_only(one)
        for key, one in value.items()
    }


@given(objects)
def test_what_was_cut_comes_back_where_it_was(document):
    text = orjson.dumps(with_number_arrays_only(document))
    small, arrays = cut(text)
    assert restore(orjson.dumps(orjson.loads(small)), arrays) == text


def test_the_arrays_are_gone_from_the_text():
    text = (
        b'{"a":1,"prompt_token_ids":[1,2,3],"generation_token_ids":[],"x":[4],"generation_log_probs":[-1.5]}'
    )
    small, arrays = cut(text)
    assert (
        small == b'{"a":1,"prompt_token_ids":[],"generation_token_ids":[],"x":[4],"generation_log_probs":[]}'
    )
    assert arrays == [b"1,2,3", b"", b"-1.5"]


def test_a_text_that_talks_about_ids_is_left_alone():
    text = orjson.dumps({"content": 'say "prompt_token_ids":[1,2] and nothing else'})
    assert cut(text) == (text, [])


def test_arrays_without_a_place_are_refused():
    with pytest.raises(ValueError, match="argument"):
        restore(b'{"prompt_token_ids":[]}', [b"1", b"2"])
