"""The history algorithm: what follows a stored turn's ids when the conversation goes on.

The engine saw prompt ids P and sampled ids G. The client sends the conversation back with the reply and new
messages behind it. The next prompt is P + G + the ids of what the chat template puts behind the reply. That
text is found by rendering the real conversation with a made-up word in place of the reply's last value, and
cutting what stands behind the word where the sampled ids end. Nothing about a template is configured; what
cannot be proved is refused with a reason. The steps, as the docstrings here and in `turn_end`,
`new_messages` and `fragment_ids` number them:

 0. guards: there are new messages, none is an assistant's, the reply says what was returned;
 1. the reply with its last rendered value replaced by a word;
 2. F: the conversation rendered with a generation prompt, in the first form of its messages that shows the
    word once;
 3. L: the same without new messages and generation prompt;
 4. what the reply owns: the common beginning of F and L behind the word;
 5. the template's end marker in it, and where the first new text starts;
 6. where the sampled ids end: (a) behind the stop token, (b) at the marker that it replaces, (c) in a
    template without an end, (d) in front of the close if the turn was cut off;
 7. the fragment: everything behind that, in one string;
 8. proof that each new message is in it;
 9. its ids, encoded behind the stop token (`fragment_ids`);
10. a note on how the template would have rewritten the history in front.

The algorithm asks for renderings by yielding, so the same code runs with a local renderer (`run`) and with
one that asks the engine (`run_async`). Knows no tokenizer, no HTTP and no session. The context of a
rendering is the whole conversation; a shorter one could be given to the functions of `reply_rendering`
alike, since only the text behind the word is used (and the head, for the note).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sglang_model.conversation_digest import digest_conversation
from sglang_model.history_note import history_note
from sglang_model.message_forms import (
    MessageForms,
    check_template_kwargs,
    forms_ladder,
    message_text,
    normalise_messages,
)
from sglang_model.new_messages import plainly_present, texts_of
from sglang_model.render_steps import RenderSteps, run, run_async, template_message
from sglang_model.reply_rendering import (
    CloseCache,
    Reply,
    render_generation_prompt,
    render_last,
    render_marked,
    render_reply,
    render_request,
)
from sglang_model.splice_types import (
    Fragment,
    FullRendering,
    Refusal,
    RefusalReason,
    Rendered,
    RenderRequest,
    SpliceFlag,
    SpliceRequest,
)
from sglang_model.turn_end import (
    Cut,
    TurnView,
    cut_at_opener,
    find_cut,
    pinned_cut,
    pinned_tokens,
    plain_cut,
    stop_token,
)

__all__ = [
    "CloseCache",
    "RenderSteps",
    "full_render_steps",
    "render_request",
    "run",
    "run_async",
    "splice_steps",
]


_OWN_TEXT = 8
"""Characters from which on a reply's text is not found behind it by chance."""


def splice_steps(
    request: SpliceRequest,
    *,
    renders_without_generation_prompt: bool = True,
    close_cache: CloseCache | None = None,
) -> RenderSteps[Fragment | Refusal]:
    """Find the fragment behind a stored turn, or the reason why none can be proved.

    `renders_without_generation_prompt` is False for a renderer that always ends with a generation prompt
    (SGLang 0.5.13's /tokenize turns a last assistant message into a user message): then the turn's end is
    bounded by the sampled stop token and the place of the first new message alone. `close_cache` saves step
    3 for turns of a kind that was seen before. Raises RequestError for messages of no known form.
    """
    refusal = _guard(request)
    if refusal is not None:
        return refusal
    tokens = pinned_tokens(request.tokens, request.pins)
    stop, ordinary = stop_token(request.end, request.tokens)
    flags = frozenset({SpliceFlag.ORDINARY_STOP_TOKEN}) if ordinary else frozenset()
    tokens = tokens if stop is None else tokens.with_token(stop)
    reply = yield from render_reply(request, tokens)
    if isinstance(reply, Refusal):
        return reply
    last = None
    if renders_without_generation_prompt:
        last = yield from render_last(request, reply, close_cache)
        if last is None:
            flags |= {SpliceFlag.LAST_RENDER_REJECTED}
    calls = "tool_calls" in reply.assistant
    view = TurnView(reply.text[reply.start :], last, calls, tokens, sampled_end=ordinary)
    found = yield from _prove(request, reply, view, stop, renders_without_generation_prompt)
    if isinstance(found, Refusal):
        return found
    text = view.tail[found.position :]
    if calls and _repeats(text, reply):
        flags |= {SpliceFlag.REPLY_REPEATED}
    return Fragment(
        text=text,
        left=stop,
        flags=flags | reply.flags | found.flags,
        history=history_note(reply.text[: reply.start - len(reply.word)], request.prompt_text),
        forms=reply.forms,
    )


def full_render_steps(request: RenderRequest, forms: MessageForms) -> RenderSteps[FullRendering | Refusal]:
    """Render a whole conversation with the same forms of messages, and the same ladder of them, as a splice
    does.

    The messages of `request` are as the client sent them. Raises RequestError for messages of no known
    form.
    """
    check_template_kwargs(request.chat_template_kwargs)
    errors: list[str] = []
    for rung in forms_ladder(request.messages, forms):
        result = yield replace(request, messages=normalise_messages(request.messages, rung))
        if isinstance(result, Rendered):
            return FullRendering(result.text, rung)
        errors.append(result.message)
    return Refusal(RefusalReason.TEMPLATE_REJECTED, template_message(errors[0], request.messages))


def _guard(request: SpliceRequest) -> Refusal | None:
    """Step 0."""
    check_template_kwargs(request.chat_template_kwargs)
    if not request.new_messages:
        return Refusal(RefusalReason.NO_NEW_MESSAGES, "no message follows the reply")
    for i, message in enumerate(request.new_messages):
        if isinstance(message, Mapping) and message.get("role") == "assistant":
            return Refusal(
                RefusalReason.ASSISTANT_IN_NEW_MESSAGES,
                f"new message {i} is an assistant turn without stored ids",
            )
    if request.returned is not None:
        sent, returned = (
            digest_conversation((m,)).semantic[-1] for m in (request.assistant, request.returned)
        )
        if sent != returned:
            return Refusal(
                RefusalReason.ASSISTANT_EDITED,
                "the reply was sent back with other visible text or tool calls",
            )
    return None


def _repeats(text: str, reply: Reply) -> bool:
    """Whether the fragment shows the reply's own text, oftener than the new messages quote it."""
    own = message_text(reply.assistant).strip()
    quoted = sum(message_text(message).count(own) for message in reply.new_messages)
    return len(own) >= _OWN_TEXT and text.count(own) > quoted


def _prove(
    request: SpliceRequest, reply: Reply, view: TurnView, stop: str | None, without_generation_prompt: bool
) -> RenderSteps[Cut | Refusal]:
    """Steps 4 to 8: a cut, and the proof that the new messages stand behind it."""
    suffix = request.pins.turn_suffix
    cut = plain_cut(view, stop) if suffix is None else pinned_cut(view, stop, suffix)
    if isinstance(cut, Refusal):
        return cut
    if cut is not None and view.last is not None:
        known = texts_of(reply.previous, request.tools)
        if plainly_present(reply.text, reply.start + cut.position, reply.new_messages, known, view.tokens):
            return cut
    shown = yield from render_marked(request, reply)
    if isinstance(shown, Refusal):
        return shown
    bound = shown.bound(view.tail)
    view = replace(view, bound=bound, closing=shown.closing(reply.new_messages))
    if cut is not None and cut.position > bound:
        # A new text begins like the last position's close; what the reply owns ends in front of it.
        cut = None
    if cut is None and suffix is not None:
        cut = pinned_cut(view, stop, suffix)
    if cut is None:
        cut = plain_cut(view, stop) or find_cut(view, stop)
    if isinstance(cut, Refusal) and view.calls and without_generation_prompt:
        prompt = yield from render_generation_prompt(request, reply)
        cut = cut_at_opener(view, stop, prompt) or cut
    if isinstance(cut, Refusal):
        return cut
    proof = shown.prove(view.tail, reply.new_messages)
    return proof if isinstance(proof, Refusal) else Cut(cut.position, cut.flags | proof)
