from __future__ import annotations

import json
from collections.abc import Callable
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.token_ids import TokenIds
from sglang_model.generate_answer import decode_generate_answer
from sglang_model.sampled_entries import SampledEntries
from tests.sglang_model.test_chat_answer import ENTRIES, JSON, META, OF_A_TURN, TEXT, sampled

COPIES = st.sampled_from(
    ["", "[]", "[7]", "[7, 8]", "[ 7,8 ]", "[7.0]", "[null]", '["7"]', "[[7]]", "[-1]", "7", "null"]
)


def plain(value: object) -> object:
    """The answer as orjson has it, for arrays that can be read."""
    if isinstance(value, TokenIds):
        return value.read().tolist()
    if isinstance(value, SampledEntries):
        return [[float(entry[0]), entry[1]] for entry in value]  # type: ignore[arg-type]
    return {name: plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value


@given(
    st.dictionaries(TEXT, JSON, max_size=3),
    st.one_of(st.just({}), st.fixed_dictionaries({"meta_info": st.one_of(META, JSON)})),
    st.one_of(st.none(), st.lists(st.integers(0, 10**6), max_size=4)),
    st.booleans(),
)
def test_an_answer_is_decoded_as_it_is_by_orjson(
    fields: dict[str, object], meta: dict[str, object], ids: list[int] | None, compact: bool
) -> None:
    answer = {**fields, **meta, **({} if ids is None else {"output_ids": ids})}
    raw = json.dumps(answer, indent=None if compact else 1, ensure_ascii=compact).encode()
    expected, decoded = orjson.loads(raw), decode_generate_answer(raw)
    entries = decoded["meta_info"].get(ENTRIES) if isinstance(decoded.get("meta_info"), dict) else None  # type: ignore[union-attr,index,attr-defined]
    if isinstance(entries, SampledEntries):
        columns = expected["meta_info"]
        columns[ENTRIES] = [[float(entry[0]), entry[1]] for entry in columns[ENTRIES]]
    assert plain(decoded) == expected


@given(JSON)
def test_what_is_no_answer_of_generate_is_decoded_whole(value: object) -> None:
    raw = json.dumps(value).encode()
    assert decode_generate_answer(raw) == orjson.loads(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"meta_info":{"x":NaN}}',
        b'{"meta_info":{},"a":01}',
        b'{"meta_info":{},"text":"\xff"}',
        b"\xff",
    ],
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode_generate_answer(raw)


@given(OF_A_TURN, st.integers(0, 7), COPIES)
def test_what_was_sampled_is_read_or_refused_as_from_plain_json(
    entries: list[str], completion_tokens: int, copy: str
) -> None:
    meta = f'{{"{ENTRIES}":[{",".join(entries)}],"completion_tokens":{completion_tokens}}}'
    raw = f'{{"text":"x",{copy and f""""output_ids":{copy},"""}"meta_info":{meta}}}'.encode()
    assert read(decode_generate_answer, raw) == read(orjson.loads, raw)


def read(decode: Callable[[bytes], object], raw: bytes) -> object:
    """Of a refusal only that it is one: which of the two copies is read first differs."""
    found = sampled(lambda: cast("dict[str, object]", decode(raw)))
    return "refused" if isinstance(found, str) and found != "no JSON" else found
