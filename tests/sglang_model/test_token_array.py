from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.errors import UpstreamContractError
from sglang_model.token_array import (
    PromptPool,
    SharedSequences,
    common_prefix,
    count_ids,
    pack_ids,
    unpack_ids,
)

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=40)
# Few different ids, so that sequences really have beginnings in common.
SIMILAR = st.lists(st.integers(0, 1), max_size=12)


@given(IDS)
def test_packed_ids_come_back_and_take_four_bytes_each(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert unpack_ids(packed).tolist() == ids
    assert pack_ids(array("I", ids)) == packed
    assert len(packed) == 4 * len(ids) == 4 * count_ids(packed)


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, "7", None])
def test_what_is_no_id_of_32_bits_is_refused_without_showing_the_list(bad: object) -> None:
    with pytest.raises(UpstreamContractError, match="expected 3 integer token ids") as refusal:
        pack_ids([987654321, bad, 2])  # type: ignore[list-item]
    assert "987654321" not in str(refusal.value)


@given(SIMILAR, SIMILAR)
def test_common_prefix_is_what_a_loop_finds(left: list[int], right: list[int]) -> None:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    assert common_prefix(pack_ids(left), pack_ids(right)) == same


@pytest.mark.parametrize("at", [0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 4999])
def test_common_prefix_of_long_sequences_ends_at_the_first_difference(at: int) -> None:
    left = list(range(5000))
    # Differs in its highest byte only: the comparison of bytes starts with the lowest.
    right = [*left[:at], left[at] + 2**24, *left[at + 1 :]]
    assert common_prefix(pack_ids(left), pack_ids(right)) == at
    assert common_prefix(pack_ids(left), pack_ids(left[:at])) == at
    assert common_prefix(pack_ids(left[:at]), pack_ids(right)) == at


@given(st.lists(st.tuples(SIMILAR, st.lists(st.integers(0, 30), max_size=3)), max_size=12))
def test_every_stored_sequence_comes_back_whatever_it_was_based_on(
    additions: list[tuple[list[int], list[int]]],
) -> None:
    sequences = SharedSequences()
    for count, (ids, bases) in enumerate(additions):
        index = sequences.add(pack_ids(ids), [base % count for base in bases] if count else [])
        assert index == count
    for index, (ids, _) in enumerate(additions):
        assert sequences.sequence(index) == pack_ids(ids)
        assert sequences.length(index) == len(ids)
    assert sequences.stored <= sum(len(ids) for ids, _ in additions)


def test_only_what_a_base_lacks_is_stored() -> None:
    sequences = SharedSequences()
    turn = sequences.add(pack_ids(range(100)))
    following = sequences.add(pack_ids(range(130)), [turn])
    sibling = sequences.add(pack_ids([*range(100), 7, 8]), [turn, following])
    assert sequences.stored == 100 + 30 + 2
    assert sequences.sequence(sibling) == pack_ids([*range(100), 7, 8])


def test_a_sequence_that_is_a_beginning_of_its_base_stores_nothing() -> None:
    sequences = SharedSequences()
    whole = sequences.add(pack_ids(range(10)))
    part = sequences.add(pack_ids(range(4)), [whole])
    assert sequences.stored == 10
    assert unpack_ids(sequences.sequence(part)).tolist() == [0, 1, 2, 3]


def test_held_ids_are_referred_to_and_not_counted() -> None:
    sequences = SharedSequences()
    prompt = sequences.add_held(pack_ids(range(50)))
    turn = sequences.add(pack_ids([*range(50), 1, 2, 3]), [prompt])
    assert sequences.stored == 3
    assert unpack_ids(sequences.sequence(turn)).tolist() == [*range(50), 1, 2, 3]


def test_the_pool_holds_equal_prompts_once_until_the_last_holder_leaves() -> None:
    pool = PromptPool()
    first = pool.hold(pack_ids(range(50)))
    second = pool.hold(pack_ids(range(50)))
    other = pool.hold(pack_ids(range(7)))
    assert first is second
    assert pool.stored == 57
    pool.release(first)
    assert pool.stored == 57
    pool.release(second)
    assert pool.stored == 7
    pool.release(other)
    assert pool.stored == 0
