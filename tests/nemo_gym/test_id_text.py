from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.id_text import (
    LARGEST_ID,
    beginning,
    count_ids,
    count_numbers,
    first_numbers,
    joined,
    last_numbers,
    pack,
    unpack,
)

IDS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, LARGEST_ID)), max_size=40)


def text_of(ids: list[int]) -> bytes:
    return ",".join(map(str, ids)).encode()


@given(IDS)
def test_packed_ids_come_back_in_half_a_byte_for_each_character(ids: list[int]) -> None:
    text = text_of(ids)
    packed = pack(text)
    assert unpack(packed) == text
    assert len(packed) == (len(text) + 2) // 2 if ids else packed == b""


@given(st.lists(IDS, max_size=5))
def test_packed_lists_one_behind_the_other_are_the_packed_whole(lists: list[list[int]]) -> None:
    together = pack(b"").__class__(b"".join(pack(text_of(ids)) for ids in lists))
    assert unpack(together) == text_of([one for ids in lists for one in ids])  # type: ignore[arg-type]


@given(IDS)
def test_text_that_json_writes_compactly_is_canonical(ids: list[int]) -> None:
    text = json.dumps(ids, separators=(",", ":"))[1:-1].encode()
    assert count_ids(text) == count_numbers(text) == len(ids)
    assert last_numbers(text, 3) == ids[-3:]


@given(IDS, st.data())
def test_the_first_ids_are_found_in_the_text(ids: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(ids)))
    assert first_numbers(text_of(ids), count) == text_of(ids[:count])
    with pytest.raises(ValueError, match=f"expected at least {len(ids) + 1} ids, got {len(ids)}"):
        first_numbers(text_of(ids), len(ids) + 1)


@given(st.text(alphabet="0123456789,,, -.eaf", max_size=12))
def test_canonical_is_what_json_reads_as_ids_and_writes_back_the_same(text: str) -> None:
    try:
        ids = json.loads(f"[{text}]")
    except ValueError:
        ids = None
    is_list_of_ids = isinstance(ids, list) and all(type(one) is int and 0 <= one <= LARGEST_ID for one in ids)
    is_canonical = is_list_of_ids and text == ",".join(map(str, ids))
    assert count_ids(text.encode()) == (len(ids) if is_canonical else None)


@pytest.mark.parametrize("text", [b"0,10,100", b"0,0,0", b"7,0", b"10,0,20"])
def test_the_id_zero_is_no_leading_zero(text: bytes) -> None:
    assert count_ids(text) == text.count(b",") + 1


@pytest.mark.parametrize("at", [0, 1, 2, 4999, 9998, 9999])
def test_one_bad_place_in_a_long_list_is_found(at: int) -> None:
    numbers = [str(one).encode() for one in range(10_000)]
    assert count_ids(b",".join(numbers)) == count_numbers(b",".join(numbers)) == 10_000
    for bad in (b"", b"00", b"-1", b"1e3", b" 7", b"a", b"f"):
        assert count_ids(b",".join([*numbers[:at], bad, *numbers[at + 1 :]])) is None


@pytest.mark.parametrize("front", range(11))
def test_a_number_of_more_than_ten_digits_is_no_id_wherever_it_stands(front: int) -> None:
    filling = b"7," + b"1" * front + b","
    assert count_ids(filling.lstrip(b",") + b"9" * 10 if front else b"9" * 10) == (3 if front else 1)
    for digits in (11, 12, 19, 40):
        text = filling + b"9" * digits + b",5" if front else b"9" * digits
        assert count_ids(text) is None


def test_lists_one_behind_the_other_have_one_comma_between_them() -> None:
    assert joined(b"", b"1,2", b"", b"3", b"") == b"1,2,3"


@given(IDS, st.integers(0, 40))
def test_the_beginning_of_a_packed_list_is_the_packed_beginning(ids: list[int], count: int) -> None:
    first = text_of(ids[:count])
    assert beginning(pack(text_of(ids)), len(first)) == pack(first)
