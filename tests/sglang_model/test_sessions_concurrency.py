"""What the store promises when requests run side by side.

A request finds, waits for the engine, commits. Any number of them may be between the two, of one session or
of many, in coroutines or in threads. Each finds exactly what was committed for its own conversation, or
learns that it is gone.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_model.sessions import (
    CommitOutcome,
    EvictionReason,
    InMemorySessionStore,
    Match,
    MissReason,
    StoreSize,
)
from tests.support.turns import END, Message, Session, assistant, finished_turn, tool, user


@pytest.fixture
def eager_thread_switches() -> Iterator[None]:
    """Let threads interrupt each other as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class SlowEngine:
    """Answers only when all of `expected` requests are waiting, then one by one, the last asked first."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._waiting: list[asyncio.Event] = []

    async def generate(self) -> None:
        turn = asyncio.Event()
        self._waiting.append(turn)
        if len(self._waiting) == self._expected:
            turn.set()
        await turn.wait()

    def answered(self) -> None:
        self._waiting.pop()
        if self._waiting:
            self._waiting[-1].set()


async def request(
    session: Session,
    engine: SlowEngine,
    messages: list[Message],
    reply: Message,
    new_ids: list[int],
    sampled: int,
) -> CommitOutcome:
    found = session.find(messages)
    match = found if isinstance(found, Match) else None
    prompt = [*(match.token_ids if match else ()), *new_ids]
    await engine.generate()
    turn = finished_turn(messages, reply, prompt, [sampled, END])
    outcome = session.store.commit(session.id, match.handle if match else None, turn)
    engine.answered()
    return outcome


async def test_parallel_samples_of_one_prompt_are_all_kept() -> None:
    session = Session(InMemorySessionStore())
    engine = SlowEngine(8)
    await asyncio.gather(
        *(request(session, engine, [user("u")], assistant(f"a{n}"), [1, 2], 10 + n) for n in range(8))
    )
    for n in range(8):
        match = session.match([user("u"), assistant(f"a{n}"), user("v")])
        assert match.token_ids.tolist() == [1, 2, 10 + n, END]
    assert session.store.size().turns == 8


async def test_requests_that_continue_one_turn_at_once_become_siblings() -> None:
    session = Session(InMemorySessionStore())
    session.sample([user("u")], assistant("a"), [1], [2])
    messages = {n: [user("u"), assistant("a"), user(f"v{n}")] for n in range(8)}
    engine = SlowEngine(8)
    outcomes = await asyncio.gather(
        *(request(session, engine, messages[n], assistant("b"), [20 + n], 30 + n) for n in range(8))
    )
    assert set(outcomes) == {CommitOutcome.COMMITTED}
    for n in range(8):
        match = session.match([*messages[n], assistant("b"), tool("c", "t")])
        assert match.token_ids.tolist() == [1, 2, 20 + n, 30 + n, END]


async def test_a_retry_that_overtakes_the_first_attempt_does_not_disturb_it() -> None:
    session = Session(InMemorySessionStore())
    engine = SlowEngine(2)
    # The engine answers the second of the two first.
    await asyncio.gather(
        request(session, engine, [user("u")], assistant("first"), [1], 11),
        request(session, engine, [user("u")], assistant("retry"), [1], 12),
    )
    for words, sampled in (("first", 11), ("retry", 12)):
        match = session.match([user("u"), assistant(words), user("v")])
        assert match.token_ids.tolist() == [1, sampled, END]


async def test_sessions_running_side_by_side_do_not_mix() -> None:
    store = InMemorySessionStore()
    sessions = [Session(store, f"{n}") for n in range(8)]
    for turn in range(3):
        messages = [user("u")]
        for earlier in range(turn):
            messages += [assistant(f"a{earlier}"), user(f"v{earlier}")]
        engine = SlowEngine(8)
        await asyncio.gather(
            *(
                request(
                    sessions[n], engine, messages, assistant(f"a{turn}"), [100 * n + turn], 1000 * n + turn
                )
                for n in range(8)
            )
        )
    messages = [
        user("u"),
        assistant("a0"),
        user("v0"),
        assistant("a1"),
        user("v1"),
        assistant("a2"),
        user("w"),
    ]
    for n in range(8):
        expected = [id_ for turn in range(3) for id_ in (100 * n + turn, 1000 * n + turn, END)]
        assert sessions[n].match(messages).token_ids.tolist() == expected


async def test_a_cancelled_request_leaves_the_session_as_it_was() -> None:
    session = Session(InMemorySessionStore())
    session.sample([user("u")], assistant("a"), [1], [2])
    messages = [user("u"), assistant("a"), user("v")]
    before = session.store.size()
    engine = SlowEngine(2)  # nobody else comes, so it never answers
    task = asyncio.create_task(request(session, engine, messages, assistant("b"), [3], 4))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.store.size() == before
    assert session.match(messages).token_ids.tolist() == [1, 2]
    assert session.find([*messages, assistant("b"), user("w")]) != MissReason.NO_SESSION
    assert session.match([*messages, assistant("b"), user("w")]).messages == 2


async def test_a_session_forgotten_while_its_turn_is_generated_keeps_no_other_turn() -> None:
    session = Session(InMemorySessionStore())
    session.sample([user("u")], assistant("a"), [1], [2])
    messages = [user("u"), assistant("a"), user("v")]
    engine = SlowEngine(2)
    task = asyncio.create_task(request(session, engine, messages, assistant("b"), [3], 4))
    await asyncio.sleep(0)
    session.store.forget(session.id)
    other = asyncio.create_task(
        request(Session(session.store, "other"), engine, [user("u")], assistant("x"), [7], 8)
    )
    assert await task is CommitOutcome.STALE
    assert await other is CommitOutcome.COMMITTED
    assert session.match([*messages, assistant("b"), user("w")]).token_ids.tolist() == [1, 2, 3, 4, END]
    assert session.find(messages) is MissReason.NO_MATCHING_TURN


def test_nobody_waits_for_a_slow_eviction_callback() -> None:
    told, go_on = threading.Event(), threading.Event()

    def slow(reason: EvictionReason, turns: int, tokens: int) -> None:
        told.set()
        assert go_on.wait(30)

    store = InMemorySessionStore(max_sessions=1, on_evict=slow)
    turn = finished_turn([user("u")], assistant("a"), [1], [2])
    store.commit("a", None, turn)
    with ThreadPoolExecutor(1) as pool:
        committing = pool.submit(store.commit, "b", None, turn)
        assert told.wait(30)
        try:
            # The other thread is inside the callback now; a held lock would block here for ever.
            found = Session(store, "b").find([user("u"), assistant("a"), user("v")])
            assert isinstance(found, Match)
            assert not committing.done()
        finally:
            go_on.set()
        assert committing.result() is CommitOutcome.COMMITTED


def converse(session: Session, name: str, turns: int, others: threading.Barrier) -> int:
    """Talk in step with the others and check every id; return how often the history was evicted."""
    messages = [user(f"{name} u")]
    expected: list[int] = []
    evicted = 0
    for turn in range(turns):
        others.wait(30)
        found = session.find(messages)
        match = found if isinstance(found, Match) and found.shortfall is None else None
        if match is not None:
            assert match.token_ids.tolist() == expected
        elif turn:
            evicted += 1
            assert MissReason.EVICTED in (found, getattr(found, "shortfall", None))
        words = assistant(f"{name} a{turn}")
        prompt = [*expected, hash(name) % 1000, turn]
        expected = [*prompt, 5000 + turn, END]
        others.wait(30)
        done = finished_turn(messages, words, prompt, expected[-2:])
        session.store.commit(session.id, match.handle if match else None, done)
        messages = [*messages, words, tool("c", f"{name} t{turn}")]
    return evicted


def in_fifty_threads(store: InMemorySessionStore, sessions: int, turns: int) -> int:
    others = threading.Barrier(50)
    with ThreadPoolExecutor(50) as pool:
        talks = [
            pool.submit(converse, Session(store, f"s{number % sessions}"), f"thread {number}", turns, others)
            for number in range(50)
        ]
        return sum(talk.result() for talk in talks)


@pytest.mark.usefixtures("eager_thread_switches")
def test_fifty_threads_get_their_own_ids_while_sessions_are_evicted_under_them() -> None:
    dropped: list[tuple[EvictionReason, int, int]] = []
    store = InMemorySessionStore(max_tokens=1000, max_sessions=8, on_evict=lambda *args: dropped.append(args))
    assert in_fifty_threads(store, sessions=10, turns=12) > 0
    size = store.size()
    assert size.tokens <= 1000
    assert size.sessions <= 8
    assert {reason for reason, _, _ in dropped} == {EvictionReason.TOKENS, EvictionReason.SESSIONS}
    # Every turn that was stored is still there or was counted when it went.
    assert size.turns + sum(turns for _, turns, _ in dropped) == 50 * 12
    for number in range(10):
        store.forget(f"s{number}")
    assert store.size() == StoreSize(0, 0, 0)


@pytest.mark.usefixtures("eager_thread_switches")
def test_fifty_threads_in_one_session_lose_nothing_when_there_is_room() -> None:
    store = InMemorySessionStore()
    assert in_fifty_threads(store, sessions=1, turns=8) == 0
    assert store.size().turns == 50 * 8


@pytest.mark.usefixtures("eager_thread_switches")
def test_fifty_threads_committing_as_fast_as_they_can_lose_no_turn() -> None:
    dropped: list[int] = []
    store = InMemorySessionStore(
        max_sessions=5, on_evict=lambda _reason, turns, _tokens: dropped.append(turns)
    )
    start = threading.Barrier(50)

    def commit_many(number: int) -> None:
        start.wait(30)
        for count in range(100):
            turn = finished_turn([user("u")], assistant(f"{number} {count}"), [1], [2])
            store.commit(f"s{(number + count) % 7}", None, turn)

    with ThreadPoolExecutor(50) as pool:
        for running in [pool.submit(commit_many, number) for number in range(50)]:
            running.result()
    assert store.size().turns + sum(dropped) == 50 * 100
