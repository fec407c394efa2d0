"""The store beside a slow and obvious one, over random trees: branches, retries, edits, evictions, turns in
flight.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from sglang_model.conversation_digest import digest_conversation, digest_rendering
from sglang_model.recent_texts import DEFAULT_RECENT_TEXT_BYTES
from sglang_model.sessions import InMemorySessionStore, Match, MissReason, StoreSize, Turn, TurnHandle
from tests.support.turns import END, Message, assistant, user

MAX_SESSIONS = 2
MAX_AGE = 10.0
MAX_TOKENS = 12
ONE_RECENT_TEXT = 500

SESSIONS = st.sampled_from(["a", "b", "c"])
RENDERINGS = st.sampled_from([digest_rendering(None, None), digest_rendering(["tool"], None)])
WORDS = st.sampled_from(["x", "y"])
THOUGHTS = st.sampled_from([None, "r", "s"])
FEW_IDS = st.lists(st.integers(1, 2), max_size=2)


def seen(messages: list[Message]) -> list[Message]:
    """The conversation without reasoning."""
    return [{key: value for key, value in message.items() if key != "reasoning"} for message in messages]


def most_telling(reasons: list[MissReason]) -> MissReason | None:
    """Of the reasons for turns that are not known, the last turn's first."""
    causes = [why for why in reasons if why in (MissReason.RENDERING_CHANGED, MissReason.ASSISTANT_EDITED)]
    return next(iter([*causes, *reasons]), None)


@dataclass
class KnownTurn:
    conversation: list[Message]
    rendering: bytes
    ids: list[int]
    prompt_length: int

    def answers(self, messages: list[Message]) -> bool:
        return seen(self.conversation) == seen(messages)


@dataclass
class KnownSession:
    used: float
    lost_turns: bool
    turns: list[KnownTurn] = field(default_factory=list)


@dataclass
class Model:
    """Whole conversations and whole id lists in plain lists, searched from end to end."""

    now: float = 0.0
    sessions: dict[str, KnownSession] = field(default_factory=dict)  # unused for longest first
    evicted: set[str] = field(default_factory=set)

    def find(self, name: str, messages: list[Message], rendering: bytes) -> object:
        self.drop_old_ones()
        if name not in self.sessions:
            if all(message["role"] != "assistant" for message in messages):
                return MissReason.NEW_CONVERSATION
            return MissReason.EVICTED if name in self.evicted else MissReason.NO_SESSION
        session = self.touch(name)
        reasons: list[MissReason] = []
        for end in range(len(messages), 0, -1):
            if messages[end - 1]["role"] != "assistant":
                continue
            alike = [turn for turn in session.turns if turn.answers(messages[:end])]
            usable = [turn for turn in alike if turn.rendering == rendering]
            if usable:
                thought = messages[end - 1].get("reasoning")
                same_thought = [
                    t for t in usable if thought and t.conversation[-1].get("reasoning") == thought
                ]
                as_sent = same_thought or usable
                return (
                    as_sent[-1].ids,
                    as_sent[-1].prompt_length,
                    end,
                    len(as_sent) > 1,
                    most_telling(reasons),
                )
            reasons.append(self.why(session, messages[:end], rendered_otherwise=bool(alike)))
        return most_telling(reasons) or MissReason.NEW_CONVERSATION

    def why(self, session: KnownSession, messages: list[Message], *, rendered_otherwise: bool) -> MissReason:
        if rendered_otherwise:
            return MissReason.RENDERING_CHANGED
        if any(seen(turn.conversation[:-1]) == seen(messages[:-1]) for turn in session.turns):
            return MissReason.ASSISTANT_EDITED
        return MissReason.EVICTED if session.lost_turns else MissReason.NO_MATCHING_TURN

    def commit(self, name: str, new: KnownTurn) -> None:
        self.drop_old_ones()
        if name not in self.sessions:
            self.sessions[name] = KnownSession(self.now, name in self.evicted)
            self.evicted.discard(name)
        session = self.touch(name)
        for old in session.turns:
            same_ids = (old.ids, old.prompt_length) == (new.ids, new.prompt_length)
            if same_ids and old.rendering == new.rendering and old.answers(new.conversation):
                session.turns.remove(old)
                session.turns.append(old)
                return
        session.turns.append(new)
        while len(self.sessions) > MAX_SESSIONS:
            self.evict(next(iter(self.sessions)))

    def touch(self, name: str) -> KnownSession:
        session = self.sessions[name] = self.sessions.pop(name)
        session.used = self.now
        return session

    def drop_old_ones(self) -> None:
        for name in [name for name, session in self.sessions.items() if self.now - session.used > MAX_AGE]:
            self.evict(name)

    def evict(self, name: str) -> None:
        del self.sessions[name]
        self.evicted.add(name)


@dataclass
class InFlight:
    session: str
    messages: list[Message]
    rendering: bytes
    matched_ids: list[int]
    parent: TurnHandle | None
    parent_when_tight: TurnHandle | None


class StoreAgainstModel(RuleBasedStateMachine):
    """`store` must do exactly what the model does; `tight`, bounded by tokens, may know less, never other
    ids.
    """

    recent_text_bytes = DEFAULT_RECENT_TEXT_BYTES
    conversations = Bundle("conversations")
    in_flight = Bundle("in_flight")

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.store = InMemorySessionStore(
            max_sessions=MAX_SESSIONS,
            max_age_seconds=MAX_AGE,
            recent_text_bytes=self.recent_text_bytes,
            clock=lambda: self.model.now,
        )
        self.tight = InMemorySessionStore(
            max_tokens=MAX_TOKENS, recent_text_bytes=ONE_RECENT_TEXT, clock=lambda: self.model.now
        )
        self.committed: list[tuple[str, KnownTurn]] = []

    @rule(target=conversations, words=WORDS)
    def begin(self, words: str) -> list[Message]:
        return [user(words)]

    @rule(target=conversations, conversation=conversations, at=st.integers(0, 9), words=WORDS)
    def rewrite_a_message(self, conversation: list[Message], at: int, words: str) -> list[Message]:
        at %= len(conversation)
        return [*conversation[:at], {**conversation[at], "content": words}, *conversation[at + 1 :]]

    @rule(target=conversations, conversation=conversations)
    def leave_out_reasoning(self, conversation: list[Message]) -> list[Message]:
        return seen(conversation)

    @rule(target=conversations, conversation=conversations, turns=st.integers(1, 3))
    def go_back(self, conversation: list[Message], turns: int) -> list[Message]:
        return conversation[: max(1, len(conversation) - 2 * turns)]

    @rule(target=in_flight, session=SESSIONS, conversation=conversations, rendering=RENDERINGS)
    def ask(self, session: str, conversation: list[Message], rendering: bytes) -> InFlight:
        digests = digest_conversation(conversation)
        found = self.store.find(session, digests, rendering)
        expected = self.model.find(session, conversation, rendering)
        if isinstance(found, Match):
            told = (
                found.token_ids.tolist(),
                found.prompt_length,
                found.messages,
                found.ambiguous,
                found.shortfall,
            )
            assert told == expected
        else:
            assert found is expected
        in_tight = self.tight.find(session, digests, rendering)
        if isinstance(in_tight, Match):
            self.check_that_it_was_committed(session, conversation[: in_tight.messages], rendering, in_tight)
        whole = isinstance(found, Match) and found.shortfall is None
        return InFlight(
            session,
            conversation,
            rendering,
            found.token_ids.tolist() if isinstance(found, Match) and whole else [],
            found.handle if isinstance(found, Match) and whole else None,
            in_tight.handle if isinstance(in_tight, Match) else None,
        )

    def check_that_it_was_committed(
        self, session: str, messages: list[Message], rendering: bytes, match: Match
    ) -> None:
        assert any(
            name == session
            and turn.answers(messages)
            and turn.rendering == rendering
            and (turn.ids, turn.prompt_length) == (match.token_ids.tolist(), match.prompt_length)
            for name, turn in self.committed
        )

    @rule(
        target=conversations,
        asked=consumes(in_flight),
        words=WORDS,
        thought=THOUGHTS,
        new_ids=FEW_IDS,
        sampled=FEW_IDS,
        next_words=WORDS,
    )
    def finish(
        self,
        asked: InFlight,
        words: str,
        thought: str | None,
        new_ids: list[int],
        sampled: list[int],
        next_words: str,
    ) -> object:
        reply = assistant(words) if thought is None else assistant(words, reasoning=thought)
        prompt = [*asked.matched_ids, *new_ids]
        turn = Turn(
            conversation=digest_conversation(asked.messages).followed_by(reply),
            rendering=asked.rendering,
            prompt_token_ids=prompt,
            generation_token_ids=sampled,
            finish="stop",
            stop_token_id=END,
        )
        self.store.commit(asked.session, asked.parent, turn)
        self.tight.commit(asked.session, asked.parent_when_tight, turn)
        known = KnownTurn([*asked.messages, reply], asked.rendering, [*prompt, *sampled], len(prompt))
        self.model.commit(asked.session, known)
        self.committed.append((asked.session, known))
        return multiple([*asked.messages, reply, user(next_words)], asked.messages)

    @rule(asked=consumes(in_flight))
    def abort(self, asked: InFlight) -> None:
        """Nothing is told to the store."""

    @rule(seconds=st.sampled_from([1.0, 6.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.model.now += seconds

    @rule(session=SESSIONS)
    def forget(self, session: str) -> None:
        self.store.forget(session)
        self.tight.forget(session)
        self.model.sessions.pop(session, None)
        self.model.evicted.discard(session)

    @invariant()
    def bounds_hold(self) -> None:
        self.model.drop_old_ones()
        size = self.store.size()
        assert size.sessions == len(self.model.sessions)
        assert size.turns == sum(len(session.turns) for session in self.model.sessions.values())
        assert size.tokens <= sum(len(turn.ids) for s in self.model.sessions.values() for turn in s.turns)
        assert self.tight.size().tokens <= MAX_TOKENS

    def teardown(self) -> None:
        for store in (self.store, self.tight):
            for session in ("a", "b", "c"):
                store.forget(session)
            assert store.size() == StoreSize(0, 0, 0)
            assert store.recent_text_bytes == 0


class StoreThatUnpacksAgainstModel(StoreAgainstModel):
    recent_text_bytes = 0


TestStoreAgainstModel = StoreAgainstModel.TestCase
TestStoreAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

TestStoreThatUnpacksAgainstModel = StoreThatUnpacksAgainstModel.TestCase
TestStoreThatUnpacksAgainstModel.settings = TestStoreAgainstModel.settings
