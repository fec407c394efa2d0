"""Finds out by rendering what a chat template needs and what can be spliced on it: the start-up self-test.

Like the splice itself it yields the renderings it needs, so it runs with a local renderer and with the
engine's own. A probe conversation is rendered in several forms; made-up words in it show what came through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sglang_model.message_forms import (
    ArgumentForm,
    EmptyContent,
    Message,
    MessageForms,
    TextParts,
    check_template_kwargs,
    normalise_messages,
)
from sglang_model.sentinel import new_word
from sglang_model.splice import RenderSteps, run, splice_steps
from sglang_model.splice_types import (
    EndKind,
    GenerationEnd,
    Pins,
    Refusal,
    Rendered,
    RenderFailed,
    RenderRequest,
    SpecialTokens,
    SpliceFlag,
    SpliceRequest,
)
from sglang_model.template_profile import (
    ReasoningSupport,
    RoleSupport,
    SpliceCheck,
    TemplateProfile,
    TurnEnd,
    TurnKind,
)
from sglang_model.turn_end import TurnView, end_marker

_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string", "description": "Anything."}},
            "required": ["q"],
        },
    },
}
_SYSTEM: Message = {"role": "system", "content": "You are being probed."}
_USER: Message = {"role": "user", "content": "Say something."}
_CALL_IDS = ("probecal1", "probecal2")
"""Nine characters, because Mistral's templates take no other length."""


@dataclass(frozen=True)
class _Probe:
    """What is being probed and the beginning of the probe conversation that the template accepts."""

    tokens: SpecialTokens
    kwargs: Mapping[str, object]
    pins: Pins
    without_generation_prompt: bool
    head: tuple[Message, ...] = (_SYSTEM, _USER)
    needs_tools: bool = False
    forms: MessageForms = field(default_factory=MessageForms)

    @property
    def tools(self) -> tuple[Message, ...] | None:
        """Tools for conversations that call none."""
        return (_TOOL,) if self.needs_tools else None

    def render(
        self,
        messages: tuple[Message, ...],
        *,
        tools: bool = False,
        forms: MessageForms | None = None,
        prompt: bool = True,
    ) -> RenderSteps[str | None]:
        """The conversation's text, or None if the template rejects it."""
        shown = normalise_messages((*self.head, *messages), forms or self.forms)
        used = (_TOOL,) if tools else self.tools
        result = yield RenderRequest(shown, used, self.kwargs, prompt)
        return result.text if isinstance(result, Rendered) else None


def probe_template(
    render: Callable[[RenderRequest], Rendered | RenderFailed],
    tokens: SpecialTokens,
    chat_template_kwargs: Mapping[str, object] | None = None,
    *,
    pins: Pins | None = None,
    renders_without_generation_prompt: bool = True,
) -> TemplateProfile:
    """The profile of the template behind a renderer that answers at once."""
    steps = probe_steps(
        tokens,
        chat_template_kwargs,
        pins=pins,
        renders_without_generation_prompt=renders_without_generation_prompt,
    )
    return run(steps, render)


def probe_steps(
    tokens: SpecialTokens,
    chat_template_kwargs: Mapping[str, object] | None = None,
    *,
    pins: Pins | None = None,
    renders_without_generation_prompt: bool = True,
) -> RenderSteps[TemplateProfile]:
    """Probe a template: forms of messages, roles, turn ends, and the continuations an agent needs.

    About forty renderings of a few lines. With `pins` the continuations are tried as they will be spliced,
    so a configured turn suffix that does not fit shows as a refusal. A template that rejects even a single
    user message gives a profile in which nothing is spliceable.
    """
    kwargs = check_template_kwargs(chat_template_kwargs or {})
    probe = yield from _with_head(_Probe(tokens, kwargs, pins or Pins(), renders_without_generation_prompt))
    probe = yield from _with_text_parts(probe)
    probe, tool_calls = yield from _with_call_forms(probe)
    roles = yield from _roles(probe, tool_calls)
    reasoning = yield from _reasoning(probe, tool_calls)
    ends: dict[TurnKind, TurnEnd | None] = {}
    ends[TurnKind.TEXT] = yield from _turn_end(probe, calls=False)
    ends[TurnKind.CALL] = (yield from _turn_end(probe, calls=True)) if tool_calls else None
    markers = dict.fromkeys([*(end.marker for end in ends.values() if end), *tokens.stops])
    spliceable: dict[str, SpliceCheck] = {}
    for shape, turn in _shapes(probe).items():
        spliceable[shape] = yield from _splice_check(probe, turn, tuple(markers))
    return TemplateProfile(
        forms=probe.forms,
        system_prompt=_SYSTEM in probe.head,
        needs_tools=probe.needs_tools,
        tool_calls=tool_calls,
        roles=roles,
        reasoning=reasoning,
        turn_ends=ends,
        markers=tuple(markers),
        spliceable=spliceable,
    )


def _with_head(probe: _Probe) -> RenderSteps[_Probe]:
    """The richest beginning of a conversation that the template accepts; the plainest if it accepts none."""
    candidates = [
        replace(probe, head=head, needs_tools=needs) for needs in (False, True) for head in _heads()
    ]
    for candidate in candidates:
        if (yield from candidate.render(())) is not None:
            return candidate
    return candidates[1]


def _heads() -> tuple[tuple[Message, ...], ...]:
    return (_SYSTEM, _USER), (_USER,)


def _with_text_parts(probe: _Probe) -> RenderSteps[_Probe]:
    """Lists where the template walks over them cleanly, or reads nothing else; joined strings otherwise."""
    first, second = new_word(), new_word()
    parts: Message = {"role": "user", "content": [{"type": "text", "text": w} for w in (first, second)]}
    bare = replace(probe, head=probe.head[:-1])
    string = yield from bare.render(({"role": "user", "content": first},))
    kept = replace(probe.forms, text_parts=TextParts.KEPT)
    listed = yield from bare.render((parts,), forms=kept)
    if listed is None or listed.count(first) != 1 or listed.count(second) != 1:
        return probe
    # A template that prints the list's Python form shows its keys and quotes between the texts.
    if "text" in listed.partition(first)[2].partition(second)[0]:
        return probe
    if string is not None and first not in string:
        return replace(probe, forms=replace(probe.forms, text_parts=TextParts.WRAPPED))
    return replace(probe, forms=kept)


def _with_call_forms(probe: _Probe) -> RenderSteps[tuple[_Probe, bool]]:
    """The first form of a turn of calls that comes through, arguments as JSON rather than as a Python
    mapping.
    """
    word = new_word()
    fallback: MessageForms | None = None
    for empty in EmptyContent:
        for arguments in ArgumentForm:
            forms = replace(probe.forms, arguments=arguments, empty_content=empty)
            text = yield from probe.render((_called(word), _result("ok")), tools=True, forms=forms)
            if text is None or text.count(word) != 1:
                continue
            if f"'q': '{word}'" not in text:
                return replace(probe, forms=forms), True
            fallback = fallback or forms
    return replace(probe, forms=fallback or probe.forms), fallback is not None


def _roles(probe: _Probe, tool_calls: bool) -> RenderSteps[dict[str, RoleSupport]]:
    """What becomes of each role behind an assistant turn; a tool result stands behind a call."""
    support: dict[str, RoleSupport] = {}
    for role in ("user", "tool", "system", "developer"):
        said, word = new_word(), new_word()
        turn: Message = {"role": "assistant", "content": said}
        following: tuple[Message, ...] = ({"role": role, "content": word},)
        if role == "tool":
            turn = _called(said) if tool_calls else turn
            following = (_result(word),)
        elif role != "user":
            following = (*following, _USER)
        text = yield from probe.render((turn, *following), tools=role == "tool")
        support[role] = _support(text, said, word)
    return support


def _support(text: str | None, said: str, word: str) -> RoleSupport:
    if text is None:
        return RoleSupport.REJECTED
    if word not in text:
        return RoleSupport.DROPPED
    return RoleSupport.SHOWN if text.rfind(word) > text.find(said) else RoleSupport.HOISTED


def _reasoning(probe: _Probe, tool_calls: bool) -> RenderSteps[ReasoningSupport]:
    word = new_word()
    turn: Message = {"role": "assistant", "content": "Well.", "reasoning_content": word}
    text = yield from probe.render((turn, _USER))
    if text is not None and word in text:
        return ReasoningSupport.KEPT
    if tool_calls:
        text = yield from probe.render(
            ({**_called("x"), "reasoning_content": word}, _result("ok")), tools=True
        )
    return ReasoningSupport.STRIPPED if text is not None and word in text else ReasoningSupport.IGNORED


def _turn_end(probe: _Probe, *, calls: bool) -> RenderSteps[TurnEnd | None]:
    """The turn's end, with a made-up word as the new text, so that its place is known from the start."""
    said, word = new_word(), new_word()
    turn: Message = _called(said) if calls else {"role": "assistant", "content": said}
    following = _result(word) if calls else {"role": "user", "content": word}
    full = yield from probe.render((turn, following), tools=calls)
    if full is None or full.count(said) != 1 or word not in full.partition(said)[2]:
        return None
    tail = full.partition(said)[2]
    last = None
    if probe.without_generation_prompt:
        text = yield from probe.render((turn,), tools=calls, prompt=False)
        last = text.partition(said)[2] if text is not None and text.count(said) == 1 else None
    place = tail.find(word)
    view = TurnView(tail, last, calls, probe.tokens, bound=place, closing=tail[place + len(word) :])
    marker = end_marker(view)
    if marker is None:
        return None
    following_tokens = [span.start for span in probe.tokens.spans(tail, place) if span.start >= marker.end]
    end = min([*following_tokens, place])
    if tail[marker.end : end].strip():
        end = max(view.owned, marker.end)
    return TurnEnd(marker.text, tail[marker.start : end])


@dataclass(frozen=True)
class _Turn:
    assistant: Message
    new_messages: tuple[Message, ...]
    tools: tuple[Message, ...] | None


def _shapes(probe: _Probe) -> dict[str, _Turn]:
    return {
        "text > user": _Turn({"role": "assistant", "content": "Something."}, (_USER,), probe.tools),
        "call > tool": _Turn(_called("a"), (_result("ok"),), (_TOOL,)),
        "2 calls > 2 tools": _Turn(_called("a", "b"), (_result("ok"), _result("fine", 1)), (_TOOL,)),
    }


def _splice_check(probe: _Probe, turn: _Turn, stops: tuple[str, ...]) -> RenderSteps[SpliceCheck]:
    """The best splice over the stop tokens that may end the turn: a clean one, a flagged one, else the
    refusal.
    """
    best: SpliceCheck | None = None
    for stop in stops or (None,):
        kind = EndKind.LENGTH if stop is None else EndKind.STOP_TOKEN
        request = SpliceRequest(
            previous=probe.head,
            assistant=turn.assistant,
            new_messages=turn.new_messages,
            end=GenerationEnd(kind, stop),
            tokens=probe.tokens,
            tools=turn.tools,
            chat_template_kwargs=probe.kwargs,
            forms=probe.forms,
            pins=probe.pins,
        )
        result = yield from splice_steps(
            request, renders_without_generation_prompt=probe.without_generation_prompt
        )
        if isinstance(result, Refusal):
            best = best or SpliceCheck(stop, refusal=result.reason, detail=result.detail)
            continue
        check = SpliceCheck(stop, result.flags)
        if not result.flags & {SpliceFlag.FOREIGN_STOP, SpliceFlag.STOP_SUBSTITUTED}:
            return check
        best = check if best is None or best.refusal is not None else best
    return best or SpliceCheck(None)


def _called(*values: str) -> Message:
    calls = [
        {"id": _CALL_IDS[i], "type": "function", "function": {"name": "probe", "arguments": {"q": value}}}
        for i, value in enumerate(values)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _result(text: str, number: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": _CALL_IDS[number], "name": "probe", "content": text}
