"""The renderings a splice is read off: the conversation with a word in place of the reply's last value.

Steps 1 to 3 and the renderings of steps 5 and 6 of `splice`. Decides in which form the messages come through,
and where in the reply the word can stand; what the texts mean is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace

from sglang_model.message_forms import (
    BadArguments,
    Message,
    MessageForms,
    TextParts,
    forms_ladder,
    normalise_messages,
)
from sglang_model.new_messages import MarkedTail
from sglang_model.render_steps import RenderSteps, template_message
from sglang_model.sentinel import Placement, marked, new_word, placements, shielded, starred
from sglang_model.splice_types import (
    Refusal,
    RefusalReason,
    RenderFailed,
    RenderRequest,
    SpecialTokens,
    SpliceFlag,
    SpliceRequest,
)

CloseCache = MutableMapping[tuple[object, ...], str]
"""What templates write behind a last reply, per template: key everything in it by one template's text."""


@dataclass(frozen=True)
class Reply:
    """Step 2's result: a rendering in which the word stands once, and the messages it was made of."""

    word: str
    text: str
    previous: tuple[Message, ...]
    assistant: Message
    new_messages: tuple[Message, ...]
    placement: Placement
    forms: MessageForms
    flags: frozenset[SpliceFlag]

    @property
    def start(self) -> int:
        """Where the text behind the word begins."""
        return self.text.index(self.word) + len(self.word)


def render_request(
    request: SpliceRequest, messages: tuple[Message, ...], *, add_generation_prompt: bool
) -> RenderRequest:
    """A rendering of other messages under the same tools and template arguments."""
    return RenderRequest(
        messages=messages,
        tools=tuple(request.tools) if request.tools else None,
        chat_template_kwargs=request.chat_template_kwargs,
        add_generation_prompt=add_generation_prompt,
    )


def render_reply(request: SpliceRequest, tokens: SpecialTokens) -> RenderSteps[Reply | Refusal]:
    """Steps 1 and 2: the ladder of places for the word and of forms for the messages."""
    conversation = (*request.previous, request.assistant, *request.new_messages)
    ladder = forms_ladder(conversation, request.forms)
    errors: list[str] = []
    lost: list[int] = []
    rungs = deque((placement, forms) for placement in placements(request.assistant) for forms in ladder)
    while rungs:
        placement, forms = rungs.popleft()
        found = yield from _render_starred(request, tokens, conversation, placement, forms)
        if isinstance(found, Reply | Refusal):
            return found
        if isinstance(found, str):
            errors.append(found)
        else:
            lost.append(found)
        readable = request.forms.text_parts is TextParts.WRAPPED
        if found == 0 and placement.call is None and forms == request.forms and not readable:
            # A string leaves no trace: the template may read lists of parts only.
            rungs.append((placement, replace(forms, text_parts=TextParts.WRAPPED)))
    if not lost:
        return Refusal(RefusalReason.TEMPLATE_REJECTED, template_message(errors[0], conversation))
    return Refusal(
        RefusalReason.ASSISTANT_NOT_RENDERED, f"the template shows the reply's last value {lost[0]} times"
    )


def _render_starred(
    request: SpliceRequest,
    tokens: SpecialTokens,
    conversation: tuple[Message, ...],
    placement: Placement,
    forms: MessageForms,
) -> RenderSteps[Reply | Refusal | str | int]:
    """One rung: the reply if the word stands once, else the template's error or the number of words."""
    count = len(request.previous)
    messages = normalise_messages(conversation, forms)
    previous, assistant, new = messages[:count], messages[count], messages[count + 1 :]
    word, shield = new_word(), new_word()
    star = starred(shielded(assistant, shield, tokens.stops), word, placement, forms)
    result = yield render_request(request, (*previous, star, *new), add_generation_prompt=True)
    if isinstance(result, RenderFailed):
        return result.message
    if (seen := result.text.count(word)) != 1:
        return seen
    if shield in result.text.partition(word)[2]:
        return Refusal(
            RefusalReason.TURN_END_NOT_FOUND,
            "the template writes a text that spells a stop token behind the calls",
        )
    flags = _reply_flags(request, assistant, placement, forms)
    return Reply(word, result.text, previous, star, new, placement, forms, flags)


def _reply_flags(
    request: SpliceRequest, assistant: Message, placement: Placement, forms: MessageForms
) -> frozenset[SpliceFlag]:
    flags = set()
    calls = assistant.get("tool_calls")
    if isinstance(calls, list):
        if placement.call is None:
            flags.add(SpliceFlag.TOOL_CALLS_NOT_RENDERED)
        elif placement.call < len(calls) - 1:
            flags.add(SpliceFlag.TOOL_CALLS_PARTLY_RENDERED)
    if forms is request.forms:
        return frozenset(flags)
    if forms.bad_arguments is not request.forms.bad_arguments:
        flags.add(SpliceFlag.ARGUMENTS_WRAPPED)
    if replace(forms, bad_arguments=BadArguments.KEPT) != replace(
        request.forms, bad_arguments=BadArguments.KEPT
    ):
        flags.add(SpliceFlag.FORMS_CHANGED)
    return frozenset(flags)


def render_last(request: SpliceRequest, reply: Reply, cache: CloseCache | None) -> RenderSteps[str | None]:
    """Step 3: what the template writes behind the word when the conversation ends there; None if it will
    not.

    It depends on the template, its arguments, on whether there are tools, and on the kind of turn; not on
    the history.
    """
    calls = reply.assistant.get("tool_calls")
    kind = (len(calls) if isinstance(calls, list) else 0, reply.placement, reply.forms, bool(request.tools))
    key = (*kind, _digest(request.chat_template_kwargs)) if cache is not None else ()
    if cache is not None and key in cache:
        return cache[key]
    result = yield render_request(request, (*reply.previous, reply.assistant), add_generation_prompt=False)
    if isinstance(result, RenderFailed) or result.text.count(reply.word) != 1:
        return None
    last = result.text.split(reply.word)[1]
    if cache is not None:
        cache[key] = last
    return last


def _digest(kwargs: Mapping[str, object]) -> bytes:
    """A digest of template arguments, whatever the order of their names."""
    if not kwargs:
        return b""
    written = json.dumps(dict(kwargs), sort_keys=True, default=repr)
    return hashlib.blake2b(written.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def render_marked(request: SpliceRequest, reply: Reply) -> RenderSteps[MarkedTail | Refusal]:
    """Steps 5 and 8: the same rendering with a word in front of each new text, all new messages shown in
    it.
    """
    words = tuple(new_word() for _ in reply.new_messages)
    messages = tuple(marked(message, word) for message, word in zip(reply.new_messages, words, strict=True))
    result = yield render_request(
        request, (*reply.previous, reply.assistant, *messages), add_generation_prompt=True
    )
    if isinstance(result, RenderFailed) or result.text.count(reply.word) != 1:
        return Refusal(
            RefusalReason.NEW_MESSAGE_UNPROVEN,
            "the template does not render the new messages with a word in front",
        )
    head, tail = result.text.split(reply.word)
    shown = MarkedTail(head, tail, words)
    return shown.lost(reply.new_messages) or shown


def render_generation_prompt(request: SpliceRequest, reply: Reply) -> RenderSteps[str]:
    """What the template adds for the next turn; "" if that cannot be told."""
    messages = (*reply.previous, reply.assistant, *reply.new_messages)
    result = yield render_request(request, messages, add_generation_prompt=False)
    if isinstance(result, RenderFailed) or not reply.text.startswith(result.text):
        return ""
    return reply.text[len(result.text) :]
