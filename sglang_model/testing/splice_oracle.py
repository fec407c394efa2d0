"""Judges the splice by a method of its own: words in the real rendering, and turn ends known by hand.

The real conversation, nothing replaced, is rendered; the reply's last word is located in it, behind it the
turn's end as `template_facts` knows it; everything behind that is what a fragment has to be. Nothing here
is shared with the algorithm but the forms of messages that both renderings need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from sglang_model.message_forms import MessageForms, TextParts, forms_ladder, normalise_messages
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
from sglang_model.testing.splice_shapes import NEW_WORDS, REPLY_WORD, Shape
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
class _Expected:
    verdict: Verdict
    text: str = ""


def judge(
    shape: Shape, facts: TemplateFacts, render: Render, *, renders_without_generation_prompt: bool = True
) -> Cell:
    """Splice one shape and compare with the real rendering."""
    request = request_for(shape, facts)
    steps = splice_steps(request, renders_without_generation_prompt=renders_without_generation_prompt)
    result = run(steps, render)
    expected = _expected(request, shape, facts, render)
    return Cell(_verdict(expected, result), shape, result, expected.text)


def request_for(shape: Shape, facts: TemplateFacts) -> SpliceRequest:
    """The splice of a shape, as a server would ask for it that knows the engine's stop tokens and the
    tokenizer.
    """
    return SpliceRequest(
        previous=shape.previous,
        assistant=shape.assistant,
        new_messages=shape.new_messages,
        end=_end(shape, facts),
        tokens=SpecialTokens(facts.specials, facts.stops),
        tools=shape.tools,
        chat_template_kwargs=shape.kwargs,
    )


def _end(shape: Shape, facts: TemplateFacts) -> GenerationEnd:
    if shape.end == "length":
        return GenerationEnd(EndKind.LENGTH)
    if shape.end == "foreign":
        return GenerationEnd(EndKind.STOP_TOKEN, facts.foreign)
    return GenerationEnd(EndKind.STOP_TOKEN, facts.call_end if shape.calls else facts.text_stop)


def _expected(request: SpliceRequest, shape: Shape, facts: TemplateFacts, render: Render) -> _Expected:
    text = _real_rendering(request, render)
    if text is None:
        return _Expected(Verdict.REJECTED)
    if text.count(REPLY_WORD) != 1:
        return _Expected(Verdict.NOT_RENDERED)
    tail = text.split(REPLY_WORD)[1]
    words = [word for word in NEW_WORDS if any(word in str(m.get("content")) for m in shape.new_messages)]
    if any(word not in tail for word in words):
        return _Expected(Verdict.LOST)
    if shape.end == "length":
        return _Expected(Verdict.RIGHT, tail)
    end = facts.call_end if shape.calls else facts.text_end
    place = tail.find(end)
    if shape.end == "foreign" or not 0 <= place < _first_text(request, render):
        return _Expected(Verdict.FOREIGN)
    return _Expected(Verdict.RIGHT, tail[place + len(end) :])


def _real_rendering(request: SpliceRequest, render: Render) -> str | None:
    """The whole conversation in the first form of its messages that shows the reply; None if the template
    raises.
    """
    messages = (*request.previous, request.assistant, *request.new_messages)
    texts = []
    parts_only = MessageForms(text_parts=TextParts.WRAPPED)
    for forms in (*forms_ladder(messages, MessageForms()), parts_only):
        shown = normalise_messages(messages, forms)
        result = render(render_request(request, shown, add_generation_prompt=True))
        if isinstance(result, Rendered):
            texts.append(result.text)
    return next((text for text in texts if REPLY_WORD in text), texts[0] if texts else None)


def _first_text(request: SpliceRequest, render: Render) -> int:
    """Where the first new text starts: where a word in its stead does."""
    first = {**request.new_messages[0], "content": NEW_WORDS[0]}
    twin = replace(request, new_messages=(first, *request.new_messages[1:]))
    return (_real_rendering(twin, render) or "").split(REPLY_WORD)[-1].find(NEW_WORDS[0])


def _verdict(expected: _Expected, result: Fragment | Refusal) -> Verdict:
    if isinstance(result, Refusal):
        lost = result.reason in (RefusalReason.NEW_MESSAGE_DROPPED, RefusalReason.NEW_MESSAGE_HOISTED)
        right = expected.verdict is Verdict.LOST and not lost
        return Verdict.REFUSED if expected.verdict is Verdict.RIGHT or right else expected.verdict
    if expected.verdict is Verdict.RIGHT:
        return Verdict.RIGHT if result.text == expected.text else Verdict.WRONG
    said = {
        Verdict.NOT_RENDERED: {SpliceFlag.TOOL_CALLS_NOT_RENDERED, SpliceFlag.TOOL_CALLS_PARTLY_RENDERED},
        Verdict.FOREIGN: {SpliceFlag.FOREIGN_STOP, SpliceFlag.STOP_SUBSTITUTED},
    }.get(expected.verdict, set())
    return expected.verdict if said & result.flags else Verdict.WRONG
