"""The words of the history splice: what goes in, what comes out, and every reason and flag in between.

Plain frozen data. Knows no renderer, no tokenizer and no HTTP; `splice` computes with it, sessions and
transports carry it. The values of the enumerations end up in response headers and metrics, so they never
change meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property

from sglang_model.message_forms import Message, MessageForms


class EndKind(Enum):
    """How the generation of a turn ended."""

    STOP_TOKEN = "stop_token"  # noqa: S105
    """The last sampled id is a stop token of the engine, whatever finish_reason says."""
    LENGTH = "length"
    """The token budget or the context window ran out; also a turn of no tokens at all."""
    STOP_STRING = "stop_string"
    """The engine saw a stop string; the ids that spell it stay."""
    ABORT = "abort"
    """The engine gave up. Such a turn is normally never stored; where it is, it counts as cut off."""


@dataclass(frozen=True)
class GenerationEnd:
    """How the stored ids end. Has a stop token's text exactly when the last id is a stop token."""

    kind: EndKind
    stop_token: str | None = None

    def __post_init__(self) -> None:
        if (self.kind is EndKind.STOP_TOKEN) != bool(self.stop_token):
            raise ValueError(
                f"a generation end of kind {self.kind.value} and a stop token's text do not agree"
            )


@dataclass(frozen=True)
class Span:
    """A special token's place in a text: `text` stands at [start, end)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SpecialTokens:
    """The texts that a tokenizer reads as one token each.

    `texts` are all added tokens (special or not, such as `<tool_call>`); it may be empty when the renderer
    has no tokenizer to ask. Blank ones (Gemma adds runs of newlines) mark nothing and are passed over.
    `stops` are the tokens at which the engine ends a turn of its own accord (its EOS ids), without the ones
    that a single request added. `sampled` is a stop token that is in neither.
    """

    texts: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    sampled: str = ""

    @property
    def _all(self) -> tuple[str, ...]:
        return (*self.texts, *self.stops, self.sampled)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # Longest first: the tokenizer's own rule where one token's text begins another's.
        texts = sorted({text for text in self._all if text.strip()}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    @cached_property
    def longest(self) -> int:
        return max(map(len, self._all))

    def spans(self, text: str, end: int | None = None) -> tuple[Span, ...]:
        """Special tokens that lie wholly in `text[:end]`, in order."""
        limit = len(text) if end is None else end
        matches = self._pattern.finditer(text, 0, min(len(text), limit + self.longest))
        return tuple(Span(*m.span(), m.group()) for m in matches if m.end() <= limit)

    def occur_in(self, text: str) -> bool:
        """Whether the text of any special token stands in `text`."""
        return self._pattern.search(text) is not None

    def open(self, text: str) -> bool:
        """Whether `text` begins with a special token."""
        return self._pattern.match(text) is not None

    def ends_turns(self, text: str) -> bool:
        """Whether `text` may count as the mark of a turn's end, not as ordinary text that happened to stop
        it.
        """
        return bool(text.strip()) and (text in self.texts or text in self.stops)

    def with_token(self, text: str) -> SpecialTokens:
        """The same tokens, knowing that `text` is a token too."""
        return self if text in self.texts else replace(self, sampled=text)


@dataclass(frozen=True)
class Pins:
    """What the configuration fixes about a turn's end. None: derive it from the template."""

    turn_suffix: str | None = None
    """`sglang_turn_suffix`: the text from the end marker to the next turn's header."""
    eos_markers: tuple[str, ...] | None = None
    """`sglang_eos_markers`: the stop tokens that end a turn and may stand in for each other."""


@dataclass(frozen=True)
class SpliceRequest:
    """A conversation that goes on behind a stored turn.

    `previous` are the messages the stored turn answered, `assistant` is the reply as the client sent it
    back, `new_messages` is what follows it. `returned`, when given, is the reply as the model server had
    sent it: a reply that says something else is refused. `prompt_text`, when given, is the text of the
    stored prompt ids and only feeds the history note.
    """

    previous: Sequence[Message]
    assistant: Message
    new_messages: Sequence[Message]
    end: GenerationEnd
    tokens: SpecialTokens
    tools: Sequence[Message] | None = None
    chat_template_kwargs: Mapping[str, object] = field(default_factory=dict)
    forms: MessageForms = field(default_factory=MessageForms)
    pins: Pins = field(default_factory=Pins)
    returned: Message | None = None
    prompt_text: str | None = None


@dataclass(frozen=True)
class RenderRequest:
    """One rendering that the algorithm asks for. The messages are already in the form the template needs."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...] | None
    chat_template_kwargs: Mapping[str, object]
    add_generation_prompt: bool


@dataclass(frozen=True)
class Rendered:
    """The text the chat template made, special tokens included."""

    text: str


@dataclass(frozen=True)
class FullRendering:
    """A whole conversation as text, and the forms of its messages that the template could read."""

    text: str
    forms: MessageForms


@dataclass(frozen=True)
class RenderFailed:
    """The template refused the conversation. Not for failures of transport: those are raised through the
    driver.
    """

    message: str


class SpliceFlag(Enum):
    """What is particular about a fragment. A flagged fragment still keeps every sampled id."""

    STOP_SUBSTITUTED = "stop_substituted"
    """Another of the engine's stop tokens was sampled; it stays in the ids in place of the template's end
    marker.
    """
    FOREIGN_STOP = "foreign_stop"
    """The sampled stop token has no place in the template at this turn's end; it stays as an extra token."""
    END_SKIPPED = "end_skipped"
    """The sampled stop token stands behind another end of the turn, which was never sampled."""
    CLOSE_DIFFERS_IN_HISTORY = "close_differs_in_history"
    """The template closes this turn differently once other messages follow it."""
    ORDINARY_STOP_TOKEN = "ordinary_stop_token"  # noqa: S105
    """Generation stopped at a token of plain text, so the turn's close was never sampled."""
    UNTERMINATED_GENERATION = "unterminated_generation"
    """No stop token was sampled: the turn's close is part of the new prompt."""
    TOOL_CALLS_NOT_RENDERED = "tool_calls_not_rendered"
    """The template does not write this turn's tool calls; the sampled ids keep them."""
    TOOL_CALLS_PARTLY_RENDERED = "tool_calls_partly_rendered"
    """The template writes only the first of this turn's tool calls; the sampled ids keep them all."""
    REPLY_REPEATED = "reply_repeated"
    """The template writes the reply's text behind its calls, so the prompt shows it a second time."""
    FORMS_CHANGED = "forms_changed"
    """The template refused the configured form of messages; another form of the same messages was rendered.
    """
    ARGUMENTS_WRAPPED = "arguments_wrapped"
    """Earlier tool-call arguments are not a JSON object and the template needs one: they were put into one.
    """
    LAST_RENDER_REJECTED = "last_render_rejected"
    """The template would not render the conversation up to the reply, so the turn's end was found without
    it.
    """
    NEW_MESSAGE_ALTERED = "new_message_altered"
    """The template shows a new message with its text changed by more than trimming or JSON escapes."""
    SOFT_BOUNDARY = "soft_boundary"
    """The fragment starts with ordinary text right behind sampled text: a joint encoding could merge the
    two.
    """
    LOSSY_TOKENIZATION = "lossy_tokenization"
    """Decoding the fragment's ids does not give the fragment's text (Unicode normalisation, byte fallback).
    """


class RefusalReason(Enum):
    """Why no fragment could be proved. The caller starts a new segment or raises; it never guesses."""

    NO_NEW_MESSAGES = "no_new_messages"
    """Nothing follows the reply."""
    ASSISTANT_IN_NEW_MESSAGES = "assistant_in_new_messages"
    """Another assistant turn follows the stored one, and its sampled ids are not known."""
    ASSISTANT_EDITED = "assistant_edited"
    """The client sent the reply back with other visible text or other tool calls."""
    TEMPLATE_REJECTED = "template_rejected"
    """The chat template raises on this conversation in every form of its messages."""
    ASSISTANT_NOT_RENDERED = "assistant_not_rendered"
    """The reply's text does not appear exactly once in the rendering, so its place is not known."""
    TURN_END_NOT_FOUND = "turn_end_not_found"
    """It cannot be proved where the sampled ids end in the rendering."""
    PINNED_SUFFIX_MISMATCH = "pinned_suffix_mismatch"
    """The configured turn suffix does not stand behind this turn in the rendering."""
    NEW_MESSAGE_DROPPED = "new_message_dropped"
    """The template leaves out a new message."""
    NEW_MESSAGE_HOISTED = "new_message_hoisted"
    """The template puts a new message in front of the reply, into ids that are already fixed."""
    NEW_MESSAGE_UNPROVEN = "new_message_unproven"
    """It cannot be proved that every new message is in the fragment."""
    LEFT_TOKEN_NOT_ATOMIC = "left_token_not_atomic"  # noqa: S105
    """The stop token's text does not encode to the sampled id in front of the fragment."""


class HistoryNote(Enum):
    """How a rendering of the whole history would differ in front of the reply from the ids that are kept."""

    PRESERVED = "preserved"
    """It starts with the stored prompt."""
    THINKING_STRIPPED = "thinking_stripped"
    """It starts with the stored prompt, but for reasoning that the template removes from earlier turns."""
    REWRITTEN = "rewritten"
    """It differs otherwise: moved system text or tools, dates, another generation prompt."""
    UNKNOWN = "unknown"
    """The stored prompt's text was not given."""


@dataclass(frozen=True)
class Fragment:
    """The text that a rendering of the whole conversation puts behind the sampled ids.

    The rest of the turn's close, the new messages and the generation prompt in one string. `left` is the
    sampled stop token's text, to encode the fragment behind; None when no stop token was sampled.
    """

    text: str
    left: str | None
    flags: frozenset[SpliceFlag]
    history: HistoryNote
    forms: MessageForms


@dataclass(frozen=True)
class Refusal:
    """No fragment can be proved. `detail` is safe to log: it never quotes the conversation."""

    reason: RefusalReason
    detail: str


@dataclass(frozen=True)
class FragmentIds:
    """The ids to put behind the sampled ones, and what encoding added to the fragment's flags."""

    ids: tuple[int, ...]
    flags: frozenset[SpliceFlag]
