from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_model.strict_json import Decoded, JsonValue, decode, decode_at, encode, items_of, members_of
from tests.support.rendered_calls import JSON_VALUES


@given(value=JSON_VALUES, before=st.text(), after=st.text(alphabet="<x}] \n"))
def test_a_value_is_found_in_the_middle_of_a_text(value: JsonValue, before: str, after: str) -> None:
    text = f"{before} \n{json.dumps([value])}{after}"
    decoded = decode_at(text, len(before))
    assert decoded is not None
    assert decoded.value == [value]
    assert text[decoded.start : decoded.end] == json.dumps([value])


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "-Infinity",
        "1e400",
        "[1,]",
        "{'a': 1}",
        '"\n"',
        "",
        "tru",
        "1" * 5000,
        '{"a": 1} x',
    ],
)
def test_what_rfc_8259_or_a_float_does_not_hold_is_no_value(text: str) -> None:
    assert decode(text) is None


@pytest.mark.parametrize("length", [4090, 4094, 4095, 4096, 4097, 5000, 40_000])
@pytest.mark.parametrize("end", ['"', '\\u00e9"', '", false', '", -1.5e-10', '", "\\n"'])
def test_a_value_longer_than_a_window_is_read_whole(length: int, end: str) -> None:
    text = f'["{"x" * length}{end}]'
    assert decode(text) == Decoded(json.loads(text), 0, len(text))
    assert decode(text[:-1]) is None
    assert decode_at(text + "<" * 10_000, 0) == Decoded(json.loads(text), 0, len(text))


def test_a_number_that_ends_with_a_window_is_read_to_its_last_digit() -> None:
    for length in range(4090, 4100):
        text = f"{' ' * 3}{'1' * length}"
        assert decode(text) == Decoded(int("1" * length), 3, len(text))


@given(items=st.lists(JSON_VALUES))
def test_items_of_an_array_are_found_where_they_stand(items: list[JsonValue]) -> None:
    text = json.dumps(items, indent=1)
    array = decode(text)
    assert array is not None
    assert [json.loads(text[item.start : item.end]) for item in items_of(text, array)] == items


@given(mapping=st.dictionaries(st.text(), JSON_VALUES))
def test_members_of_an_object_are_found_where_they_stand(mapping: dict[str, JsonValue]) -> None:
    text = json.dumps(mapping, separators=(" ,", " : "))
    decoded = decode(text)
    assert decoded is not None
    members = members_of(text, decoded)
    assert {key: json.loads(text[member.start : member.end]) for key, member in members.items()} == mapping


def test_of_a_repeated_key_the_last_one_counts() -> None:
    text = '{"a": 1, "a": 2}'
    decoded = decode(text)
    assert decoded is not None
    assert decoded.value == {"a": 2}
    assert members_of(text, decoded)["a"].value == 2


def test_encoding_keeps_characters_but_escapes_half_a_surrogate_pair() -> None:
    assert encode({"a": "你好 🚀"}) == '{"a": "你好 🚀"}'
    assert encode({"é": "\ud83d"}) == '{"\\u00e9": "\\ud83d"}'
