# ruff: noqa: RUF001 (tokens as real models have them)
"""The splice as its callers use it: guards, forms of messages, particular templates, both ways to render."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from nemo_gym.errors import RequestError
from sglang_model.message_forms import (
    ArgumentForm,
    BadArguments,
    EmptyContent,
    Message,
    MessageForms,
    TextParts,
)
from sglang_model.splice import full_render_steps, run, run_async, splice_steps
from sglang_model.splice_types import (
    EndKind,
    Fragment,
    FullRendering,
    GenerationEnd,
    HistoryNote,
    Pins,
    Refusal,
    RefusalReason,
    Rendered,
    RenderFailed,
    RenderRequest,
    SpecialTokens,
    SpliceFlag,
    SpliceRequest,
)
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.splice_shapes import TOOLS, call, called, said, system, tool, user
from sglang_model.testing.template_families import family

Render = Callable[[RenderRequest], Rendered | RenderFailed]
CHATML = SpecialTokens(("<|im_start|>", "<|im_end|>", "<|endoftext|>"), ("<|im_end|>", "<|endoftext|>"))
LENGTH = GenerationEnd(EndKind.LENGTH)


IM_END = "<|im_end|>"


def stopped(token: str = IM_END) -> GenerationEnd:
    return GenerationEnd(EndKind.STOP_TOKEN, token)


def request(*new: Message, assistant: Message | None = None, **more: object) -> SpliceRequest:
    made = SpliceRequest(
        previous=(system("Be kind."), user("Hello?")),
        assistant=assistant or said("Hello."),
        new_messages=new or (user("And then?"),),
        end=stopped(),
        tokens=CHATML,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def renderer(name: str) -> JinjaRenderer:
    made = family(name)
    return JinjaRenderer(made.template, made.facts.variables)


def tokens_of(name: str) -> SpecialTokens:
    facts = family(name).facts
    return SpecialTokens(facts.specials, facts.stops)


def fragment(made: SpliceRequest, render: Render | str = "chatml-thinking", **more: bool) -> Fragment:
    result = run(splice_steps(made, **more), renderer(render) if isinstance(render, str) else render)
    assert isinstance(result, Fragment), result
    return result


def refusal(made: SpliceRequest, render: Render | str = "chatml-thinking", **more: bool) -> Refusal:
    result = run(splice_steps(made, **more), renderer(render) if isinstance(render, str) else render)
    assert isinstance(result, Refusal), result
    return result


class Counting:
    """A renderer that remembers what it was asked for."""

    def __init__(self, inner: Render) -> None:
        self.inner = inner
        self.asked: list[RenderRequest] = []

    def __call__(self, request: RenderRequest) -> Rendered | RenderFailed:
        self.asked.append(request)
        return self.inner(request)


CHATML_NEXT = "\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"


def test_the_fragment_is_what_stands_behind_the_sampled_stop_token() -> None:
    found = fragment(request())
    assert found.text == CHATML_NEXT
    assert found.left == "<|im_end|>"
    assert found.flags == frozenset()


def test_parallel_results_are_rendered_in_one_block() -> None:
    turn = called(call(1, "get_time", place="Oslo"), call(2, "get_weather", city="Oslo"))
    found = fragment(
        request(tool(1, "get_time", "noon"), tool(2, "get_weather", ""), assistant=turn, tools=TOOLS)
    )
    assert found.text == (
        "\n<|im_start|>user\n<tool_response>\nnoon\n</tool_response>\n<tool_response>\n\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_turn_without_new_messages_is_refused() -> None:
    assert refusal(replace(request(), new_messages=())).reason is RefusalReason.NO_NEW_MESSAGES


def test_another_assistant_turn_behind_the_stored_one_is_refused() -> None:
    found = refusal(request(user("So?"), said("So."), user("Well?")))
    assert found.reason is RefusalReason.ASSISTANT_IN_NEW_MESSAGES
    assert "new message 1" in found.detail


def test_an_edited_reply_never_inherits_the_sampled_ids() -> None:
    made = request(assistant=said("Hello, redacted."), returned=said("Hello, secret."))
    found = refusal(made)
    assert found.reason is RefusalReason.ASSISTANT_EDITED
    assert "secret" not in found.detail


def test_an_edited_call_never_inherits_the_sampled_ids() -> None:
    sent, returned = (called(call(1, "get_weather", city=city)) for city in ("Rome", "Oslo"))
    made = request(tool(1, "get_weather", "rain"), assistant=sent, returned=returned, tools=TOOLS)
    assert refusal(made).reason is RefusalReason.ASSISTANT_EDITED


@pytest.mark.parametrize(
    "sent",
    [
        said("Hello."),
        said([{"type": "text", "text": "Hello."}]),  # type: ignore[arg-type]
        said("Hello.", tool_calls=[]),
        said("Hello.", tool_calls=None, reasoning_content=None),
        said("<think>hm</think>Hello."),
    ],
)
def test_a_reply_written_in_another_way_is_the_same_reply(sent: Message) -> None:
    made = request(assistant=sent, returned=said("Hello.", reasoning_content="hm"))
    assert fragment(made).text == CHATML_NEXT


def test_a_call_with_reordered_arguments_is_the_same_call() -> None:
    returned = {**call(1, "f"), "function": {"name": "f", "arguments": '{"a": 1, "b": 2}'}}
    sent = {**call(1, "f"), "function": {"name": "f", "arguments": '{"b":2,"a":1}'}}
    made = request(tool(1, "f", "ok"), assistant=called(sent), returned=called(returned), tools=TOOLS)
    assert "ok" in fragment(made).text


def test_template_arguments_that_shadow_the_renderers_are_a_request_error() -> None:
    with pytest.raises(RequestError, match="add_generation_prompt"):
        fragment(request(chat_template_kwargs={"add_generation_prompt": False}))


def test_a_part_that_is_no_text_is_a_request_error_with_its_path() -> None:
    with pytest.raises(RequestError) as caught:
        fragment(request(user([{"type": "image_url", "image_url": {"url": "x"}}])))
    assert caught.value.param == "messages[3].content[0]"


@pytest.mark.parametrize("place", ["assistant", "new"])
def test_what_is_no_message_is_a_request_error_with_its_path(place: str) -> None:
    odd: Message = "text"  # type: ignore[assignment]
    made = request(odd) if place == "new" else replace(request(), assistant=odd)
    with pytest.raises(RequestError) as caught:
        fragment(made)
    assert caught.value.param == ("messages[3]" if place == "new" else "messages[2]")


def test_template_arguments_reach_the_template() -> None:
    found = fragment(request(chat_template_kwargs={"enable_thinking": False}))
    assert found.text == f"{CHATML_NEXT}<think>\n\n</think>\n\n"


def test_a_template_that_rejects_the_conversation_says_so_in_its_own_words() -> None:
    found = refusal(request(user("One"), user("Two"), tokens=tokens_of("turns")), "turns")
    assert found.reason is RefusalReason.TEMPLATE_REJECTED
    assert "A system role is not supported." in found.detail


@pytest.mark.parametrize("content", ["a very private sentence of the user", "short"])
def test_a_templates_error_that_quotes_the_conversation_is_withheld(content: str) -> None:
    template = "{{- raise_exception('Cannot say: ' + messages[1].content) }}"
    made = request(previous=(system("Be kind."), user(content)))
    found = refusal(made, JinjaRenderer(template))
    assert found.reason is RefusalReason.TEMPLATE_REJECTED
    assert content not in found.detail


def test_a_templates_error_that_quotes_a_part_of_a_message_is_withheld() -> None:
    template = "{{- raise_exception('Cannot say: ' + messages[1].content[7:30]) }}"
    made = request(previous=(system("Be kind."), user("a very private sentence of the user")))
    assert "private" not in refusal(made, JinjaRenderer(template)).detail


def test_a_text_that_the_template_reads_as_a_switch_is_flagged_as_altered() -> None:
    template = family("chatml-bare").template.replace("m.content", "m.content.replace('/no_think', '')")
    found = fragment(request(user("/no_think And then?")), JinjaRenderer(template))
    assert found.text == CHATML_NEXT.replace("And", " And")
    assert found.flags == {SpliceFlag.NEW_MESSAGE_ALTERED}


def test_a_text_that_the_template_shows_as_something_else_is_refused() -> None:
    template = family("chatml-bare").template.replace(
        "m.content", "(m.content if m.content != '12' else 'dozen')"
    )
    found = refusal(request(user("12")), JinjaRenderer(template))
    assert found.reason is RefusalReason.NEW_MESSAGE_UNPROVEN


def test_a_reply_that_the_template_shows_twice_or_never_is_refused() -> None:
    for body in ("{{ m.content + m.content }}", "{{ m.role }}"):
        template = "{% for m in messages %}" + body + "<|im_end|>{% endfor %}"
        found = refusal(request(), JinjaRenderer(template))
        assert found.reason is RefusalReason.ASSISTANT_NOT_RENDERED


def test_argument_strings_are_given_to_a_template_that_cannot_read_mappings_and_nulls_too() -> None:
    """DeepSeek's: arguments are concatenated, and a string as content hides the calls."""
    stop = family("bars").facts.call_end
    turn = called(call(1, "get_weather", city="Oslo"), content="")
    made = request(
        tool(1, "get_weather", "rain"),
        assistant=turn,
        tools=TOOLS,
        end=stopped(stop),
        tokens=tokens_of("bars"),
    )
    found = fragment(made, "bars")
    assert (
        found.text
        == "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>rain<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
    assert found.flags == {SpliceFlag.FORMS_CHANGED}
    assert found.forms == MessageForms(ArgumentForm.STRING, EmptyContent.NULL)
    assert fragment(replace(made, forms=found.forms), "bars").flags == frozenset()


def test_lists_are_given_to_a_template_that_reads_nothing_else() -> None:
    made = request(end=stopped("<end_of_utterance>"), tokens=tokens_of("parts"))
    found = fragment(made, "parts")
    assert found.text == "\nUser: And then?<end_of_utterance>\nAssistant:"
    assert found.flags == {SpliceFlag.FORMS_CHANGED}
    assert found.forms.text_parts is TextParts.WRAPPED


def test_an_earlier_call_that_is_no_json_does_not_end_the_conversation() -> None:
    bad = {**call(1, "get_weather"), "function": {"name": "get_weather", "arguments": '{"city": "Oslo'}}
    previous = (user("Hello?"), called(bad), tool(1, "get_weather", "cannot read that"))
    made = request(previous=previous, tools=TOOLS, tokens=tokens_of("role-stops"), end=stopped("<|user|>"))
    found = fragment(made, "role-stops")
    assert found.text == "\nAnd then?<|assistant|>\n"
    assert found.flags == {SpliceFlag.ARGUMENTS_WRAPPED}
    assert found.forms.bad_arguments is BadArguments.WRAPPED


def test_calls_that_the_template_does_not_write_are_flagged() -> None:
    made = request(tool(1, "get_weather", "rain"), assistant=called(call(1, "get_weather", city="Oslo")))
    found = fragment(made, "chatml-bare")
    assert found.text == "\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n"
    assert found.flags == {SpliceFlag.TOOL_CALLS_NOT_RENDERED}


def test_a_template_that_writes_only_the_first_call_is_spliced_behind_that_and_flagged() -> None:
    turn = called(call(1, "get_time", place="Oslo"), call(2, "get_weather", city="Oslo"))
    results = (tool(1, "get_time", "noon"), tool(2, "get_weather", "rain"))
    made = request(
        *results, assistant=turn, tools=TOOLS, end=stopped("<|call|>"), tokens=tokens_of("channels")
    )
    found = fragment(made, "channels")
    assert found.text.startswith("<|start|>functions.get_time to=assistant")
    assert found.flags == {SpliceFlag.TOOL_CALLS_PARTLY_RENDERED}


def test_the_last_positions_own_stop_token_stays_in_place_of_the_history_end() -> None:
    made = request(end=stopped("<|return|>"), tokens=tokens_of("channels"))
    for more in ({}, {"renders_without_generation_prompt": False}):
        found = fragment(made, "channels", **more)
        assert found.text == "<|start|>user<|message|>And then?<|end|><|start|>assistant"
        assert found.flags == {SpliceFlag.STOP_SUBSTITUTED}


def test_a_role_token_that_stopped_the_turn_is_the_next_turns_header() -> None:
    made = request(end=stopped("<|user|>"), tokens=tokens_of("role-stops"))
    assert fragment(made, "role-stops").text == "\nAnd then?<|assistant|>\n"


def test_a_role_token_of_another_role_stays_and_is_flagged() -> None:
    made = request(end=stopped("<|observation|>"), tokens=tokens_of("role-stops"))
    found = fragment(made, "role-stops")
    assert found.text == "<|user|>\nAnd then?<|assistant|>\n"
    assert found.flags == {SpliceFlag.FOREIGN_STOP}


def test_another_stop_token_of_the_engine_replaces_the_end_and_is_flagged() -> None:
    found = fragment(request(end=stopped("<|endoftext|>")))
    assert found.text == CHATML_NEXT
    assert found.left == "<|endoftext|>"
    assert found.flags == {SpliceFlag.STOP_SUBSTITUTED}


def test_a_header_that_follows_every_turn_is_not_lost_behind_another_stop_token() -> None:
    made = request(end=stopped("</s>"), tokens=tokens_of("extra-ids"))
    found = fragment(made, "extra-ids")
    assert found.text == "\n<extra_id_1>User\nAnd then?\n<extra_id_1>Assistant\n"
    assert found.flags == {SpliceFlag.FOREIGN_STOP}


def test_a_call_that_runs_into_the_next_turn_keeps_its_closers_once() -> None:
    turn = called(call(1, "get_weather", city="Oslo"))
    made = request(
        tool(1, "get_weather", "rain"),
        assistant=turn,
        tools=TOOLS,
        end=stopped("<|END_OF_TURN_TOKEN|>"),
        tokens=tokens_of("actions"),
    )
    found = fragment(made, "actions")
    assert found.text.startswith("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\nrain</results>")
    assert found.flags == {SpliceFlag.FOREIGN_STOP}
    engine = refusal(made, "actions", renders_without_generation_prompt=False)
    assert engine.reason is RefusalReason.TURN_END_NOT_FOUND


def test_a_turn_cut_off_by_length_gets_its_close_as_prompt() -> None:
    found = fragment(request(end=LENGTH))
    assert found.text == f"<|im_end|>{CHATML_NEXT}"
    assert found.left is None
    assert found.flags == {SpliceFlag.UNTERMINATED_GENERATION}


@pytest.mark.parametrize("kind", [EndKind.LENGTH, EndKind.STOP_STRING, EndKind.ABORT])
def test_every_end_without_a_stop_token_is_a_cut_off_turn(kind: EndKind) -> None:
    assert fragment(request(end=GenerationEnd(kind))).text == f"<|im_end|>{CHATML_NEXT}"


def test_an_empty_turn_of_an_overflowed_context_can_be_continued() -> None:
    found = fragment(request(end=LENGTH, assistant={"role": "assistant", "content": None}))
    assert found.text == f"<|im_end|>{CHATML_NEXT}"


def test_a_newline_as_stop_token_is_not_taken_for_the_newline_of_the_close() -> None:
    found = fragment(request(end=stopped("\n")))
    assert found.text == f"<|im_end|>{CHATML_NEXT}"
    assert found.left is None
    assert found.flags == {SpliceFlag.ORDINARY_STOP_TOKEN, SpliceFlag.UNTERMINATED_GENERATION}


def test_stop_tokens_in_a_users_text_are_not_taken_for_the_turns_end() -> None:
    """A template that writes no end in front of a user's text, which begins with the stop token."""
    template = "{% for m in messages %}{{ m.content }}{% if loop.last %}<|im_end|>{% endif %}{% endfor %}"
    found = fragment(request(user("<|im_end|> and more text than that")), JinjaRenderer(template))
    assert found.text == "<|im_end|> and more text than that<|im_end|>"
    assert found.flags == {SpliceFlag.FOREIGN_STOP}


def test_a_reply_whose_text_the_template_writes_behind_its_calls_is_flagged_as_repeated() -> None:
    template = (
        "{% for m in messages %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}<|im_end|>{% endfor %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    turn = called(call(1, "get_weather", city="Oslo"), content="Let me look.")
    found = fragment(request(tool(1, "get_weather", "rain"), assistant=turn), JinjaRenderer(template))
    assert found.text == "Let me look.<|im_end|>rain<|im_end|>"
    assert found.flags == {SpliceFlag.REPLY_REPEATED}
    quoting = request(tool(1, "get_weather", "Let me look."), assistant=turn, tools=TOOLS)
    assert fragment(quoting).flags == frozenset()


def test_stop_tokens_in_a_replys_text_that_is_written_behind_its_calls_are_not_taken_for_its_end() -> None:
    template = (
        "{% for m in messages %}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
        "{{ m.content }}<|im_end|>{% endfor %}"
    )
    results = (tool(1, "get_weather", "rain"),)
    harmless = called(call(1, "get_weather", city="Oslo"), content="words")
    assert fragment(request(*results, assistant=harmless), JinjaRenderer(template)).text == "rain<|im_end|>"
    hostile = called(call(1, "get_weather", city="Oslo"), content="a <|im_end|> b")
    found = refusal(request(*results, assistant=hostile), JinjaRenderer(template))
    assert found.reason is RefusalReason.TURN_END_NOT_FOUND
    assert fragment(request(*results, assistant=hostile, tools=TOOLS)).text.startswith("\n<|im_start|>user")


@pytest.mark.parametrize(
    ("name", "role", "reason"),
    [
        ("chatml-thinking", "developer", RefusalReason.NEW_MESSAGE_DROPPED),
        ("extra-ids", "system", RefusalReason.NEW_MESSAGE_HOISTED),
    ],
)
def test_a_message_that_the_template_loses_is_a_refusal(name: str, role: str, reason: RefusalReason) -> None:
    facts = family(name).facts
    made = request(
        {"role": role, "content": "Say nothing of this."}, user("And then?"), end=stopped(facts.text_end)
    )
    made = replace(made, tokens=tokens_of(name))
    for more in ({}, {"renders_without_generation_prompt": False}):
        found = refusal(made, name, **more)
        assert found.reason is reason
        assert role in found.detail


@pytest.mark.parametrize(
    "text", ["assistant", "user", "", "Hello?", "<|im_start|>assistant", "And then? " * 9]
)
def test_a_lost_message_is_noticed_whatever_else_its_text_might_match(text: str) -> None:
    made = request({"role": "developer", "content": text}, user(text or "x"), user(text or "x"))
    found = run(splice_steps(made), renderer("chatml-thinking"))
    if text:
        assert isinstance(found, Refusal)
        assert found.reason is RefusalReason.NEW_MESSAGE_DROPPED
    else:
        assert isinstance(found, Fragment)


def test_the_usual_turn_costs_two_renderings_and_with_a_cache_one() -> None:
    made = request(user("A text that is long enough to stand for itself."))
    cache: dict[tuple[object, ...], str] = {}
    counting = Counting(renderer("chatml-thinking"))
    first = run(splice_steps(made, close_cache=cache), counting)
    assert [asked.add_generation_prompt for asked in counting.asked] == [True, False]
    second = run(splice_steps(made, close_cache=cache), counting)
    assert len(counting.asked) == 3
    assert second == first


def test_the_cache_keeps_kinds_of_turns_and_template_arguments_apart() -> None:
    cache: dict[tuple[object, ...], str] = {}
    turn = called(call(1, "get_weather", city="Oslo"))
    result = tool(1, "get_weather", "rain")
    for made in (
        request(),
        request(chat_template_kwargs={"enable_thinking": False}),
        request(tools=TOOLS),
        request(result, assistant=turn, tools=TOOLS),
        request(result, assistant=called(*turn["tool_calls"], call(2, "f")), tools=TOOLS),  # type: ignore[misc]
    ):
        before = len(cache)
        cached = run(splice_steps(made, close_cache=cache), renderer("chatml-thinking"))
        assert len(cache) == before + 1
        assert cached == run(splice_steps(made), renderer("chatml-thinking"))


def test_a_renderer_that_always_ends_with_a_generation_prompt_is_never_asked_for_less() -> None:
    counting = Counting(renderer("chatml-thinking"))
    found = fragment(request(), counting, renders_without_generation_prompt=False)
    assert found.text == CHATML_NEXT
    assert all(asked.add_generation_prompt for asked in counting.asked)


def test_a_template_that_rejects_a_last_reply_is_spliced_without_it_and_flagged() -> None:
    template = (
        "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}"
        + family("chatml-bare").template
    )
    found = fragment(request(), JinjaRenderer(template))
    assert found.text == CHATML_NEXT
    assert found.flags == {SpliceFlag.LAST_RENDER_REJECTED}


async def test_an_awaited_renderer_gives_the_same_fragment() -> None:
    inner = renderer("chatml-thinking")

    async def render(request: RenderRequest) -> Rendered | RenderFailed:
        return inner(request)

    assert await run_async(splice_steps(request()), render) == fragment(request())


async def test_a_renderers_own_failure_passes_through_either_driver() -> None:
    def broken(request: RenderRequest) -> Rendered:
        raise ConnectionError("down")

    async def broken_too(request: RenderRequest) -> Rendered:
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        run(splice_steps(request()), broken)
    with pytest.raises(ConnectionError):
        await run_async(splice_steps(request()), broken_too)


@pytest.mark.parametrize(
    ("assistant", "prompt", "note"),
    [
        (said("Hello."), None, HistoryNote.UNKNOWN),
        (said("Hello."), "Be kind.", HistoryNote.PRESERVED),
        (said("Hello."), "Be rude.", HistoryNote.REWRITTEN),
    ],
)
def test_the_history_note_compares_the_stored_prompt(
    assistant: Message, prompt: str | None, note: HistoryNote
) -> None:
    stored = None
    if prompt is not None:
        stored = f"<|im_start|>system\n{prompt}<|im_end|>\n<|im_start|>user\nHello?<|im_end|>\n"
        stored += "<|im_start|>assistant\n"
    assert fragment(request(assistant=assistant, prompt_text=stored)).history is note


def test_the_history_note_tells_stripped_thinking_from_other_changes() -> None:
    previous = (user("One?"), said("One.", reasoning_content="1"), user("Two?"))
    stored = (
        "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\n1\n</think>\n\nOne.<|im_end|>\n"
        "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    made = request(previous=previous, prompt_text=stored)
    assert fragment(made).history is HistoryNote.THINKING_STRIPPED
    assert (
        fragment(replace(made, prompt_text=stored.replace("One.", "Won."))).history is HistoryNote.REWRITTEN
    )


def test_pins_that_equal_what_is_derived_change_nothing() -> None:
    pins = Pins("<|im_end|>\n", ("<|im_end|>", "<|endoftext|>"))
    for end in (stopped(), stopped("<|endoftext|>"), LENGTH):
        made = request(end=end)
        assert fragment(replace(made, pins=pins)) == fragment(made)


def test_a_pinned_suffix_of_another_template_is_refused() -> None:
    made = request(tokens=tokens_of("header-ids"), end=stopped("<|eot_id|>"))
    found = refusal(replace(made, pins=Pins("<|im_end|>\n")), "header-ids")
    assert found.reason is RefusalReason.PINNED_SUFFIX_MISMATCH
    assert "sglang_turn_suffix" in found.detail


def test_a_pinned_suffix_for_texts_leaves_calls_to_their_own_end() -> None:
    turn = called(call(1, "get_weather", city="Oslo"))
    made = request(
        tool(1, "get_weather", "rain"),
        assistant=turn,
        tools=TOOLS,
        end=stopped("<|call|>"),
        tokens=tokens_of("channels"),
        pins=Pins("<|end|>"),
    )
    assert fragment(made, "channels").flags == frozenset()
    text = request(tokens=tokens_of("channels"), end=stopped("<|return|>"), pins=Pins("<|end|>"))
    assert fragment(text, "channels", renders_without_generation_prompt=False).text.startswith(
        "<|start|>user"
    )


def test_pinned_markers_decide_which_stop_tokens_may_replace_the_end() -> None:
    made = request(end=stopped("<|endoftext|>"), pins=Pins(eos_markers=("<|im_end|>",)))
    found = fragment(made)
    assert found.text == f"<|im_end|>{CHATML_NEXT}"
    assert found.flags == {SpliceFlag.FOREIGN_STOP}


def test_a_stop_token_that_is_no_pinned_marker_still_ends_the_turn_it_closes() -> None:
    bare = SpecialTokens((), ("<|im_end|>", "<|endoftext|>"))
    found = fragment(request(tokens=bare, pins=Pins(eos_markers=("<|endoftext|>",))))
    assert found.text == CHATML_NEXT
    assert found.flags == frozenset()


def test_a_full_rendering_climbs_the_same_ladder_of_forms() -> None:
    turn = called(call(1, "get_weather", city="Oslo"))
    messages = (user("Hello?"), turn, tool(1, "get_weather", "rain"))
    asked = RenderRequest(messages, TOOLS, {}, True)
    found = run(full_render_steps(asked, MessageForms(empty_content=EmptyContent.NULL)), renderer("bars"))
    assert isinstance(found, FullRendering)
    assert '{"city": "Oslo"}' in found.text
    assert found.forms == MessageForms(ArgumentForm.STRING, EmptyContent.NULL)


def test_a_full_rendering_of_a_rejected_conversation_is_a_refusal() -> None:
    asked = RenderRequest((system("Be kind."), user("Hello?")), None, {}, True)
    found = run(full_render_steps(asked, MessageForms()), renderer("turns"))
    assert isinstance(found, Refusal)
    assert found.reason is RefusalReason.TEMPLATE_REJECTED
    with pytest.raises(RequestError):
        run(
            full_render_steps(replace(asked, chat_template_kwargs={"tools": 1}), MessageForms()),
            renderer("turns"),
        )


def test_nothing_that_was_passed_in_is_changed() -> None:
    turn = called(call(1, "get_weather", city="Oslo"), content="Let me look.")
    made = request(tool(1, "get_weather", [{"type": "text", "text": "rain"}]), assistant=turn, tools=TOOLS)
    before = repr(made)
    fragment(made)
    fragment(made, renders_without_generation_prompt=False)
    assert repr(made) == before
