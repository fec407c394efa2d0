from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import UpstreamContractError
from nemo_gym.id_text import LARGEST_ID
from sglang_model._logic import extract_generated_tokens_and_logprobs
from sglang_model.chat_answer import decode_chat_answer
from sglang_model.sampled_entries import SampledEntries

TEXT = st.one_of(st.text(max_size=5), st.sampled_from(['"logprobs":', "\\", "}", "]", "choices"]))
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**65), 2**65),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)
ENTRIES = "output_token_logprobs"
NUMBERS = st.lists(st.tuples(st.integers(-1, 5), st.sampled_from([0, 1.5, None])), max_size=3)
META = st.dictionaries(
    st.one_of(TEXT, st.sampled_from([ENTRIES, "input_token_logprobs"])), st.one_of(JSON, NUMBERS), max_size=4
)
CHOICE = st.builds(
    dict.__or__,
    st.dictionaries(st.one_of(TEXT, st.sampled_from(["logprobs", "message"])), JSON, max_size=3),
    st.one_of(st.just({}), st.fixed_dictionaries({"meta_info": st.one_of(META, JSON)})),
)
ANSWER = st.builds(
    lambda fields, choices: {**fields, "choices": choices},
    st.dictionaries(TEXT, st.one_of(JSON, st.lists(st.dictionaries(TEXT, JSON), max_size=2)), max_size=3),
    st.lists(CHOICE, max_size=3),
)


@given(ANSWER, st.booleans())
def test_all_but_the_log_probabilities_is_decoded_as_it_is_by_orjson(
    answer: dict[str, object], compact: bool
) -> None:
    raw = json.dumps(answer, indent=None if compact else 1, ensure_ascii=compact).encode()
    expected, decoded = orjson.loads(raw), decode_chat_answer(raw)
    for choice in (*expected["choices"], *decoded["choices"]):  # type: ignore[index]
        choice.update({"logprobs": None} if "logprobs" in choice else {})
        meta = choice.get("meta_info")
        if isinstance(meta, dict) and isinstance(meta.get(ENTRIES), SampledEntries):
            assert len(expected["choices"]) == 1
            columns = expected["choices"][0]["meta_info"]
            columns[ENTRIES] = SampledEntries(
                [entry[1] for entry in columns[ENTRIES]], [entry[0] for entry in columns[ENTRIES]]
            )
    assert decoded == expected


@given(JSON)
def test_what_is_no_chat_answer_is_decoded_whole(value: object) -> None:
    raw = json.dumps(value).encode()
    assert decode_chat_answer(raw) == orjson.loads(raw)


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
        decode_chat_answer(raw)


def test_choices_that_are_no_objects_are_left_for_the_checks_to_refuse() -> None:
    assert decode_chat_answer(b'{"choices":[1,null]}') == {"choices": [1, None]}


FLOATS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(-20, 0))
LOGPROB = st.one_of(
    FLOATS.map(repr),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?\Z"),
    st.integers(-(2**70), 2**70).map(str),
)
ID = st.one_of(st.integers(0, 200_000), st.integers(-1, LARGEST_ID + 1)).map(str)
ODD = st.sampled_from(["null", "true", "1.0", "1e2", "-0", '"1"', "[]", "{}", "18446744073709551616", "-0.0"])
REST = st.one_of(st.just(""), st.sampled_from([', "x"', ", null", ', "]"', ',"\\\\",[1,{}]', ',"\u3042"']))
ENTRY = st.builds("[{},{}{}]".format, LOGPROB, ID, REST)
ODD_ENTRY = st.one_of(
    st.builds("[{},{}{}]".format, st.one_of(ODD, LOGPROB), st.one_of(ODD, ID), REST),
    st.sampled_from(["[]", "[-1]", "null", '{"logprob":-1,"token_id":7}', "7", '"x"']),
)
OF_A_TURN = st.one_of(st.lists(ENTRY, max_size=6), st.lists(st.one_of(ENTRY, ODD_ENTRY), max_size=4))


@given(OF_A_TURN, st.integers(0, 7), st.sampled_from(["", ',"output_ids":[7]']))
def test_what_was_sampled_is_read_or_refused_as_from_plain_json(
    entries: list[str], completion_tokens: int, more: str
) -> None:
    meta = f'{{"{ENTRIES}":[{",".join(entries)}],"completion_tokens":{completion_tokens}{more}}}'
    raw = f'{{"choices":[{{"logprobs":{{"content":[1]}},"meta_info":{meta}}}]}}'.encode()
    assert read(decode_chat_answer, raw) == read(orjson.loads, raw)


def read(decode: Callable[[bytes], object], raw: bytes) -> object:
    return sampled(lambda: cast("dict[str, list[dict[str, object]]]", decode(raw))["choices"][0])


def sampled(answer: Callable[[], dict[str, object]]) -> object:
    """What was sampled by an answer, or the words of its refusal."""
    try:
        ids, log_probs = extract_generated_tokens_and_logprobs(answer())
    except UpstreamContractError as error:
        return str(error)
    except ValueError:
        return "no JSON"
    return ids.text, log_probs.text, len(ids), len(log_probs)


def test_entries_as_sglang_sends_them_become_columns() -> None:
    raw = b'{"choices":[{"meta_info":{"input_token_logprobs":[],"output_token_logprobs":[[-0.5,7,"a"],[-1,8,null]]}}]}'
    assert decode_chat_answer(raw) == {
        "choices": [
            {
                "meta_info": {
                    "input_token_logprobs": [],
                    "output_token_logprobs": SampledEntries([7, 8], [-0.5, -1.0]),
                }
            }
        ]
    }


@pytest.mark.parametrize(
    "entry",
    [
        *("[-1,-1]", "[-1,10000000000]", "[-1,1.0]", "[-1,true]", "[-1,null]", '[-1,"1"]', "[-1]", "[]"),
        *("[true,1]", "[null,1]", '["-1",1]', '{"logprob":-1,"token_id":1}', "null", "-1"),
    ],
)
def test_entries_of_which_one_is_odd_stay_plain_json_for_the_checks_to_refuse(entry: str) -> None:
    raw = f'{{"choices":[{{"meta_info":{{"{ENTRIES}":[[-1,7,"a"],{entry}]}}}}]}}'.encode()
    assert decode_chat_answer(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "value", ["[[-1,7]]", "[]", "18446744073709551616", "-9223372036854775809", '{"a":[{}]}']
)
def test_what_stands_beside_the_entries_is_decoded_as_it_is_by_orjson(value: str) -> None:
    for raw in (f'{{"choices":[{{"meta_info":{{"other":{value}}}}}]}}', f'{{"choices":[],"usage":{value}}}'):
        decoded, expected = decode_chat_answer(raw.encode()), orjson.loads(raw)
        assert decoded == expected
        assert sorted(map(repr, decoded.items())) == sorted(map(repr, expected.items()))  # type: ignore[attr-defined]


def test_numbers_too_large_to_add_up_are_refused_only_where_one_is_not_finite() -> None:
    large = [1e308, 1e308]
    assert SampledEntries([1, 2], large).first(2) == ([1, 2], large)
    with pytest.raises(ValueError, match="finite"):
        SampledEntries([1, 2], [0.0, math.inf]).first(2)


def test_entries_of_several_choices_stay_plain_json() -> None:
    raw = b'{"choices":[{"meta_info":{"output_token_logprobs":[[-0.5,7,"a"]]}},{}]}'
    assert decode_chat_answer(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"choices":[{"logprobs":["\xff"]}]}',
        b'{"choices":[{"meta_info":{"output_token_logprobs":[[-0.5,7,"\xff"]]}}]}',
        b'{"choices":[{"meta_info":{"output_token_logprobs":[[-0.5,7,"\\ud800"]]}}]}',
        b'{"choices":[{"meta_info":' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    ],
)
def test_what_is_not_read_must_be_json_too(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_chat_answer(raw)


def test_entries_read_as_the_engine_s_own_lists_without_their_texts() -> None:
    entries = SampledEntries([7, 8, 9], [-0.5, -1.0, 0.0])
    plain = [[-0.5, 7, None], [-1.0, 8, None], [0.0, 9, None]]
    assert list(entries) == plain
    assert len(entries) == 3
    assert entries[-1] == plain[-1]
    assert entries[:2] == plain[:2]
    with pytest.raises(IndexError):
        entries[3]
