from __future__ import annotations

import gc
import logging
import tracemalloc

import pytest

from nemo_gym.errors import ConfigError, UpstreamContractError
from sglang_model.conversation_digest import digest_conversation, digest_rendering
from sglang_model.sessions import (
    CommitOutcome,
    EvictionReason,
    InMemorySessionStore,
    Match,
    MissReason,
    StoreSize,
    Turn,
)
from tests.support.turns import END, Message, Session, assistant, call, finished_turn, system, tool, user

TOOLS = [{"type": "function", "function": {"name": "f"}}]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def session() -> Session:
    return Session(InMemorySessionStore())


def ids_of(match: Match) -> tuple[list[int], list[int]]:
    ids = match.token_ids.tolist()
    return ids[: match.prompt_length], ids[match.prompt_length :]


def test_the_next_request_finds_prompt_and_sampled_ids_of_the_turn_before(session: Session) -> None:
    messages = [system("s"), user("u")]
    assert session.sample(messages, assistant("a"), [1, 2, 3], [4, END]) is CommitOutcome.COMMITTED
    match = session.match([*messages, assistant("a"), user("v")])
    assert ids_of(match) == ([1, 2, 3], [4, END])
    assert match.messages == 3
    assert (match.finish, match.stop_token_id) == ("stop", END)
    assert not match.ambiguous
    assert match.shortfall is None


def test_a_turn_cut_by_length_is_remembered_as_such(session: Session) -> None:
    turn = finished_turn([user("u")], assistant("a"), [1], [2], finish="length", stop_token_id=None)
    session.store.commit(session.id, None, turn)
    match = session.match([user("u"), assistant("a"), user("v")])
    assert (match.finish, match.stop_token_id) == ("length", None)


def test_a_turn_without_generation_is_remembered(session: Session) -> None:
    session.sample([user("u")], assistant(None), [1, 2], [])
    assert ids_of(session.match([user("u"), assistant(""), user("v")])) == ([1, 2], [])


def test_ids_grow_turn_by_turn_over_a_long_conversation(session: Session) -> None:
    messages: list[Message] = [user("u")]
    expected: list[int] = []
    for turn in range(50):
        reply = assistant(f"a{turn}")
        session.sample(messages, reply, [10 * turn, 10 * turn + 1], [10 * turn + 2, END])
        expected += [10 * turn, 10 * turn + 1, 10 * turn + 2, END]
        messages += [reply, user(f"u{turn}")]
        assert session.match(messages).token_ids.tolist() == expected
    assert session.store.size() == StoreSize(sessions=1, turns=50, tokens=200)


def test_a_request_without_an_assistant_turn_is_a_new_conversation(session: Session) -> None:
    assert session.find([user("u")]) is MissReason.NEW_CONVERSATION
    session.sample([user("u")], assistant("a"), [1], [2])
    assert session.find([user("u")]) is MissReason.NEW_CONVERSATION
    assert session.find([]) is MissReason.NEW_CONVERSATION


def test_an_unknown_session_is_named_as_the_reason(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    stranger = Session(session.store, "other")
    assert stranger.find([user("u"), assistant("a"), user("v")]) is MissReason.NO_SESSION


def test_ids_of_one_session_are_never_found_from_another(session: Session) -> None:
    other = Session(session.store, "other")
    session.sample([user("u")], assistant("a"), [1], [2])
    other.sample([user("u")], assistant("a"), [1], [3])
    request = [user("u"), assistant("a"), user("v")]
    assert session.match(request).token_ids.tolist() == [1, 2]
    assert other.match(request).token_ids.tolist() == [1, 3]


def test_an_edited_reply_never_inherits_the_sampled_ids(session: Session) -> None:
    session.sample([user("u")], assistant("secret"), [1], [2])
    assert session.find([user("u"), assistant("[redacted]"), user("v")]) is MissReason.ASSISTANT_EDITED


def test_an_edit_of_the_last_reply_leaves_the_turn_before_it_and_says_so(session: Session) -> None:
    first = [user("u"), assistant("a"), user("v")]
    session.sample(first[:1], assistant("a"), [1], [2])
    session.sample(first, assistant("b"), [3], [4])
    match = session.match([*first, assistant("edited"), user("w")])
    assert match.token_ids.tolist() == [1, 2]
    assert match.messages == 2
    assert match.shortfall is MissReason.ASSISTANT_EDITED


def test_an_edit_is_named_although_every_turn_behind_it_is_unknown_too(session: Session) -> None:
    first = [user("u"), assistant("a"), user("v")]
    session.sample(first[:1], assistant("a"), [1], [2])
    session.sample(first, assistant("b"), [3], [4])
    behind = [user("w"), assistant("c"), user("x")]
    session.sample([*first, assistant("b"), *behind[:1]], assistant("c"), [5], [6])
    match = session.match([*first, assistant("edited"), *behind])
    assert (match.messages, match.shortfall) == (2, MissReason.ASSISTANT_EDITED)
    assert session.find([user("u"), assistant("edited"), *behind]) is MissReason.ASSISTANT_EDITED


def test_an_edit_is_named_although_the_conversation_began_with_turns_that_were_never_sampled(
    session: Session,
) -> None:
    example = [user("2+2?"), assistant("4"), user("3+3?")]
    session.sample(example, assistant("6"), [1], [2])
    assert session.match([*example, assistant("6"), user("v")]).token_ids.tolist() == [1, 2]
    assert session.find([*example, assistant("7"), user("v")]) is MissReason.ASSISTANT_EDITED


def test_a_turn_that_went_on_after_an_assistant_message_leaves_that_turn_as_it_was(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    session.sample([user("u"), assistant("a")], assistant("b"), [3], [4])
    assert session.match([user("u"), assistant("a"), user("v")]).token_ids.tolist() == [1, 2]
    both = session.match([user("u"), assistant("a"), assistant("b"), user("v")])
    assert both.token_ids.tolist() == [1, 2, 3, 4]


def test_an_edit_further_up_matches_nothing_behind_it(session: Session) -> None:
    first = [user("u"), assistant("a"), user("v")]
    session.sample(first[:1], assistant("a"), [1], [2])
    session.sample(first, assistant("b"), [3], [4])
    edited = [user("other"), assistant("a"), user("v"), assistant("b"), user("w")]
    assert session.find(edited) is MissReason.NO_MATCHING_TURN


def test_changed_tools_do_not_continue_the_turn_and_coming_back_to_the_old_ones_does(
    session: Session,
) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    request = [user("u"), assistant("a"), user("v")]
    assert session.find(request, tools=TOOLS) is MissReason.RENDERING_CHANGED
    assert session.find(request, kwargs={"enable_thinking": False}) is MissReason.RENDERING_CHANGED
    assert session.match(request, tools=[]).token_ids.tolist() == [1, 2]


def test_one_conversation_rendered_in_two_ways_is_two_turns(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    session.sample([user("u")], assistant("a"), [5, 1], [2], tools=TOOLS)
    request = [user("u"), assistant("a"), user("v")]
    for _ in range(2):
        assert session.match(request).token_ids.tolist() == [1, 2]
        assert session.match(request, tools=TOOLS).token_ids.tolist() == [5, 1, 2]
    assert not session.match(request).ambiguous


def test_a_changed_rendering_falls_short_of_the_last_turn_and_says_so(session: Session) -> None:
    first = [user("u"), assistant("a"), user("v")]
    session.sample(first[:1], assistant("a"), [1], [2])
    session.sample(first, assistant("b"), [9, 1, 3], [4], tools=TOOLS)
    match = session.match([*first, assistant("b"), user("w")])
    assert match.messages == 2
    assert match.shortfall is MissReason.RENDERING_CHANGED


def test_a_retry_of_the_first_turn_leaves_the_session_usable(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    session.sample([user("u")], assistant("b"), [1], [3])
    for reply, sampled in ((assistant("a"), 2), (assistant("b"), 3)):
        assert session.match([user("u"), reply, user("v")]).token_ids.tolist() == [1, sampled]


def test_a_regenerated_turn_is_a_sibling_with_its_own_ids(session: Session) -> None:
    first = [user("u"), assistant("a"), tool("c", "t")]
    session.sample(first[:1], assistant("a"), [1], [2])
    session.sample(first, assistant("b"), [3], [4])
    session.sample(first, assistant("c"), [3], [5])
    assert session.match([*first, assistant("b"), user("v")]).token_ids.tolist() == [1, 2, 3, 4]
    assert session.match([*first, assistant("c"), user("v")]).token_ids.tolist() == [1, 2, 3, 5]
    # The prompt of the second sibling is the first's, so only its one sampled id is new.
    assert session.store.size().tokens == 5


def test_branches_grow_side_by_side(session: Session) -> None:
    requests = {
        name: [user("u"), assistant(f"a{name}"), user(f"v{name}")] for name in ("left", "right", "middle")
    }
    for number, request in enumerate(requests.values()):
        session.sample(request[:1], request[1], [1], [10 + number])
    for number, request in enumerate(requests.values()):
        session.sample(request, assistant("same words"), [20 + number], [30 + number])
    for number, request in enumerate(requests.values()):
        match = session.match([*request, assistant("same words"), user("w")])
        assert match.token_ids.tolist() == [1, 10 + number, 20 + number, 30 + number]
        assert not match.ambiguous


def test_a_sub_agent_with_another_system_prompt_has_a_root_of_its_own(session: Session) -> None:
    main, sub = [system("main"), user("u")], [system("sub"), user("u")]
    session.sample(main, assistant("a"), [1, 2], [3])
    session.sample(sub, assistant("a"), [7, 8], [9], tools=TOOLS)
    session.sample([*main, assistant("a"), user("v")], assistant("b"), [4], [5])
    assert session.match([*sub, assistant("a"), user("v")], tools=TOOLS).token_ids.tolist() == [7, 8, 9]
    assert session.match(
        [*main, assistant("a"), user("v"), assistant("b"), user("w")]
    ).token_ids.tolist() == [1, 2, 3, 4, 5]


def test_a_context_reset_starts_over_and_the_old_turns_stay(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    summary = [user("summary of it all")]
    session.sample(summary, assistant("b"), [6], [7])
    assert session.match([*summary, assistant("b"), user("v")]).token_ids.tolist() == [6, 7]
    assert session.match([user("u"), assistant("a"), user("v")]).token_ids.tolist() == [1, 2]


def test_equal_words_with_other_ids_give_the_latest_and_say_that_it_is_ambiguous(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [198, 198])
    session.sample([user("u")], assistant("a"), [1], [271])
    match = session.match([user("u"), assistant("a"), user("v")])
    assert match.token_ids.tolist() == [1, 271]
    assert match.ambiguous


def test_reasoning_sent_back_decides_between_equal_words(session: Session) -> None:
    for number, thought in enumerate(("first", "second", "third")):
        session.sample([user("u")], assistant("a", reasoning_content=thought), [1], [10 + number])
    for number, thought in enumerate(("first", "second", "third")):
        match = session.match([user("u"), assistant("a", reasoning_content=thought), user("v")])
        assert match.token_ids.tolist() == [1, 10 + number]
        assert not match.ambiguous
    without = session.match([user("u"), assistant("a"), user("v")])
    assert without.token_ids.tolist() == [1, 12]
    assert without.ambiguous


def test_reasoning_of_the_last_turn_decides_although_that_of_earlier_turns_was_dropped(
    session: Session,
) -> None:
    first = [user("u"), assistant("a", reasoning_content="early"), user("v")]
    session.sample(first[:1], first[1], [1], [2])
    for number, thought in enumerate(("first", "second")):
        session.sample(first, assistant("b", reasoning_content=thought), [3], [10 + number])
    request = [user("u"), assistant("a"), user("v"), assistant("b", reasoning_content="first"), user("w")]
    match = session.match(request)
    assert match.token_ids.tolist() == [1, 2, 3, 10]
    assert not match.ambiguous


def test_no_reasoning_in_the_request_does_not_mean_that_none_was_sampled(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    session.sample([user("u")], assistant("a", reasoning_content="hm"), [1], [3])
    match = session.match([user("u"), assistant("a"), user("v")])
    assert match.token_ids.tolist() == [1, 3]
    assert match.ambiguous


def test_the_same_turn_again_is_stored_once_and_is_the_latest(session: Session) -> None:
    request = [user("u"), assistant("a"), user("v")]
    session.sample(request[:1], assistant("a"), [1], [2])
    session.sample(request[:1], assistant("a"), [1], [3])
    session.sample(request[:1], assistant("a"), [1], [4])
    size = session.store.size()
    session.sample(request[:1], assistant("a"), [1], [3])
    assert session.match(request).token_ids.tolist() == [1, 3]
    session.sample(request[:1], assistant("a"), [1], [2])
    assert session.match(request).token_ids.tolist() == [1, 2]
    assert session.store.size() == size == StoreSize(sessions=1, turns=3, tokens=4)


def test_the_same_ids_cut_elsewhere_are_another_turn(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1, 2], [3])
    session.sample([user("u")], assistant("a"), [1], [2, 3])
    assert ids_of(session.match([user("u"), assistant("a"), user("v")])) == ([1], [2, 3])


def test_calls_are_found_when_the_client_writes_them_anew(session: Session) -> None:
    messages = [user("u")]
    session.sample(messages, assistant(None, tool_calls=[call("c", "f", '{"a":1,"b":2}')]), [1], [2])
    rewritten = assistant("", tool_calls=[call("c", "f", '{"b": 2, "a": 1}')])
    assert session.match([*messages, rewritten, tool("c", "t")]).token_ids.tolist() == [1, 2]


def test_a_request_that_ends_with_the_reply_matches_all_of_it(session: Session) -> None:
    session.sample([user("u")], assistant("a"), [1], [2])
    assert session.match([user("u"), assistant("a")]).messages == 2


def test_a_request_that_never_commits_leaves_the_session_as_it_was(session: Session) -> None:
    request = [user("u"), assistant("a"), user("v")]
    session.sample(request[:1], assistant("a"), [1], [2])
    before, size = session.match(request), session.store.size()
    session.match(request)  # a request that is then aborted, fails or is disconnected
    assert session.match(request) == before
    assert session.store.size() == size


def test_a_turn_must_end_with_the_reply() -> None:
    for messages in ([], [user("u")], [user("u"), assistant("a"), user("v")]):
        with pytest.raises(ValueError, match="ends with the assistant's reply"):
            Turn(
                conversation=digest_conversation(messages),
                rendering=b"",
                prompt_token_ids=[1],
                generation_token_ids=[2],
                finish="stop",
                stop_token_id=None,
            )


def test_an_id_of_more_than_32_bits_is_refused_and_nothing_is_stored(session: Session) -> None:
    with pytest.raises(UpstreamContractError):
        session.sample([user("u")], assistant("a"), [1], [10**10])
    assert session.store.size() == StoreSize(0, 0, 0)


@pytest.mark.parametrize("stop", [-1, 2**63, "151645"])
def test_a_stop_token_that_is_no_id_is_refused_and_nothing_is_stored(session: Session, stop: int) -> None:
    with pytest.raises(UpstreamContractError):
        session.store.commit(
            "s", None, finished_turn([user("u")], assistant("a"), [1], [2], stop_token_id=stop)
        )
    assert session.store.size() == StoreSize(0, 0, 0)


@pytest.mark.parametrize("name", ["max_tokens", "max_sessions", "max_age_seconds"])
def test_a_bound_of_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        InMemorySessionStore(**{name: 0})


# Eviction


def fill(store: InMemorySessionStore, session_id: str, tokens: int, first: int = 0) -> Session:
    """A session of one turn with `tokens` ids, different from every other session's."""
    session = Session(store, session_id)
    session.sample([user(session_id)], assistant("a"), range(first, first + tokens - 1), [END])
    return session


def follow_up(session: Session) -> list[Message]:
    return [user(session.id), assistant("a"), user("v")]


def test_the_session_unused_for_longest_makes_room_and_is_told_so() -> None:
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(max_tokens=100, on_evict=lambda *eviction: dropped.append(eviction))
    a, b, c = fill(store, "a", 40, 1000), fill(store, "b", 40, 2000), fill(store, "c", 20, 3000)
    assert not dropped
    a.match(follow_up(a))  # reading counts as use
    d = fill(store, "d", 30, 4000)
    assert dropped == [(EvictionReason.TOKENS, 1, 40)]
    assert b.find(follow_up(b)) is MissReason.EVICTED
    assert all(isinstance(kept.find(follow_up(kept)), Match) for kept in (a, c, d))
    assert store.size() == StoreSize(sessions=3, turns=3, tokens=90)


def test_as_many_sessions_go_as_it_takes_and_are_counted_together() -> None:
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(max_tokens=100, on_evict=lambda *eviction: dropped.append(eviction))
    for number in range(10):
        fill(store, str(number), 10, 100 * number)
    fill(store, "large", 65, 5000)
    assert dropped == [(EvictionReason.TOKENS, 7, 70)]
    assert store.size().tokens == 95


def test_more_sessions_than_allowed_drop_the_one_unused_for_longest() -> None:
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(max_sessions=2, on_evict=lambda *eviction: dropped.append(eviction))
    a, b, c = fill(store, "a", 4, 1000), fill(store, "b", 5, 2000), fill(store, "c", 6, 3000)
    assert dropped == [(EvictionReason.SESSIONS, 1, 4)]
    assert a.find(follow_up(a)) is MissReason.EVICTED
    assert isinstance(b.find(follow_up(b)), Match)
    assert isinstance(c.find(follow_up(c)), Match)


def test_a_session_is_found_up_to_its_age_and_not_beyond() -> None:
    clock = Clock()
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(
        max_age_seconds=60, clock=clock, on_evict=lambda *eviction: dropped.append(eviction)
    )
    session = fill(store, "a", 10)
    clock.now += 60
    assert isinstance(session.find(follow_up(session)), Match)
    clock.now += 60
    assert isinstance(session.find(follow_up(session)), Match)
    assert not dropped
    clock.now += 60.1
    assert session.find(follow_up(session)) is MissReason.EVICTED
    assert dropped == [(EvictionReason.AGE, 1, 10)]
    assert store.size() == StoreSize(0, 0, 0)


def test_requests_of_others_and_a_look_at_the_size_clear_what_is_too_old() -> None:
    clock = Clock()
    store = InMemorySessionStore(max_age_seconds=60, clock=clock)
    for number in range(5):
        fill(store, str(number), 10, 100 * number)
    clock.now += 61
    fill(store, "new", 10, 5000)
    assert store.size() == StoreSize(1, 1, 10)
    clock.now += 61
    assert store.size() == StoreSize(0, 0, 0)


def test_no_single_request_clears_thousands_of_old_sessions_and_none_is_found_meanwhile() -> None:
    clock = Clock()
    store = InMemorySessionStore(max_age_seconds=60, clock=clock)
    sessions = [fill(store, str(number), 2, 10 * number) for number in range(300)]
    clock.now += 61
    assert sessions[-1].find(follow_up(sessions[-1])) is MissReason.EVICTED
    left = store.size().sessions
    assert 100 < left < 299
    assert all(session.find(follow_up(session)) is MissReason.EVICTED for session in sessions)
    assert store.size() == StoreSize(0, 0, 0)


def test_a_session_that_comes_back_after_eviction_starts_anew_and_still_knows_that_turns_were_lost() -> None:
    store = InMemorySessionStore(max_sessions=1)
    a = fill(store, "a", 4, 1000)
    fill(store, "b", 4, 2000)
    a.sample(follow_up(a), assistant("b"), [1, 2, 3], [4])
    assert a.match([*follow_up(a), assistant("b"), user("w")]).token_ids.tolist() == [1, 2, 3, 4]
    assert a.find([user("a"), assistant("another branch"), user("v")]) is MissReason.EVICTED
    short = a.match([*follow_up(a), assistant("b"), user("w"), assistant("lost too"), user("x")])
    assert short.shortfall is MissReason.EVICTED


def test_a_session_evicted_while_its_turn_was_generated_keeps_that_turn_with_all_its_ids() -> None:
    store = InMemorySessionStore(max_sessions=1)
    a = fill(store, "a", 4, 1000)
    match = a.match(follow_up(a))
    fill(store, "b", 4, 2000)
    turn = finished_turn(follow_up(a), assistant("b"), [*match.token_ids, 1, 2], [3])
    assert store.commit("a", match.handle, turn) is CommitOutcome.STALE
    request = [*follow_up(a), assistant("b"), user("w")]
    assert a.match(request).token_ids.tolist() == [1000, 1001, 1002, END, 1, 2, 3]


def test_a_handle_of_an_evicted_session_never_points_into_its_successor() -> None:
    store = InMemorySessionStore(max_sessions=1)
    a = fill(store, "a", 4, 1000)
    match = a.match(follow_up(a))
    fill(store, "b", 4, 2000)
    a = fill(store, "a", 4, 3000)
    turn = finished_turn(follow_up(a), assistant("b"), [*match.token_ids, 1, 2], [3])
    assert store.commit("a", match.handle, turn) is CommitOutcome.STALE
    assert a.match([*follow_up(a), assistant("b"), user("w")]).token_ids.tolist() == [
        *[1000, 1001, 1002, END],
        *[1, 2, 3],
    ]


def test_a_prompt_that_does_not_begin_with_its_parents_ids_is_stored_as_it_is(session: Session) -> None:
    request = [user("u"), assistant("a"), user("v")]
    session.sample(request[:1], assistant("a"), [1, 2, 3], [4])
    turn = finished_turn(request, assistant("b"), [1, 2, 9], [8])
    session.store.commit(session.id, session.match(request).handle, turn)
    assert session.match([*request, assistant("b"), user("w")]).token_ids.tolist() == [1, 2, 9, 8]


def test_a_turn_larger_than_the_store_is_not_kept_and_drops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = InMemorySessionStore(max_tokens=100)
    a = fill(store, "a", 50)
    turn = finished_turn([user("b")], assistant("a"), range(100), [1])
    with caplog.at_level(logging.WARNING):
        assert store.commit("b", None, turn) is CommitOutcome.TOO_LARGE
    assert "101 tokens" in caplog.text
    assert "max_tokens is 100" in caplog.text
    assert isinstance(a.find(follow_up(a)), Match)
    assert store.size() == StoreSize(1, 1, 50)


def test_a_session_larger_than_the_store_keeps_its_last_turn() -> None:
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(max_tokens=100, on_evict=lambda *eviction: dropped.append(eviction))
    session = Session(store)
    session.sample([user("u")], assistant("a"), range(50), [END])
    session.sample([user("other")], assistant("b"), range(100, 160), [END])
    assert session.match([user("other"), assistant("b"), user("v")]).token_ids.tolist() == [
        *range(100, 160),
        END,
    ]
    assert session.find([user("u"), assistant("a"), user("v")]) is MissReason.EVICTED
    assert dropped == [(EvictionReason.TOKENS, 2, 112)]
    assert store.size() == StoreSize(1, 1, 61)


def test_a_forgotten_session_is_as_if_it_had_never_been() -> None:
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(on_evict=lambda *eviction: dropped.append(eviction))
    session = fill(store, "a", 10)
    store.forget("a")
    store.forget("never seen")
    assert session.find(follow_up(session)) is MissReason.NO_SESSION
    assert store.size() == StoreSize(0, 0, 0)
    assert not dropped


def test_forgetting_also_forgets_an_eviction() -> None:
    store = InMemorySessionStore(max_sessions=1)
    a = fill(store, "a", 4, 1000)
    fill(store, "b", 4, 2000)
    store.forget("a")
    assert a.find(follow_up(a)) is MissReason.NO_SESSION


def test_evictions_are_remembered_in_bounded_number() -> None:
    store = InMemorySessionStore(max_sessions=1)
    turn = finished_turn([user("u")], assistant("a"), [1], [2])
    for number in range(66_000):
        store.commit(f"{number}", None, turn)
    request = [user("u"), assistant("a"), user("v")]
    assert Session(store, "65998").find(request) is MissReason.EVICTED
    assert Session(store, "0").find(request) is MissReason.NO_SESSION


def test_evictions_are_logged_in_sums_without_ids_of_anything(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store = InMemorySessionStore(max_tokens=10, clock=clock)
    with caplog.at_level(logging.INFO):
        for number in range(5):
            fill(store, f"name-{number}", 10, 100 * number)
            clock.now += 1
        clock.now += 10
        fill(store, "name-5", 10, 900)
    first, second = (record.getMessage() for record in caplog.records)
    assert "dropped 1 sessions (1 turns, 10 tokens) for max_tokens" in first
    assert "dropped 4 sessions (4 turns, 40 tokens) for max_tokens" in second
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert "name-" not in caplog.text


def test_ageing_is_logged_as_nothing_to_worry_about(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    store = InMemorySessionStore(max_age_seconds=60, clock=clock)
    fill(store, "a", 10)
    clock.now += 61
    with caplog.at_level(logging.INFO):
        store.size()
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "max_age_seconds" in caplog.text


def test_on_evict_may_use_the_store() -> None:
    sizes: list[StoreSize] = []
    store = InMemorySessionStore(max_sessions=1, on_evict=lambda *_: sizes.append(store.size()))
    fill(store, "a", 4, 1000)
    fill(store, "b", 5, 2000)
    assert sizes == [StoreSize(1, 1, 5)]


# Memory


def ids_from(seed: int, count: int) -> list[int]:
    """Ids spread over a vocabulary: most are above 256, where Python has no ready-made ints."""
    return [(seed * 7919 + position * 104_729) % 151_936 for position in range(count)]


def test_a_group_of_rollouts_stores_its_prompt_once() -> None:
    store = InMemorySessionStore()
    prompt = list(range(1000))
    group = [Session(store, f"rollout-{number}") for number in range(8)]
    for number, session in enumerate(group):
        session.sample([user("u")], assistant(f"a{number}"), prompt, [5000 + number, END])
    assert store.size() == StoreSize(sessions=8, turns=8, tokens=1000 + 8 * 2)
    for session in group[:7]:
        store.forget(session.id)
    assert store.size() == StoreSize(sessions=1, turns=1, tokens=1002)
    last = group[7]
    assert last.match([user("u"), assistant("a7"), user("v")]).token_ids.tolist() == [*prompt, 5007, END]
    store.forget(last.id)
    assert store.size() == StoreSize(0, 0, 0)


def test_a_turn_shares_its_parents_ids_although_others_were_stored_in_between(session: Session) -> None:
    session.sample([user("u")], assistant("a"), ids_from(1, 1000), [2])
    session.sample([user("sub-agent")], assistant("b"), ids_from(2, 1000), [3])
    session.sample([user("u"), assistant("a"), user("v")], assistant("c"), [4], [5])
    assert session.store.size().tokens == 1001 + 1001 + 2


def test_a_history_that_is_rendered_anew_each_turn_stores_what_changed() -> None:
    session = Session(InMemorySessionStore())
    head = list(range(10_000))
    messages: list[Message] = [user("u")]
    for turn in range(20):
        # The template rewrites the last part of the history, so no prompt continues the one before.
        prompt = [*head, 20_000 + turn]
        turn_done = finished_turn(messages, assistant(f"a{turn}"), prompt, [30_000 + turn])
        session.store.commit(session.id, None, turn_done)
        messages += [assistant(f"a{turn}"), user("v")]
        assert session.match(messages).token_ids.tolist() == [*prompt, 30_000 + turn]
    assert session.store.size().tokens == 10_000 + 20 * 2


@pytest.mark.parametrize(("turns", "new_ids", "generation"), [(20, 4500, 500), (270, 300, 70)])
def test_a_session_of_100k_tokens_takes_at_most_six_bytes_per_token(
    turns: int, new_ids: int, generation: int
) -> None:
    rendering = digest_rendering(TOOLS, None)
    store = InMemorySessionStore(recent_text_bytes=0)  # what is kept beside the store has a bound of its own
    session_id = "3f0e7c5e-0a8b-4f0e-9d4f-0d7c3f3a9b11"
    conversation = digest_conversation([system("s"), user("u")])
    prompt: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        empty, _ = tracemalloc.get_traced_memory()
        for turn in range(turns):
            prompt = [*prompt, *ids_from(turn, new_ids)]
            sampled = ids_from(turn + 1_000_000, generation)
            answered = conversation.followed_by(assistant(f"a{turn}", reasoning_content="hm"))
            found = store.find(session_id, conversation, rendering)
            store.commit(
                session_id,
                found.handle if isinstance(found, Match) else None,
                Turn(
                    conversation=answered,
                    rendering=rendering,
                    prompt_token_ids=prompt,
                    generation_token_ids=sampled,
                    finish="stop",
                    stop_token_id=END,
                ),
            )
            prompt += sampled
            conversation = answered.followed_by(tool(f"call_{turn}", "result"))
        size = store.size()
        del prompt, sampled, answered, conversation, found
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size.tokens == turns * (new_ids + generation) >= 99_900
    assert (held - empty) / size.tokens <= 6


def test_the_latest_turns_at_hand_take_no_more_than_they_may() -> None:
    store = InMemorySessionStore(recent_text_bytes=50_000)
    kept: list[int] = []
    for number in range(100):
        session = Session(store, f"rollout-{number}")
        session.sample([user("u")], assistant("a"), ids_from(number, 300), [1, END])
        kept.append(store.recent_text_bytes)
    assert max(kept) <= 50_000
    assert kept[-1] > 40_000
    for number in range(100):
        match = Session(store, f"rollout-{number}").match([user("u"), assistant("a"), user("v")])
        assert match.token_ids.tolist() == [*ids_from(number, 300), 1, END]
        store.forget(f"rollout-{number}")
    assert store.recent_text_bytes == 0


def test_a_session_of_many_turns_is_dropped_without_deep_recursion() -> None:
    session = Session(InMemorySessionStore())
    for turn in range(5000):
        session.store.commit(
            session.id, None, finished_turn([user(f"{turn}")], assistant("a"), [1, 2], [turn])
        )
    match = session.match([user("4999"), assistant("a"), user("v")])
    assert match.token_ids.tolist() == [1, 2, 4999]
    session.store.forget(session.id)
    assert session.store.size() == StoreSize(0, 0, 0)


def test_branches_of_equal_words_are_told_apart_by_the_reasoning_of_earlier_turns(session: Session) -> None:
    first, second = (assistant("4", reasoning_content=thought) for thought in ("one", "two"))
    reply = assistant("ok")
    session.sample([user("x")], first, [1], [2, END])
    session.sample([user("x")], second, [1], [3, END])
    session.sample([user("x"), first, user("y")], reply, [4], [5, END])
    session.sample([user("x"), second, user("y")], reply, [4], [5, END])
    for thinking, sampled in ((first, 2), (second, 3)):
        found = session.match([user("x"), thinking, user("y"), reply, user("z")])
        assert found.token_ids.tolist() == [1, sampled, END, 4, 5, END]
        assert not found.ambiguous
    without = session.match([user("x"), assistant("4"), user("y"), reply, user("z")])
    assert without.ambiguous


def test_a_turn_sampled_often_is_compared_by_its_end_first(session: Session) -> None:
    for sample in range(40):
        session.sample([user("x")], assistant("yes", reasoning_content=str(sample)), [1, 2], [3, sample, END])
    for sample in (0, 39):
        request = [user("x"), assistant("yes", reasoning_content=str(sample)), user("y")]
        assert session.match(request).token_ids.tolist() == [1, 2, 3, sample, END]
