"""A request's prompt out of what was sampled before it: find the stored turn, splice behind it, remember the new one.

The promise: the prompt of a follow-up turn begins with the ids of the turn before, or the plan says why it does not.
Used by both transports. Knows a session store and a renderer; knows neither HTTP nor how a turn is generated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from nemo_gym.errors import RequestError
from nemo_gym.loop_time import give_way
from nemo_gym.token_ids import TokenIds
from sglang_model.bounded_cache import BoundedCache
from sglang_model.conversation_digest import (
    ConversationDigests,
    digest_conversation,
    digest_grown,
    digest_rendering,
)
from sglang_model.fragment_ids import fragment_token_ids
from sglang_model.generation_end import end_kind
from sglang_model.message_forms import Message, MessageForms
from sglang_model.rendering import Renderer
from sglang_model.sessions import CommitOutcome, Match, MissReason, SessionStore, Turn, TurnHandle
from sglang_model.short_context import Context, ShortContexts, same_fragment, short_previous, turn_kind
from sglang_model.splice import CloseCache, splice_steps
from sglang_model.splice_types import (
    Fragment,
    FragmentIds,
    GenerationEnd,
    HistoryNote,
    Pins,
    Refusal,
    RenderRequest,
    SpliceFlag,
    SpliceRequest,
)

LOGGER = logging.getLogger(__name__)

NOT_DIGESTED = digest_conversation(())
"""In place of a conversation's digests where nothing is looked up."""

CLOSE_LENGTH = 8
"""Ids of a fragment among which the close of the turn is looked for; the longest known closes have three."""

NOTED_PROMPT = 2_048
"""Ids of a first prompt up to which its text is compared with its rendering at every second turn: decoding takes 2 ms
for 8,000."""

SPLICING_OFF = "splicing_off"
"""The reason on every response while `sglang_splice_history` is off."""


NOT_ONLY_TEXT = "not_only_text"
"""The reason on chat for a conversation with images: SGLang drops them from a request that brings its prompt's ids."""


class HistoryStatus(StrEnum):
    """What a prompt was made of; the value of the header `x-sglang-history`."""

    NEW = "new"
    """Nothing was sampled for this conversation yet."""
    SPLICED = "spliced"
    """The stored ids of the last turn, and the new messages behind them."""
    RERENDERED = "rerendered"
    """The conversation has turns whose ids could not be kept: this turn starts a new segment."""


@dataclass(frozen=True)
class Conversation:
    """What a prompt is made from, with its digests."""

    session_id: str
    messages: Sequence[Message]
    tools: Sequence[Message] | None
    chat_template_kwargs: Mapping[str, object]
    digests: ConversationDigests
    rendering: bytes


@dataclass(frozen=True)
class PromptPlan:
    """How the prompt of one request is made. `token_ids` is None when it has to be rendered from all messages."""

    conversation: Conversation
    status: HistoryStatus
    reason: str
    token_ids: TokenIds | None = None
    parent: TurnHandle | None = None
    kept_tokens: int = 0
    flags: frozenset[SpliceFlag] = frozenset()
    note: HistoryNote = HistoryNote.UNKNOWN


@dataclass(frozen=True)
class FinishedTurn:
    """A turn to remember: the reply as the client will send it back, and the ids."""

    reply: Message
    prompt_token_ids: Sequence[int]
    generation_token_ids: Sequence[int]
    finish: str
    stop_token_id: int | None


@dataclass
class History:
    """Plans prompts and commits turns. Holds nothing while the engine works: a turn that fails never commits."""

    store: SessionStore
    pins: Pins = field(default_factory=Pins)
    forms: MessageForms = field(default_factory=MessageForms)
    splices: bool = True
    """False: every prompt is rendered whole, and nothing is remembered."""
    _short_contexts: ShortContexts = field(default_factory=ShortContexts)
    _closes: CloseCache = field(default_factory=BoundedCache)
    """How turns of a kind end, for short contexts: what is found with it is proved with them."""

    def conversation(
        self,
        session_id: str,
        messages: Sequence[Message],
        tools: Sequence[Message] | None,
        chat_template_kwargs: Mapping[str, object] | None,
    ) -> Conversation:
        """The conversation of one request. Nothing is digested where nothing is looked up."""
        kwargs = dict(chat_template_kwargs or {})
        digests = digest_grown(messages) if self.splices else NOT_DIGESTED
        rendering = digest_rendering(tools, kwargs) if self.splices else b""
        return Conversation(session_id, messages, tools, kwargs, digests, rendering)

    async def plan(self, conversation: Conversation, renderer: Renderer) -> PromptPlan:
        """The prompt from the stored turn that the conversation continues, or why there is none.

        Raises RequestError for messages that no template can read, UpstreamError when the engine renders and fails.
        """
        if not self.splices:
            return self.unspliced(conversation, SPLICING_OFF)
        found = self.store.find(conversation.session_id, conversation.digests, conversation.rendering)
        if isinstance(found, MissReason):
            status = HistoryStatus.NEW if found is MissReason.NEW_CONVERSATION else HistoryStatus.RERENDERED
            return PromptPlan(conversation, status, found.value)
        if found.shortfall is not None:
            return PromptPlan(conversation, HistoryStatus.RERENDERED, found.shortfall.value)
        return await self._spliced(conversation, found, renderer)

    @staticmethod
    def unspliced(conversation: Conversation, reason: str) -> PromptPlan:
        """The prompt is rendered whole, for a reason that is none of the history's."""
        is_new = all(message.get("role") != "assistant" for message in conversation.messages)
        return PromptPlan(conversation, HistoryStatus.NEW if is_new else HistoryStatus.RERENDERED, reason)

    async def _spliced(self, conversation: Conversation, match: Match, renderer: Renderer) -> PromptPlan:
        stop_id = match.stop_token_id
        stop_text = await renderer.decode([stop_id]) if stop_id is not None else None
        request = SpliceRequest(
            previous=conversation.messages[: match.messages - 1],
            assistant=conversation.messages[match.messages - 1],
            new_messages=conversation.messages[match.messages :],
            end=GenerationEnd(end_kind(match.finish, stop_id), stop_text),
            tokens=renderer.tokens,
            tools=conversation.tools,
            chat_template_kwargs=conversation.chat_template_kwargs,
            forms=self.forms,
            pins=self.pins,
        )
        fragment = await self._fragment(conversation, request, match, renderer)
        if isinstance(fragment, Refusal):
            return self._refused(conversation, fragment)
        return await self._with_fragment(conversation, match, fragment, renderer)

    async def _fragment(
        self, conversation: Conversation, request: SpliceRequest, match: Match, renderer: Renderer
    ) -> Fragment | Refusal:
        """The fragment from the end of the conversation where that is proved to be enough, else from all of it."""
        previous = short_previous(request.previous)
        if previous is None:
            return await self._splice_whole(request, match, renderer)
        key, length = turn_kind(conversation.rendering, request), len(request.previous)
        wanted = self._short_contexts.wanted(key, length)
        if wanted is Context.WHOLE:
            return await self._splice_whole(request, match, renderer)
        short = await self._splice(replace(request, previous=previous), renderer, closes=self._closes)
        if wanted is Context.SHORT and isinstance(short, Fragment):
            return short
        whole = await self._splice_whole(request, match, renderer)
        self._short_contexts.learn(key, length, equal=same_fragment(whole, short))
        return whole

    async def _splice_whole(
        self, request: SpliceRequest, match: Match, renderer: Renderer
    ) -> Fragment | Refusal:
        """With the whole rendering at hand, it can be said how it differs from the ids that are kept.

        Not with the engine's rendering: the prompt's text would be one more call with all its ids. Nor at the second
        turn behind a long prompt, where the text would cost more than all the rest: too little is in front of it.
        """
        cheap = match.prompt_length <= NOTED_PROMPT or short_previous(request.previous) is not None
        if renderer.renders_without_generation_prompt and cheap:
            prompt_text = await renderer.decode(match.token_ids.first(match.prompt_length))
            request = replace(request, prompt_text=prompt_text)
        return await self._splice(request, renderer)

    async def _splice(
        self, request: SpliceRequest, renderer: Renderer, closes: CloseCache | None = None
    ) -> Fragment | Refusal:
        return await renderer.run(
            splice_steps(
                request,
                renders_without_generation_prompt=renderer.renders_without_generation_prompt,
                close_cache=closes,
            ),
            (*request.previous, request.assistant, *request.new_messages),
            request.tools,
            request.chat_template_kwargs,
        )

    async def _with_fragment(
        self, conversation: Conversation, match: Match, fragment: Fragment, renderer: Renderer
    ) -> PromptPlan:
        size = len(match.token_ids.text)
        await give_way(size)
        behind = await renderer.compute(
            lambda encode: fragment_token_ids(
                fragment, encode, left_id=match.stop_token_id, tokens=renderer.tokens
            )
        )
        if isinstance(behind, Refusal):
            return self._refused(conversation, behind)
        await give_way(size)
        kept = len(match.token_ids)
        if fragment.left is None:
            sampled = match.token_ids.last(min(CLOSE_LENGTH, kept - match.prompt_length))
            behind = await _without_sampled_close(behind, sampled, renderer)
        token_ids = TokenIds.chained((match.token_ids, TokenIds(behind.ids)))
        return PromptPlan(
            conversation,
            HistoryStatus.SPLICED,
            "ambiguous" if match.ambiguous else "matched",
            token_ids=token_ids,
            parent=match.handle,
            kept_tokens=kept,
            flags=fragment.flags | behind.flags,
            note=fragment.history,
        )

    def _refused(self, conversation: Conversation, refusal: Refusal) -> PromptPlan:
        LOGGER.info("a turn starts a new segment: %s (%s)", refusal.reason.value, refusal.detail)
        return PromptPlan(conversation, HistoryStatus.RERENDERED, refusal.reason.value)

    async def render_whole(self, conversation: Conversation, renderer: Renderer) -> TokenIds:
        """Ids of the whole conversation, rendered anew. Raises RequestError when the template rejects it."""
        request = RenderRequest(
            tuple(conversation.messages),
            tuple(conversation.tools) if conversation.tools else None,
            conversation.chat_template_kwargs,
            add_generation_prompt=True,
        )
        token_ids = await renderer.render_ids(request, self.forms)
        if isinstance(token_ids, Refusal):
            raise RequestError(
                f"the chat template rejects this conversation: {token_ids.detail}", param="messages"
            )
        return token_ids

    def refuse_broken(self, plan: PromptPlan, *, error: bool) -> None:
        """Raise RequestError for a turn that would start a new segment, when the configuration wants that."""
        if error and self.splices and plan.status is HistoryStatus.RERENDERED:
            detail = (
                "the session tools or chat-template inputs changed; start a new session"
                if plan.reason == MissReason.RENDERING_CHANGED
                else "the conversation does not continue what was sampled for it"
            )
            raise RequestError(
                f"{detail} (reason {plan.reason}). on_broken_prefix: resync answers with a new segment instead",
                param="messages",
                code="broken_prefix",
            )

    def commit(self, plan: PromptPlan, turn: FinishedTurn) -> CommitOutcome:
        """Remember a finished turn behind the one it continues."""
        conversation = plan.conversation
        return self.store.commit(
            conversation.session_id,
            plan.parent,
            Turn(
                conversation=conversation.digests.followed_by(turn.reply),
                rendering=conversation.rendering,
                prompt_token_ids=turn.prompt_token_ids,
                generation_token_ids=turn.generation_token_ids,
                finish=turn.finish,
                stop_token_id=turn.stop_token_id,
            ),
        )


async def _without_sampled_close(
    behind: FragmentIds, sampled_last: Sequence[int], renderer: Renderer
) -> FragmentIds:
    """The ids behind a turn without a stop token, without what of the turn's close was sampled all the same.

    An end token is sampled without ending the turn under `ignore_eos`, and when it is the last token of the budget:
    before 0.5.23 SGLang calls that "length". Only a stretch with the end token in it counts as the close; text that
    begins like the close is text.
    """
    ids, tail = list(behind.ids[:CLOSE_LENGTH]), list(sampled_last)
    overlaps = [length for length in range(1, len(ids) + 1) if tail[-length:] == ids[:length]]
    special = await renderer.special(ids[: max(overlaps, default=1)])
    flags = behind.flags - {SpliceFlag.SOFT_BOUNDARY} if special.intersection(ids[:1]) else behind.flags
    closes = [length for length in overlaps if sum(one in special for one in ids[:length]) == 1]
    return FragmentIds(behind.ids[max(closes, default=0) :], flags)
