"""A fragment found from the end of a conversation is the one that the whole conversation gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_model.short_context import (
    PROOFS,
    Context,
    ShortContexts,
    same_fragment,
    short_previous,
    turn_kind,
)
from sglang_model.splice import run, splice_steps
from sglang_model.splice_types import (
    EndKind,
    Fragment,
    GenerationEnd,
    Refusal,
    SpecialTokens,
    SpliceRequest,
)
from sglang_model.template_probe import probe_template
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.template_facts import TemplateFacts, facts_of
from sglang_model.testing.template_families import FAMILIES

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ROUNDS = 20


def real_templates() -> list[object]:
    folder = Path(os.environ.get("SGLANG_GYM_TEST_DATA", "no-such-folder")) / "chat_templates"
    found = [
        (path.stem, path.read_text(), facts_of(path.stem, path.read_text()))
        for path in sorted(folder.glob("*.jinja"))
    ]
    return [pytest.param(text, facts, id=name) for name, text, facts in found if facts is not None]


def own_templates() -> list[object]:
    return [pytest.param(family.template, family.facts, id=family.name) for family in FAMILIES]


def rounds(count: int) -> list[dict[str, object]]:
    """An agent's conversation: a question, then calls and results, a second question halfway."""
    messages: list[dict[str, object]] = [{"role": "user", "content": "Look around, please."}]
    for number in range(count):
        call = {
            "id": f"call{number:05d}",
            "type": "function",
            "function": {"name": "look", "arguments": f'{{"n": {number}}}'},
        }
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append(
            {"role": "tool", "tool_call_id": call["id"], "name": "look", "content": f"result {number}"}
        )
        if number == count // 2:
            messages += [
                {"role": "assistant", "content": "Half is done."},
                {"role": "user", "content": "Go on."},
            ]
    return messages


def requests(facts: TemplateFacts, renderer: JinjaRenderer) -> list[SpliceRequest]:
    """Every follow-up turn of the conversation."""
    tokens = SpecialTokens(facts.specials, facts.stops)
    forms = probe_template(renderer, tokens).forms
    messages, found = rounds(ROUNDS), []
    for position, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        new = []
        for following in messages[position + 1 :]:
            if following["role"] == "assistant":
                break
            new.append(following)
        stop = facts.call_end if "tool_calls" in message else facts.text_stop
        end = GenerationEnd(EndKind.STOP_TOKEN, stop)
        found.append(SpliceRequest(messages[:position], message, new, end, tokens, tools=[TOOL], forms=forms))
    return found


@pytest.mark.parametrize(("template", "facts"), [*own_templates(), *real_templates()])
def test_a_trusted_short_context_gives_the_fragment_of_the_whole_one(template, facts):
    assert trusted_turns(template, facts) >= 0


def test_most_turns_of_an_agent_on_chatml_are_trusted():
    assert trusted_turns(FAMILIES[0].template, FAMILIES[0].facts) >= ROUNDS // 2


def trusted_turns(template: str, facts: TemplateFacts) -> int:
    """How many turns were found from a short context, each of them compared with the whole one."""
    renderer, contexts, trusted = JinjaRenderer(template, facts.variables), ShortContexts(), 0
    for request in requests(facts, renderer):
        previous = short_previous(request.previous)
        if previous is None:
            continue
        whole = run(splice_steps(request), renderer)
        short = run(splice_steps(_with(request, previous)), renderer)
        key = turn_kind(b"inputs", request)
        wanted = contexts.wanted(key, len(request.previous))
        if wanted is Context.SHORT and isinstance(short, Fragment):
            assert same_fragment(whole, short)
            trusted += 1
        elif wanted is Context.BOTH:
            contexts.learn(key, len(request.previous), equal=same_fragment(whole, short))
    return trusted


def _with(request: SpliceRequest, previous: tuple[object, ...]) -> SpliceRequest:
    return SpliceRequest(
        previous,
        request.assistant,
        request.new_messages,
        request.end,
        request.tokens,
        tools=request.tools,
        forms=request.forms,
    )


NUMBERED = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {{ messages | length + 1 }}\n{% endif %}"
)


def test_a_template_that_numbers_its_messages_is_never_trusted():
    facts = FAMILIES[0].facts
    renderer, contexts = JinjaRenderer(NUMBERED, facts.variables), ShortContexts()
    seen = set()
    for request in requests(facts, renderer):
        previous = short_previous(request.previous)
        if previous is None:
            continue
        key = turn_kind(b"inputs", request)
        seen.add(contexts.wanted(key, len(request.previous)))
        whole = run(splice_steps(request), renderer)
        short = run(splice_steps(_with(request, previous)), renderer)
        if isinstance(whole, Refusal):
            continue
        assert not same_fragment(whole, short)
        contexts.learn(key, len(request.previous), equal=False)
    assert seen == {Context.BOTH, Context.WHOLE}


def test_trust_needs_proofs_and_is_proved_again_when_the_history_has_doubled():
    contexts, key = ShortContexts(), ("kind",)
    for history in range(3, 3 + PROOFS):
        assert contexts.wanted(key, history) is Context.BOTH
        contexts.learn(key, history, equal=True)
    proved_to = 2 + PROOFS
    assert contexts.wanted(key, 2 * proved_to - 1) is Context.SHORT
    assert contexts.wanted(key, 2 * proved_to) is Context.BOTH
    contexts.learn(key, 2 * proved_to, equal=True)
    assert contexts.wanted(key, 2 * proved_to) is Context.SHORT


def test_one_difference_ends_the_trust_of_its_kind_only():
    contexts = ShortContexts()
    for key in (("a",), ("b",)):
        for history in (5, 6):
            contexts.learn(key, history, equal=True)
    contexts.learn(("a",), 7, equal=False)
    assert contexts.wanted(("a",), 8) is Context.WHOLE
    assert contexts.wanted(("b",), 8) is Context.SHORT


@pytest.mark.parametrize(
    ("roles", "kept"),
    [
        ([], None),
        (["user"], None),
        (["system", "user"], None),
        (["assistant", "tool"], None),
        (["user", "assistant", "tool"], [0]),
        (["system", "developer", "user", "assistant", "user", "assistant", "tool"], [0, 1, 4]),
    ],
)
def test_the_short_context_is_the_system_messages_and_the_last_user_message(roles, kept):
    messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles)]
    expected = None if kept is None else tuple(messages[number] for number in kept)
    assert short_previous(messages) == expected
