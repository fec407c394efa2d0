"""The turns of one session, found by what their conversation means.

A turn is one answered request: the prompt ids that the engine saw, the ids that it sampled, and the digest
of the conversation up to and including the reply. Retries, regenerated turns, parallel branches, sub-agents
and context resets are simply turns with the same or another beginning, so nothing here decides which of
them a session "is in". This room knows neither locks nor clocks nor bounds; `sessions.py` keeps those.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from nemo_gym.errors import UpstreamContractError
from nemo_gym.id_text import PackedIds
from nemo_gym.token_ids import TokenIds
from sglang_model.conversation_digest import DIGEST_SIZE, ConversationDigests
from sglang_model.id_sequences import PromptPool, SharedSequences
from sglang_model.recent_texts import RecentTexts

_T = TypeVar("_T")


class MissReason(StrEnum):
    """Why the ids of a conversation are not known up to its last assistant turn."""

    NEW_CONVERSATION = "new_conversation"
    """The request has no assistant turn, so nothing was sampled for it yet."""
    NO_SESSION = "no_session"
    """Nothing was ever stored under this session id: a client without cookies, another worker, a restart."""
    EVICTED = "evicted"
    """The session was stored and had to make room or grew too old."""
    RENDERING_CHANGED = "rendering_changed"
    """The turn is there, but its prompt was rendered with other tools or template inputs."""
    ASSISTANT_EDITED = "assistant_edited"
    """A turn answered the same messages, but not with this reply."""
    NO_MATCHING_TURN = "no_matching_turn"
    """No stored turn has this conversation."""


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """Names a stored turn for a later commit, and has its ids as they were found, so that the commit need not
    unpack them again. It outlives its session without harm.
    """

    session_serial: int
    turn: int
    token_ids: TokenIds = field(default_factory=TokenIds, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A finished turn, to be stored. An aborted or failed one is never made.

    `conversation` ends with the reply as the client will send it back. `finish` is the engine's word for
    how the generation ended, `stop_token_id` the sampled stop token, None if it did not end in one.
    """

    conversation: ConversationDigests
    rendering: bytes
    prompt_token_ids: Sequence[int]
    generation_token_ids: Sequence[int]
    finish: str
    stop_token_id: int | None

    def __post_init__(self) -> None:
        if self.conversation.assistant_ends[-1:] != (self.conversation.messages,):
            raise ValueError(
                "expected a conversation that ends with the assistant's reply, got one of "
                f"{self.conversation.messages} messages that does not"
            )


@dataclass(frozen=True, slots=True)
class Match:
    """The stored turn that a request continues, with exactly the ids of that one turn.

    `token_ids` are its prompt ids and, from `prompt_length` on, the sampled ids. `messages` is how many
    messages of the request it covers, its reply included. `ambiguous`: turns with other ids have the same
    visible text, the reasoning in the request did not decide, and this is the latest of them. `shortfall`:
    why the assistant turns behind this one are not known; None when there are none.
    """

    handle: TurnHandle
    token_ids: TokenIds
    prompt_length: int
    messages: int
    finish: str
    stop_token_id: int | None
    ambiguous: bool
    shortfall: MissReason | None


class CheckedTurn(NamedTuple):
    """A turn with its ids checked and put together; made outside the store's lock, because that takes time."""

    prompt: TokenIds
    ids: TokenIds
    turn: Turn

    @classmethod
    def of(cls, turn: Turn) -> CheckedTurn:
        """Raises UpstreamContractError for what is no id."""
        try:
            TokenIds.checked([] if turn.stop_token_id is None else [turn.stop_token_id])
            prompt, generated = (
                ids if isinstance(ids, TokenIds) else TokenIds.checked(list(ids))
                for ids in (turn.prompt_token_ids, turn.generation_token_ids)
            )
            return cls(prompt, TokenIds.chained((prompt, generated)), turn)
        except ValueError as error:
            raise UpstreamContractError(f"a turn cannot be kept for the next one: {error}") from error


class _Row(NamedTuple):
    sequence: int
    prompt_length: int
    older: int
    """The next older turn with the same digest, -1 for none."""
    finish: int
    rendering: int
    stop_token_id: int
    parent: int
    """The turn that this one continues, -1 where its prompt was rendered."""
    messages: int
    """How many messages its conversation has, its reply included."""
    trace: bytes


_ROW: Final = struct.Struct(f"<IIiIIqiI{DIGEST_SIZE}s")
_OLDER: Final = struct.Struct("<i")
_OLDER_OFFSET: Final = 8
_NO_TURN: Final = -1
_NO_STOP: Final = -1


class SessionTree:
    """All turns of one session. No turn is ever changed; ids of one never become part of another's answer.

    Turns are rows of bytes and not objects: a store holds millions, and each object would be walked by every
    full garbage collection, during which the event loop stands still.
    """

    __slots__ = (
        "_finishes",
        "_latest",
        "_pooled",
        "_renderings",
        "_rows",
        "_sequences",
        "_turn_of",
        "last_used",
        "lost_turns",
        "serial",
    )

    def __init__(self, serial: int, *, lost_turns: bool) -> None:
        self.serial = serial
        self.lost_turns = lost_turns
        """True if turns of this session were evicted before."""
        self.last_used = 0.0
        """For the store to keep."""
        self._rows = bytearray()
        self._sequences = SharedSequences()
        self._pooled: list[PackedIds] = []
        # Digest of a conversation -> its latest turn; digest of a prompt alone -> _NO_TURN.
        self._turn_of: dict[bytes, int] = {}
        self._finishes: list[str] = []
        self._renderings: list[bytes] = []
        self._latest = _NO_TURN

    @property
    def turns(self) -> int:
        return len(self._rows) // _ROW.size

    @property
    def stored(self) -> int:
        """Number of ids that only this session holds."""
        return self._sequences.stored

    def has_turn(self, handle: TurnHandle) -> bool:
        return handle.session_serial == self.serial

    def find(
        self, conversation: ConversationDigests, rendering: bytes, texts: RecentTexts
    ) -> Match | MissReason:
        """Return the latest point of `conversation` whose ids are known, or why there is none.

        Only the prefixes that end with an assistant message are looked up, the longest first.
        """
        unknown: MissReason | None = None
        for end in reversed(conversation.assistant_ends):
            same_meaning = self._twins(conversation.semantic[end])
            turns = [
                turn for turn in same_meaning if self._renderings[self._row(turn).rendering] == rendering
            ]
            if turns:
                return self._match(turns, conversation.traces, end, unknown, texts)
            if same_meaning:
                why = MissReason.RENDERING_CHANGED
            elif conversation.semantic[end - 1] in self._turn_of:
                why = MissReason.ASSISTANT_EDITED
            else:
                why = MissReason.EVICTED if self.lost_turns else MissReason.NO_MATCHING_TURN
            # An edit makes every turn behind it unknown too, so a reason that names the cause stays.
            if unknown not in (MissReason.RENDERING_CHANGED, MissReason.ASSISTANT_EDITED):
                unknown = why
        return unknown or MissReason.NEW_CONVERSATION

    def add(
        self, checked: CheckedTurn, parent: TurnHandle | None, pool: PromptPool, texts: RecentTexts
    ) -> None:
        """Store a turn; only the ids that neither `parent` nor the session's latest turn begins with take
        room.

        The very same turn stored again (a retry at temperature 0) becomes the latest without taking any.
        """
        turn = checked.turn
        digest = turn.conversation.semantic[-1]
        twins = self._twins(digest)
        new = _Row(
            sequence=0,
            prompt_length=len(checked.prompt),
            older=twins[0] if twins else _NO_TURN,
            finish=_place(self._finishes, turn.finish),
            rendering=_place(self._renderings, turn.rendering),
            stop_token_id=_NO_STOP if turn.stop_token_id is None else turn.stop_token_id,
            parent=_NO_TURN if parent is None else parent.turn,
            messages=turn.conversation.messages,
            trace=turn.conversation.traces[-1],
        )
        for twin in twins:
            if self._is_same_turn(self._row(twin), new, checked.ids):
                self._make_latest(digest, twin, twins)
                return
        sequence = self._add_ids(checked, parent, pool, texts)
        texts.put(self.serial, sequence, checked.ids)
        self._rows += _ROW.pack(*new._replace(sequence=sequence))
        self._turn_of[digest] = self._latest = self.turns - 1
        self._turn_of.setdefault(turn.conversation.semantic[-2], _NO_TURN)

    def release(self, pool: PromptPool, texts: RecentTexts) -> None:
        """Give back what is kept for it beside the tree, prompts shared with other sessions among it; the tree is not
        used afterwards.
        """
        texts.drop(self.serial)
        for prompt in self._pooled:
            pool.release(prompt)
        self._pooled.clear()

    def _row(self, turn: int) -> _Row:
        return _Row._make(_ROW.unpack_from(self._rows, turn * _ROW.size))

    def _twins(self, digest: bytes) -> list[int]:
        """The turns with this digest, latest first."""
        twins: list[int] = []
        turn = self._turn_of.get(digest, _NO_TURN)
        while turn != _NO_TURN:
            twins.append(turn)
            turn = self._row(turn).older
        return twins

    def _is_same_turn(self, old: _Row, new: _Row, ids: TokenIds) -> bool:
        alike = (
            new._replace(sequence=old.sequence, older=old.older, trace=old.trace, parent=old.parent) == old
        )
        return alike and self._sequences.is_sequence(old.sequence, ids)

    def _match(
        self,
        turns: list[int],
        traces: Sequence[bytes],
        end: int,
        shortfall: MissReason | None,
        texts: RecentTexts,
    ) -> Match:
        # Branches of equal words differ in their reasoning, the last turn's first and those before it too.
        candidates = turns
        for agrees in (self._turn_agrees, self._branch_agrees) if len(turns) > 1 else ():
            candidates = [turn for turn in candidates if agrees(turn, traces)] or candidates
        row = self._row(candidates[0])
        token_ids = texts.get(self.serial, row.sequence)
        if token_ids is None:
            token_ids = self._sequences.sequence(row.sequence)
            texts.put(self.serial, row.sequence, token_ids)
        return Match(
            handle=TurnHandle(self.serial, candidates[0], token_ids),
            token_ids=token_ids,
            prompt_length=row.prompt_length,
            messages=end,
            finish=self._finishes[row.finish],
            stop_token_id=None if row.stop_token_id == _NO_STOP else row.stop_token_id,
            ambiguous=len(candidates) > 1,
            shortfall=shortfall,
        )

    def _turn_agrees(self, turn: int, traces: Sequence[bytes]) -> bool:
        """Whether the request shows this turn's reasoning. Where it shows none, it is not known whether the client
        leaves reasoning out or there was none.
        """
        row = self._row(turn)
        return traces[row.messages - 1] in (b"", row.trace)

    def _branch_agrees(self, turn: int, traces: Sequence[bytes]) -> bool:
        """Whether it shows that of this turn and of all turns that it continues."""
        while turn != _NO_TURN:
            if not self._turn_agrees(turn, traces):
                return False
            turn = self._row(turn).parent
        return True

    def _add_ids(
        self, checked: CheckedTurn, parent: TurnHandle | None, pool: PromptPool, texts: RecentTexts
    ) -> int:
        bases = [] if self._latest == _NO_TURN else [self._row(self._latest).sequence]
        known = {base: ids.text for base in bases if (ids := texts.get(self.serial, base)) is not None}
        if parent is not None:
            continued = self._row(parent.turn).sequence
            if parent.token_ids:
                known[continued] = parent.token_ids.text
            return self._sequences.add(checked.ids, {continued, *bases}, known)
        _, shared = self._sequences.best_base(checked.ids, bases, known)
        # A prompt that is mostly new starts something new, as other sessions of its group may do too.
        if shared < len(checked.prompt.text) / 2:
            prompt = pool.hold(checked.prompt)
            self._pooled.append(prompt)
            return self._sequences.add(
                checked.ids,
                [held := self._sequences.add_held(prompt, len(checked.prompt))],
                {held: checked.prompt.text},
            )
        return self._sequences.add(checked.ids, bases, known)

    def _make_latest(self, digest: bytes, turn: int, twins: list[int]) -> None:
        order = [turn, *(twin for twin in twins if twin != turn)]
        for twin, older in zip(order, [*order[1:], _NO_TURN], strict=True):
            _OLDER.pack_into(self._rows, twin * _ROW.size + _OLDER_OFFSET, older)
        self._turn_of[digest] = turn


def _place(values: list[_T], value: _T) -> int:
    """Return the index of `value`, appended if it is new. The lists are as short as a session has kinds of
    it.
    """
    if value not in values:
        values.append(value)
    return values.index(value)
