"""Where a turn ends in a rendering: how much of the text behind the reply's last value was sampled.

Pure text. `tail` is what the template writes behind the last value of the reply when messages follow it,
`last` what it writes there when nothing follows: their common beginning is what the reply itself owns. The
numbers in the docstrings are the steps of `splice`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sglang_model.splice_types import (
    GenerationEnd,
    Pins,
    Refusal,
    RefusalReason,
    Span,
    SpecialTokens,
    SpliceFlag,
)

_NO_FLAGS: frozenset[SpliceFlag] = frozenset()
_CUT_OFF = frozenset({SpliceFlag.UNTERMINATED_GENERATION})


@dataclass(frozen=True)
class Cut:
    """The sampled ids end at `tail[position]`; what stands behind it is the fragment."""

    position: int
    flags: frozenset[SpliceFlag] = _NO_FLAGS


@dataclass(frozen=True)
class TurnView:
    """One turn's end as two renderings show it.

    `last` is None where the template, or the renderer, cannot render a conversation that ends with the
    reply. `bound` is where the first new message's own text starts at the latest, None until that is
    proved: in front of it stand only the reply's close and the next turn's header, so no text from outside
    can be taken for either. `closing` is what stands behind the last new text, None where that cannot be
    told. `sampled_end` is the text of an ordinary token that generation stopped at.
    """

    tail: str
    last: str | None
    calls: bool
    tokens: SpecialTokens
    bound: int | None = None
    closing: str | None = None
    sampled_end: str = ""

    @cached_property
    def owned(self) -> int:
        """Step 4: length of the text with which the reply closes itself, cutting no special token."""
        if self.last is None:
            return 0
        length = common_prefix_length(self.tail[: self.bound], self.last)
        for text in (self.tail, self.last):
            for span in self.tokens.spans(text, length + self.tokens.longest):
                if span.start < length < span.end:
                    length = span.start
        return length

    @property
    def owns_all(self) -> bool:
        """Whether history shows all that the last position has: closers without an end."""
        return self.last is not None and self.owned == len(self.last)

    def is_stop(self, text: str) -> bool:
        return text in self.tokens.stops


def common_prefix_length(a: str, b: str) -> int:
    """Number of characters that both texts begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def plain_cut(view: TurnView, stop: str | None) -> Cut | None:
    """The cut that needs no knowledge of the new messages, or None.

    Step 6a where the reply owns the sampled stop token (no text from outside is in `last`), and step 6d for
    text: nothing of the close was sampled.
    """
    if stop is None:
        return None if view.calls else _cut_off_text(view)
    flags = _NO_FLAGS
    for span in view.tokens.spans(view.tail, view.owned):
        if span.text == stop:
            return Cut(span.end, flags)
        if view.is_stop(span.text):
            flags = frozenset({SpliceFlag.END_SKIPPED})
    return None


def find_cut(view: TurnView, stop: str | None) -> Cut | Refusal:
    """Step 6 with the new messages' place known: a cut that can be proved, or why there is none."""
    if view.bound is None:
        return Refusal(
            RefusalReason.NEW_MESSAGE_UNPROVEN,
            "the place of the first new message behind the reply is not known",
        )
    marker = end_marker(view)
    if stop is None:
        return _cut_unterminated(view, marker)
    cut = _cut_behind_stop(view, stop) or _cut_at_marker(view, stop, marker) or _cut_without_end(view, stop)
    if cut is not None:
        return cut
    return Refusal(
        RefusalReason.TURN_END_NOT_FOUND,
        f"the sampled stop token {stop!r} is not at the turn's end in the rendering; no other end is known",
    )


def end_marker(view: TurnView) -> Span | None:
    """Step 5: the special token with which the template itself ends the turn.

    The first stop token the reply owns. Where it owns none: the first special token behind what it owns, if
    the last position has the same text in front of a stop token of its own (gpt-oss writes `<|return|>`
    there), or writes no end at all. A lone special token in front of the new text is the next turn's
    header, never an end (GLM).
    """
    ahead = view.tokens.spans(view.tail, view.bound)
    for span in ahead:
        if span.end <= view.owned and view.is_stop(span.text):
            return None if len(ahead) == 1 and _heads_a_prompt(view, span) else span
    behind = [span for span in ahead if span.start >= view.owned]
    if len(behind) < 2:
        return None
    if view.last is None:
        return next((span for span in ahead[:-1] if view.is_stop(span.text)), None) or _shared_end(
            view, ahead
        )
    first, rest = behind[0], view.last[view.owned :]
    lead = view.tail[view.owned : first.start].strip()
    pair = next(iter(view.tokens.spans(rest)), None)
    if pair is not None:
        return first if view.is_stop(pair.text) and rest[: pair.start].strip() == lead else None
    return first if not rest.strip() and not lead and view.is_stop(first.text) else None


def _shared_end(view: TurnView, ahead: tuple[Span, ...]) -> Span | None:
    """The first of two adjacent special tokens that follow both the reply's text and the last new text
    directly.

    With nothing known of the last position, this tells an end that is no stop token (gpt-oss's `<|end|>`,
    in front of `<|start|>`) from a header, whose first two tokens stand apart or name the role.
    """
    first, second = ahead[:2]
    adjacent = first.start == 0 and second.start == first.end
    if view.calls or view.closing is None or not adjacent:
        return None
    return first if view.closing.startswith(first.text + second.text) else None


def _heads_a_prompt(view: TurnView, span: Span) -> bool:
    """Whether text follows the token in the last position too: a template that always writes a generation
    prompt.
    """
    rest = (view.last or "")[span.end :]
    following = next(iter(view.tokens.spans(rest)), None)
    return bool(rest[: following.start if following else None].strip())


def _cut_behind_stop(view: TurnView, stop: str) -> Cut | None:
    """Step 6a: the first occurrence of the stop token, if it closes this turn or is the next one's first
    token.
    """
    between: list[Span] = []
    for span in view.tokens.spans(view.tail, view.bound):
        if span.text == stop:
            return _judged_stop(view, span, between)
        if view.is_stop(span.text):
            return None
        if span.end > view.owned:
            between.append(span)
    return None


def _judged_stop(view: TurnView, span: Span, between: list[Span]) -> Cut | None:
    if view.last is None:
        # What the reply owns is unknown. Plain text in front of the token may be the next turn's header.
        covered = view.calls or not _plain_text(view.tail[: span.start], between).strip()
        return Cut(span.end) if covered else None
    gap = view.tail[view.owned : span.start]
    if not between and not gap.strip():
        return Cut(span.end)
    # The close reads otherwise in the last position (Apriel shows call ids only in history), with the same
    # tokens.
    there = [other.text for other in view.tokens.spans(view.last[view.owned :])]
    if not between or [*(other.text for other in between), span.text] == there[: len(between) + 1]:
        return Cut(span.end, frozenset({SpliceFlag.CLOSE_DIFFERS_IN_HISTORY}))
    return None


def _plain_text(text: str, specials: list[Span]) -> str:
    pieces, at = [], 0
    for span in specials:
        pieces.append(text[at : span.start])
        at = span.end
    return "".join([*pieces, text[at:]])


def _cut_at_marker(view: TurnView, stop: str, marker: Span | None) -> Cut | None:
    """Step 6b: another of the engine's stop tokens takes the marker's place; a token that ends no turn does
    not.
    """
    if marker is None:
        return None
    if view.is_stop(stop):
        return Cut(marker.end, frozenset({SpliceFlag.STOP_SUBSTITUTED}))
    return Cut(marker.start if view.calls else 0, frozenset({SpliceFlag.FOREIGN_STOP}))


def _cut_without_end(view: TurnView, stop: str) -> Cut | None:
    """Step 6c: the template writes no end here, so the sampled stop token stays as an extra token.

    Not where the token stands in front of the new text after all, in a place that could not be judged, and
    not where the special tokens are unknown: any of the text there may be the turn's end.
    """
    if not view.tokens.texts or any(s.text == stop for s in view.tokens.spans(view.tail, view.bound)):
        return None
    flags = frozenset({SpliceFlag.FOREIGN_STOP})
    if view.calls:
        return Cut(view.owned, flags) if view.owns_all else None
    if view.last is None:
        return Cut(0, flags) if len(view.tokens.spans(view.tail, view.bound)) <= 1 else None
    ahead = view.tokens.spans(view.tail, view.bound)
    header = len(ahead) == 1 and ahead[0].end <= view.owned and _heads_a_prompt(view, ahead[0])
    unended = {span.text for span in view.tokens.spans(view.last)} <= {stop}
    return Cut(0, flags) if header or unended else None


def _cut_off_text(view: TurnView) -> Cut:
    """Step 6d for text: the whole close is missing, but for what an ordinary stop token spells of its
    beginning.
    """
    return Cut(len(view.sampled_end) if view.tail.startswith(view.sampled_end) else 0, _CUT_OFF)


def _cut_unterminated(view: TurnView, marker: Span | None) -> Cut | Refusal:
    """Step 6d: the close is appended; of a tool call the part in front of the end marker was sampled."""
    if not view.calls:
        return _cut_off_text(view)
    if marker is not None:
        return Cut(marker.start, _CUT_OFF)
    if view.owns_all:
        return Cut(view.owned, _CUT_OFF)
    return Refusal(
        RefusalReason.TURN_END_NOT_FOUND, "a tool call was cut off, and the template shows no end of its turn"
    )


def cut_at_opener(view: TurnView, stop: str | None, generation_prompt: str) -> Cut | None:
    """Step 6c for a template whose calls run into the next turn without an end, and which always writes
    more.

    The special token that opens the generation prompt opens every turn; where it is the first one behind a
    call, the call ends in front of it (Command R+).
    """
    opener = next(iter(view.tokens.spans(generation_prompt)), None)
    ahead = view.tokens.spans(view.tail, view.bound)
    if opener is None or generation_prompt[: opener.start].strip() or not ahead:
        return None
    if ahead[0].text != opener.text or view.is_stop(opener.text):
        return None
    return Cut(ahead[0].start, _CUT_OFF if stop is None else frozenset({SpliceFlag.FOREIGN_STOP}))


def pinned_cut(view: TurnView, stop: str | None, suffix: str) -> Cut | Refusal | None:
    """Step 6 with a configured turn suffix: it must stand behind the turn, in front of all new text.

    None when that cannot be told before the new messages' place is known, and for a turn of calls that the
    template ends otherwise (gpt-oss): the suffix is the end of a turn of text.
    """
    at = view.tail.find(suffix)
    limit = max(view.owned, view.bound or 0)
    if at < 0 or (view.bound is not None and at + len(suffix) > limit):
        if view.calls:
            return None
        return Refusal(
            RefusalReason.PINNED_SUFFIX_MISMATCH,
            f"sglang_turn_suffix {suffix!r} does not stand behind this turn in the chat template's rendering",
        )
    if at + len(suffix) > limit:
        return None
    marker = next(iter(view.tokens.spans(suffix)), Span(0, len(suffix), suffix))
    start = at + marker.start
    if stop is None:
        return Cut(start, _CUT_OFF) if view.calls else _cut_off_text(view)
    if view.tail.startswith(stop, start):
        return Cut(start + len(stop))
    return _cut_at_marker(view, stop, Span(start, at + marker.end, marker.text))


def stop_token(end: GenerationEnd, tokens: SpecialTokens) -> tuple[str | None, str]:
    """The sampled stop token if it is one that can stand for a turn's end, else None and its ordinary text.

    An id that is plain text (a newline in `stop_token_ids`) could be found anywhere, so it counts as
    sampled text.
    """
    if end.stop_token is None:
        return None, ""
    return (end.stop_token, "") if tokens.ends_turns(end.stop_token) else (None, end.stop_token)


def pinned_tokens(tokens: SpecialTokens, pins: Pins) -> SpecialTokens:
    """The tokens with the configured end markers in place of the engine's stop tokens."""
    if pins.eos_markers is None:
        return tokens
    return SpecialTokens(tokens.texts, pins.eos_markers)
