from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_model.chat_answer import decode_without_logprobs

TEXT = st.one_of(st.text(max_size=5), st.sampled_from(['"logprobs":', "\\", "}", "]", "choices"]))
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**53), 2**53),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
CHOICE = st.dictionaries(
    st.one_of(TEXT, st.sampled_from(["logprobs", "message", "meta_info"])), JSON, max_size=4
)
ANSWER = st.builds(
    lambda fields, choices: {**fields, "choices": choices},
    st.dictionaries(TEXT, JSON, max_size=3),
    st.lists(CHOICE, max_size=3),
)


@given(ANSWER, st.booleans())
def test_all_but_the_log_probabilities_is_decoded_as_it_is_by_orjson(
    answer: dict[str, object], compact: bool
) -> None:
    raw = orjson.dumps(answer) if compact else json.dumps(answer, indent=1).encode("utf-8", "replace")
    expected = orjson.loads(raw)
    for choice in expected["choices"]:
        choice.update({"logprobs": None} if "logprobs" in choice else {})
    assert decode_without_logprobs(raw) == expected


@given(JSON)
def test_what_is_no_chat_answer_is_decoded_whole(value: object) -> None:
    raw = orjson.dumps(value)
    assert decode_without_logprobs(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"choices":[{"logprobs":{]}]}',
        b'{"choices":[{"logprobs":NaN}]}',
        b'{"choices":[{"a":01}]}',
        b"\xff",
    ],
)
def test_what_is_not_json_is_refused_wherever_it_stands(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_without_logprobs(raw)


def test_choices_that_are_no_objects_are_left_for_the_checks_to_refuse() -> None:
    assert decode_without_logprobs(b'{"choices":[1,null]}') == {"choices": [1, None]}
