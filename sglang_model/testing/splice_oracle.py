"""Judges the splice by a method of its own: words in the real rendering, and turn ends known by hand.

The real conversation, nothing replaced, is rendered; the reply's last word is located in it, behind it the
turn's end as `template_facts` knows it; everything behind that is what a fragment has to be. Nothing here
is shared with the algorithm but the forms of messages that both renderings need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from sglang_model.message_forms import (
    Message,
    MessageForms,
    TextParts,
    forms_ladder,
    message_text,
    normalise_messages,
)
from sglang_model.splice import render_request, run, splice_steps
from sglang_model.splice_types import (
    EndKind,
    Fragment,
    GenerationEnd,
    Refusal,
    RefusalReason,
    Rendered,
    RenderFailed,
    RenderRequest,
    SpecialTokens,
    SpliceFlag,
    SpliceRequest,
)
from sglang_model.testing.splice_shapes import REPLY_WORD, Shape
from sglang_model.testing.template_facts import TemplateFacts

Render = Callable[[RenderRequest], Rendered | RenderFailed]


class Verdict(Enum):
    """What a cell of the table, one shape on one template, is."""

    RIGHT = "right"
    """The fragment is the wanted text."""
    REFUSED = "refused"
    """No fragment, and a reason."""
    WRONG = "wrong"
    """A fragment that is not the wanted text, or that lost a message. There must be none."""
    REJECTED = "rejected"
    """The template raises on the conversation itself; a server would answer 400."""
    NOT_RENDERED = "not rendered"
    """The template does not write the turn's calls, so a rendering cannot say what follows them; flagged or
    refused.
    """
    LOST = "lost"
    """The template loses a new message, and the splice says so."""
    FOREIGN = "foreign"
    """The sampled stop token is not the template's, so there is no right answer; flagged or refused."""

    UNJUDGED = "unjudged"
    """The template cuts the reply's text so that its last word is gone: its place cannot be told this way."""

    @property
    def scored(self) -> bool:
        return self in (Verdict.RIGHT, Verdict.REFUSED, Verdict.WRONG)


@dataclass(frozen=True)
class Cell:
    """One shape on one template: the verdict, and what the splice gave."""

    verdict: Verdict
    shape: Shape
    result: Fragment | Refusal
    wanted: str | None = None


@dataclass(frozen=True)
class Expected:
    """What a splice of one conversation has to give, by the oracle; `text` counts for RIGHT alone."""

    verdict: Verdict
    text: str = ""


def judge(
    shape: Shape, facts: TemplateFacts, render: Render, *, renders_without_generation_prompt: bool = True
) -> Cell:
    """Splice one shape and compare with the real rendering."""
    request = request_for(shape, facts)
    steps = splice_steps(request, renders_without_generation_prompt=renders_without_generation_prompt)
    result = run(steps, render)
    expected = expected_fragment(request, facts, REPLY_WORD, render)
    return Cell(verdict(expected, result), shape, result, expected.text)


def request_for(shape: Shape, facts: TemplateFacts) -> SpliceRequest:
    """The splice of a shape, as a server asks for it that knows the engine's stops and the tokenizer."""
    usual = facts.call_end if shape.calls else facts.text_stop
    stop = {"stop": usual, "foreign": facts.foreign}.get(shape.end)
    return SpliceRequest(
        previous=shape.previous,
        assistant=shape.assistant,
        new_messages=shape.new_messages,
        end=GenerationEnd(EndKind.STOP_TOKEN, stop) if stop else GenerationEnd(EndKind.LENGTH),
        tokens=SpecialTokens(facts.specials, facts.stops),
        tools=shape.tools,
        chat_template_kwargs=shape.kwargs,
    )


def expected_fragment(
    request: SpliceRequest, facts: TemplateFacts, reply_word: str, render: Render
) -> Expected:
    """What the real rendering puts behind the reply, whose last value ends in `reply_word`.

    The place of each new text is where a word in its stead stands in a second rendering.
    """
    text = _real_rendering(request, reply_word, render)
    if text is None:
        return Expected(Verdict.REJECTED)
    if text.count(reply_word) != 1:
        return Expected(Verdict.NOT_RENDERED if request.assistant.get("tool_calls") else Verdict.UNJUDGED)
    tail = text.split(reply_word)[1]
    words = [f"{reply_word[::-1]}{chr(ord('a') + i)}" for i in range(len(request.new_messages))]
    messages = [{**m, "content": word} for m, word in zip(request.new_messages, words, strict=True)]
    twin = _real_rendering(replace(request, new_messages=messages), reply_word, render) or ""
    twin_tail = twin.partition(reply_word)[2]
    if any(_text(m) and word not in twin_tail for m, word in zip(request.new_messages, words, strict=True)):
        return Expected(Verdict.LOST)
    if request.end.stop_token is None:
        return Expected(Verdict.RIGHT, tail)
    calls = bool(request.assistant.get("tool_calls"))
    end, stop = (facts.call_end, facts.call_end) if calls else (facts.text_end, facts.text_stop)
    place = tail.find(end)
    first = min((at for word in words if (at := twin_tail.find(word)) >= 0), default=-1)
    # Up to the first new text both renderings agree; an end behind that place is not this turn's.
    if request.end.stop_token != stop or not 0 <= place < first or tail[:place] != twin_tail[:place]:
        return Expected(Verdict.FOREIGN)
    return Expected(Verdict.RIGHT, tail[place + len(end) :])


def _real_rendering(request: SpliceRequest, reply_word: str, render: Render) -> str | None:
    """The conversation in the first form that shows the reply; None if the template raises on all."""
    messages = (*request.previous, request.assistant, *request.new_messages)
    parts_only = MessageForms(text_parts=TextParts.WRAPPED)
    texts = []
    for forms in (*forms_ladder(messages, MessageForms()), parts_only):
        shown = normalise_messages(messages, forms)
        result = render(render_request(request, shown, add_generation_prompt=True))
        if isinstance(result, Rendered):
            texts.append(result.text)
    return next((text for text in texts if reply_word in text), texts[0] if texts else None)


def _text(message: Message) -> str:
    return message_text(normalise_messages((message,), MessageForms())[0]).strip()


def verdict(expected: Expected, result: Fragment | Refusal) -> Verdict:
    """Compare what the splice gave with what the oracle says."""
    if isinstance(result, Refusal):
        lost = result.reason in (RefusalReason.NEW_MESSAGE_DROPPED, RefusalReason.NEW_MESSAGE_HOISTED)
        right = expected.verdict is Verdict.LOST and not lost
        return Verdict.REFUSED if expected.verdict is Verdict.RIGHT or right else expected.verdict
    if expected.verdict is Verdict.UNJUDGED:
        return Verdict.UNJUDGED
    if expected.verdict is Verdict.RIGHT:
        return Verdict.RIGHT if result.text == expected.text else Verdict.WRONG
    said = {
        Verdict.NOT_RENDERED: {SpliceFlag.TOOL_CALLS_NOT_RENDERED, SpliceFlag.TOOL_CALLS_PARTLY_RENDERED},
        Verdict.FOREIGN: {
            SpliceFlag.FOREIGN_STOP,
            SpliceFlag.STOP_SUBSTITUTED,
            SpliceFlag.END_SKIPPED,
            SpliceFlag.ORDINARY_STOP_TOKEN,
        },
    }.get(expected.verdict, set())
    return expected.verdict if said & result.flags else Verdict.WRONG
