from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.token_ids import TokenIds
from sglang_model.id_sequences import PromptPool, SharedSequences, common_prefix

# Ids that are beginnings of one another, so that equal characters are not yet equal ids.
SIMILAR = st.lists(st.sampled_from([0, 1, 10, 11, 100, 101]), max_size=12)


def text_of(ids: list[int]) -> bytes:
    return TokenIds(ids).text


@given(SIMILAR, SIMILAR)
def test_common_prefix_is_the_text_of_the_ids_that_a_loop_finds(left: list[int], right: list[int]) -> None:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    assert common_prefix(text_of(left), text_of(right)) == len(text_of(left[:same]))


@pytest.mark.parametrize("at", [0, 1, 1022, 1023, 1024, 1025, 2047, 2048, 4999])
def test_common_prefix_of_long_sequences_ends_at_the_first_difference(at: int) -> None:
    left = list(range(5000))
    right = [*left[:at], left[at] * 10 + 7, *left[at + 1 :]]
    shared = len(text_of(left[:at]))
    assert common_prefix(text_of(left), text_of(right)) == shared
    assert common_prefix(text_of(left), text_of(left[:at])) == shared
    assert common_prefix(text_of(left[:at]), text_of(right)) == shared


@given(
    st.lists(st.tuples(SIMILAR, st.lists(st.integers(0, 30), max_size=3), st.booleans()), max_size=12),
)
def test_every_stored_sequence_comes_back_whatever_it_was_based_on(
    additions: list[tuple[list[int], list[int], bool]],
) -> None:
    sequences = SharedSequences()
    for count, (ids, offered, as_text) in enumerate(additions):
        bases = [base % count for base in offered] if count else []
        texts = {base: sequences.sequence(base).text for base in bases} if as_text else {}
        assert sequences.add(TokenIds(ids), bases, texts) == count
    for index, (ids, _, _) in enumerate(additions):
        assert sequences.sequence(index).tolist() == ids
        assert len(sequences.sequence(index)) == len(ids)
    assert sequences.stored <= sum(len(ids) for ids, _, _ in additions)


def test_only_what_a_base_lacks_is_stored() -> None:
    sequences = SharedSequences()
    turn = sequences.add(TokenIds(range(100)))
    following = sequences.add(TokenIds(range(130)), [turn])
    sibling = sequences.add(TokenIds([*range(100), 7, 8]), [turn, following])
    assert sequences.stored == 100 + 30 + 2
    assert sequences.sequence(sibling) == [*range(100), 7, 8]


def test_a_sequence_that_is_a_beginning_of_its_base_stores_nothing() -> None:
    sequences = SharedSequences()
    whole = sequences.add(TokenIds(range(10)))
    part = sequences.add(TokenIds(range(4)), [whole])
    assert sequences.stored == 10
    assert sequences.sequence(part) == [0, 1, 2, 3]


def test_held_ids_are_referred_to_and_not_counted() -> None:
    sequences = SharedSequences()
    prompt = sequences.add_held(PromptPool().hold(TokenIds(range(50))), 50)
    turn = sequences.add(TokenIds([*range(50), 1, 2, 3]), [prompt])
    assert sequences.stored == 3
    assert sequences.sequence(turn) == [*range(50), 1, 2, 3]


def test_the_pool_holds_equal_prompts_once_until_the_last_holder_leaves() -> None:
    pool = PromptPool()
    first = pool.hold(TokenIds(range(50)))
    second = pool.hold(TokenIds(range(50)))
    other = pool.hold(TokenIds(range(7)))
    assert first is second
    assert pool.stored == 57
    pool.release(first)
    assert pool.stored == 57
    pool.release(second)
    assert pool.stored == 7
    pool.release(other)
    assert pool.stored == 0
