from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.token_ids import TokenIds
from sglang_model.recent_texts import RecentTexts

BUDGET = 2_000


def ids(count: int) -> TokenIds:
    return TokenIds(range(1000, 1000 + count))


def test_a_sequence_is_at_hand_until_the_session_stores_another() -> None:
    texts = RecentTexts()
    texts.put(1, 0, ids(3))
    assert texts.get(1, 0) == ids(3)
    assert texts.get(1, 1) is None
    assert texts.get(2, 0) is None
    texts.put(1, 1, ids(5))
    assert texts.get(1, 0) is None
    assert texts.get(1, 1) == ids(5)


def test_what_was_not_used_for_longest_goes_first() -> None:
    texts = RecentTexts(BUDGET)
    for session in (1, 2, 3):
        texts.put(session, 0, ids(60))
    texts.get(1, 0)
    texts.put(4, 0, ids(60))
    assert [session for session in (1, 2, 3, 4) if texts.get(session, 0)] == [1, 3, 4]


def test_a_text_larger_than_the_budget_is_not_kept_nor_is_the_older_one() -> None:
    texts = RecentTexts(BUDGET)
    texts.put(1, 0, ids(3))
    texts.put(1, 1, ids(1000))
    assert texts.get(1, 0) is None
    assert texts.get(1, 1) is None
    assert texts.bytes == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 400), st.booleans())))
def test_the_budget_holds_and_what_is_at_hand_is_what_was_put_last(
    calls: list[tuple[int, int, int, bool]],
) -> None:
    texts = RecentTexts(BUDGET)
    last: dict[int, tuple[int, int]] = {}
    for session, sequence, count, leaves in calls:
        if leaves:
            texts.drop(session)
            last.pop(session, None)
        else:
            texts.put(session, sequence, ids(count))
            last[session] = (sequence, count)
        assert 0 <= texts.bytes <= BUDGET
        for one in range(5):
            for number in range(3):
                found = texts.get(one, number)
                assert found is None or (number, len(found)) == last[one]
    for session in range(5):
        texts.drop(session)
    assert texts.bytes == 0
