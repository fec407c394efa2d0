"""The promise as an equation: the next prompt begins with the ids that were seen and sampled.

Random conversations on every family (parallel calls, empty results, Unicode, texts that spell special tokens,
reasoning, cut-off turns, other stop tokens, edits, retries, branches), sampled ids that no tokenizer would
make of the same text, a real tokenizer. What the ids say is judged by the oracle, which shares nothing with
the algorithm.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from sglang_model.fragment_ids import fragment_token_ids
from sglang_model.message_forms import Message
from sglang_model.splice import full_render_steps, run, splice_steps
from sglang_model.splice_types import (
    EndKind,
    Fragment,
    FragmentIds,
    FullRendering,
    GenerationEnd,
    Refusal,
    RefusalReason,
    RenderRequest,
    SpecialTokens,
    SpliceFlag,
    SpliceRequest,
)
from sglang_model.template_probe import probe_template
from sglang_model.template_profile import RoleSupport, TemplateProfile
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.splice_oracle import Verdict, expected_fragment, verdict
from sglang_model.testing.splice_shapes import TOOLS
from sglang_model.testing.template_facts import TemplateFacts, facts_of
from sglang_model.testing.template_families import FAMILIES, family
from tests.support.family_tokenizer import Codec, family_tokenizer

# A thorough run: SPLICE_EXAMPLES=5000 pytest tests/sglang_model/test_splice_properties.py
EXAMPLES = int(os.environ.get("SPLICE_EXAMPLES", "200"))
TEST_DATA = os.environ.get("SGLANG_GYM_TEST_DATA")
relaxed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

SPELLED = sorted({token for made in FAMILIES for token in made.facts.specials})
COMMON = [
    "",
    " ",
    "\n\n",
    "ok",
    "a",
    "5",
    "user",
    "assistant",
    "tool",
    "text",
    "Hello there.\n",
    '{"a": "}"}',
    "'b'",
]
texts = st.one_of(
    st.sampled_from(COMMON),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t"), max_size=24),
    st.lists(st.sampled_from(SPELLED) | st.sampled_from(COMMON), max_size=4).map("".join),
    st.just("A longer sentence about the weather in Oslo, which nothing else says."),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)


@dataclass(frozen=True)
class Bench:
    """One template with what is needed to run rollouts on it."""

    renderer: JinjaRenderer
    facts: TemplateFacts
    profile: TemplateProfile

    @property
    def tokens(self) -> SpecialTokens:
        return SpecialTokens(self.facts.specials, self.facts.stops)

    @property
    def calls(self) -> bool:
        return self.profile.tool_calls and self.profile.spliceable["call > tool"].refusal is None

    @property
    def most_calls(self) -> int:
        return 3 if self.profile.spliceable["2 calls > 2 tools"].refusal is None else 1


def bench(template: str, facts: TemplateFacts) -> Bench:
    renderer = JinjaRenderer(template, facts.variables)
    return Bench(renderer, facts, probe_template(renderer, SpecialTokens(facts.specials, facts.stops)))


@cache
def family_bench(name: str) -> tuple[Bench, Codec]:
    made = family(name)
    return bench(made.template, made.facts), Codec(family_tokenizer(made))


@st.composite
def replies(draw: st.DrawFn, on: Bench, word: str, *, tools: bool) -> Message:
    """An assistant turn whose last value ends in `word`."""
    reply: dict[str, object] = {"role": "assistant"}
    if draw(st.booleans()):
        reply["reasoning_content"] = draw(texts)
    if not (tools and on.calls and draw(st.booleans())):
        thought = draw(st.sampled_from(["", "<think>\nhm\n</think>\n\n"]))
        return {**reply, "content": f"{thought}{draw(texts)} {word}"}
    count = draw(st.integers(1, on.most_calls))
    calls = []
    for i in range(count):
        arguments = draw(st.dictionaries(st.sampled_from("abc"), values, max_size=2))
        if i == count - 1:
            arguments["z"] = f"{draw(texts)} {word}"
        function = {
            "name": draw(st.sampled_from(["get_weather", "get_time"])),
            "arguments": json.dumps(arguments),
        }
        calls.append({"id": f"call{word[-4:]}{i}", "type": "function", "function": function})
    return {**reply, "content": draw(st.sampled_from([None, ""])), "tool_calls": calls}


@st.composite
def followers(draw: st.DrawFn, on: Bench, reply: Message) -> tuple[Message, ...]:
    """What an agent sends behind a turn: its results or a user's message, sometimes more than is taken."""
    calls = reply.get("tool_calls")
    new: list[Message] = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": draw(texts)}
        for call in (calls if isinstance(calls, list) else [])
    ]
    if not new or draw(st.integers(0, 5)) == 0:
        new.append({"role": "user", "content": draw(texts)})
    others = [role for role in ("system", "developer") if on.profile.roles[role] is not RoleSupport.REJECTED]
    if others and draw(st.integers(0, 7)) == 0:
        new.append({"role": draw(st.sampled_from(others)), "content": draw(texts)})
    return tuple(new)


@st.composite
def uncanonical(draw: st.DrawFn, codec: Codec, text: str) -> list[int]:
    """Ids that spell a text, but not as the tokenizer would: the text is cut anywhere and encoded in
    pieces.
    """
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    bounds = [0, *cuts, len(text)]
    return [i for a, b in pairwise(bounds) for i in codec.encode(text[a:b])]


@st.composite
def written_otherwise(draw: st.DrawFn, reply: Message) -> Message:
    """The same turn as another client would send it back."""
    sent = dict(reply)
    if draw(st.booleans()):
        sent.pop("reasoning_content", None)
    calls = sent.get("tool_calls")
    if not isinstance(calls, list):
        sent["tool_calls"] = draw(st.sampled_from([[], None]))
        if draw(st.booleans()):
            sent["content"] = [{"type": "text", "text": sent["content"]}]
        return sent
    sent["content"] = draw(st.sampled_from([None, "", []]))
    shuffled = []
    for call in calls:
        arguments = dict(reversed(json.loads(call["function"]["arguments"]).items()))
        if call is calls[-1]:
            # The oracle looks for the word in the last value.
            arguments = json.loads(call["function"]["arguments"])
        form = draw(st.sampled_from([arguments, json.dumps(arguments, ensure_ascii=False, indent=1)]))
        shuffled.append({**call, "function": {**call["function"], "arguments": form}})
    return {**sent, "tool_calls": shuffled}


def edited(reply: Message) -> Message:
    calls = reply.get("tool_calls")
    if not isinstance(calls, list):
        # On both sides, because either may be reasoning (an unclosed `<think>`, a lone `</think>`).
        return {**reply, "content": f"edited {reply['content']} edited"}
    function = {**calls[-1]["function"], "arguments": '{"z": "edited"}'}
    return {**reply, "tool_calls": [*calls[:-1], {**calls[-1], "function": function}]}


def ends(facts: TemplateFacts, reply: Message) -> st.SearchStrategy[GenerationEnd]:
    usual = facts.call_end if reply.get("tool_calls") else facts.text_stop
    cut_off = (
        [] if reply.get("tool_calls") else [GenerationEnd(EndKind.LENGTH), GenerationEnd(EndKind.STOP_STRING)]
    )
    stopped = [GenerationEnd(EndKind.STOP_TOKEN, token) for token in (usual, usual, usual, *facts.stops)]
    return st.sampled_from([*stopped, *cut_off])


@relaxed
@given(name=st.sampled_from([made.name for made in FAMILIES]), data=st.data())
def test_every_next_prompt_begins_with_the_ids_that_were_seen_and_sampled(
    name: str, data: st.DataObject
) -> None:
    on, codec = family_bench(name)
    messages: tuple[Message, ...] = ({"role": "user", "content": data.draw(texts)},)
    if on.profile.system_prompt and data.draw(st.booleans()):
        messages = ({"role": "system", "content": data.draw(texts)}, *messages)
    tools = TOOLS if on.calls and data.draw(st.booleans()) else None
    local = data.draw(st.booleans(), label="local renderer")
    first = run(full_render_steps(RenderRequest(messages, tools, {}, True), on.profile.forms), on.renderer)
    assert isinstance(first, FullRendering)
    prompt_ids, seen = codec.encode(first.text), first.text
    for turn in range(data.draw(st.integers(1, 3), label="turns")):
        word = f"quorvexal{'abc'[turn]}qq{turn}"
        reply = data.draw(replies(on, word, tools=tools is not None), label="reply")
        new = data.draw(followers(on, reply), label="new messages")
        request = SpliceRequest(
            messages, reply, new, data.draw(ends(on.facts, reply)), on.tokens, tools, forms=on.profile.forms
        )
        request = replace(request, returned=reply, prompt_text=seen)
        sampled, sampled_text = data.draw(generations(on, codec, request, seen), label="sampled ids")
        spliced = _check_turn(on, codec, request, sampled, word, local=local)
        if spliced is None:
            return
        _check_relatives(on, codec, request, spliced[0], data, local=local)
        fragment, ids = spliced
        next_prompt = [*prompt_ids, *sampled, *ids]
        assert next_prompt[: len(prompt_ids) + len(sampled)] == [*prompt_ids, *sampled]
        _check_text(on, codec, request, fragment, seen + sampled_text, next_prompt, family(name).rstrip)
        messages, prompt_ids = (*messages, reply, *new), next_prompt
        seen = seen + sampled_text + fragment.text


@st.composite
def generations(
    draw: st.DrawFn, on: Bench, codec: Codec, request: SpliceRequest, seen: str
) -> tuple[list[int], str]:
    """What the model sampled: what the template would write for the reply, or else anything."""
    messages = (*request.previous, request.assistant, *request.new_messages)
    asked = RenderRequest(messages, request.tools and tuple(request.tools), {}, True)
    full = run(full_render_steps(asked, on.profile.forms), on.renderer)
    found = run(splice_steps(replace(request, returned=None)), on.renderer)
    text = draw(texts)
    if isinstance(full, FullRendering) and isinstance(found, Fragment) and full.text.startswith(seen):
        own = full.text[len(seen) :].removesuffix(found.text)
        text = own.removesuffix(found.left or "")
    ids = draw(uncanonical(codec, text))
    if request.end.stop_token is None:
        ids = ids[: draw(st.integers(0, len(ids)))]
        return ids, codec.decode(ids)
    return [*ids, codec.id_of(request.end.stop_token)], text + request.end.stop_token


def _check_turn(
    on: Bench, codec: Codec, request: SpliceRequest, sampled: list[int], word: str, *, local: bool
) -> tuple[Fragment, tuple[int, ...]] | None:
    """Judge the splice by the oracle; the fragment and its ids if there is one."""
    result = run(splice_steps(request, renders_without_generation_prompt=local), on.renderer)
    expected = expected_fragment(request, on.facts, word, on.renderer)
    event(f"{type(result).__name__}, {verdict(expected, result).value}")
    assert verdict(expected, result) is not Verdict.WRONG
    if isinstance(result, Refusal):
        unproven = result.reason is RefusalReason.NEW_MESSAGE_UNPROVEN
        assert expected.verdict is not Verdict.RIGHT or unproven, result
        return None
    left_id = sampled[-1] if result.left is not None else None
    encoded = fragment_token_ids(result, codec.encode, left_id=left_id, tokens=on.tokens, decode=codec.decode)
    assert isinstance(encoded, FragmentIds)
    if result.left is not None:
        assert codec.encode(result.left + result.text) == [left_id, *encoded.ids]
    return result, encoded.ids


def _check_relatives(
    on: Bench, codec: Codec, request: SpliceRequest, fragment: Fragment, data: st.DataObject, *, local: bool
) -> None:
    """A retry and another spelling get the same fragment, an edit none, a branch its own."""
    again = run(splice_steps(request, renders_without_generation_prompt=local), on.renderer)
    assert again == fragment
    sent = data.draw(written_otherwise(request.assistant), label="sent back")
    other = run(
        splice_steps(replace(request, assistant=sent), renders_without_generation_prompt=local), on.renderer
    )
    assert isinstance(other, Fragment)
    assert other.text == fragment.text
    changed = run(splice_steps(replace(request, assistant=edited(request.assistant))), on.renderer)
    assert isinstance(changed, Refusal)
    assert changed.reason is RefusalReason.ASSISTANT_EDITED
    branch = replace(request, new_messages=data.draw(followers(on, request.assistant), label="branch"))
    word = next(w for w in str(request.assistant).split() if w.startswith("quorvexal"))[:13]
    found = run(splice_steps(branch, renders_without_generation_prompt=local), on.renderer)
    assert verdict(expected_fragment(branch, on.facts, word, on.renderer), found) is not Verdict.WRONG


def _check_text(
    on: Bench,
    codec: Codec,
    request: SpliceRequest,
    fragment: Fragment,
    sampled_until: str,
    next_prompt: list[int],
    rstrip: tuple[str, ...],
) -> None:
    """The ids spell what was seen, sampled and appended: the template's own rendering, where none differs."""
    if not rstrip and "\ufffd" not in sampled_until:
        assert codec.decode(next_prompt).endswith(fragment.text)
    messages = (*request.previous, request.assistant, *request.new_messages)
    asked = RenderRequest(messages, request.tools and tuple(request.tools), {}, True)
    full = run(full_render_steps(asked, on.profile.forms), on.renderer)
    assert isinstance(full, FullRendering)
    rewriting = {SpliceFlag.STOP_SUBSTITUTED, SpliceFlag.FOREIGN_STOP, SpliceFlag.UNTERMINATED_GENERATION}
    if full.text.startswith(sampled_until) and not rewriting & fragment.flags:
        event("as the template renders it")
        assert full.text == sampled_until + fragment.text


def real_templates() -> list[Path]:
    return sorted((Path(TEST_DATA) / "chat_templates").glob("*.jinja")) if TEST_DATA else []


@cache
def real_bench(path: Path) -> Bench:
    template = path.read_text(encoding="utf-8")
    facts = facts_of(path.stem, template)
    assert facts is not None
    return bench(template, facts)


@pytest.mark.skipif(TEST_DATA is None, reason="SGLANG_GYM_TEST_DATA is not set")
@relaxed
@given(data=st.data())
def test_no_random_conversation_on_a_real_template_is_spliced_wrong(data: st.DataObject) -> None:
    on = real_bench(data.draw(st.sampled_from(real_templates())))
    messages: tuple[Message, ...] = ({"role": "user", "content": data.draw(texts)},)
    for turn in range(data.draw(st.integers(1, 3), label="turns")):
        word = f"quorvexal{'abc'[turn]}qq{turn}"
        reply = data.draw(replies(on, word, tools=True), label="reply")
        new = data.draw(followers(on, reply), label="new messages")
        request = SpliceRequest(messages, reply, new, data.draw(ends(on.facts, reply)), on.tokens, TOOLS)
        for local in (True, False):
            result = run(splice_steps(request, renders_without_generation_prompt=local), on.renderer)
            assert (
                verdict(expected_fragment(request, on.facts, word, on.renderer), result) is not Verdict.WRONG
            )
        messages = (*messages, reply, *new)
