"""The start-up probe finds out by rendering what an operator would otherwise configure by hand."""

from __future__ import annotations

import pytest

from nemo_gym.errors import RequestError
from sglang_model.message_forms import ArgumentForm, EmptyContent, MessageForms, TextParts
from sglang_model.render_steps import run_async
from sglang_model.splice_types import (
    Pins,
    RefusalReason,
    Rendered,
    RenderFailed,
    RenderRequest,
    SpecialTokens,
    SpliceFlag,
)
from sglang_model.template_probe import probe_steps, probe_template
from sglang_model.template_profile import (
    ReasoningSupport,
    RoleSupport,
    TemplateProfile,
    TurnEnd,
    TurnKind,
    describe,
)
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.template_families import FAMILIES, family

CHATML = SpecialTokens(("<|im_start|>", "<|im_end|>", "<|endoftext|>"), ("<|im_end|>", "<|endoftext|>"))


def renderer(name: str) -> JinjaRenderer:
    return JinjaRenderer(family(name).template, family(name).facts.variables)


def profile(name: str, **more: object) -> TemplateProfile:
    facts = family(name).facts
    return probe_template(renderer(name), SpecialTokens(facts.specials, facts.stops), **more)  # type: ignore[arg-type]


def prompt_only(inner: JinjaRenderer) -> JinjaRenderer:
    def render(request: RenderRequest) -> Rendered | RenderFailed:
        assert request.add_generation_prompt
        return inner(request)

    return render  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["chatml-thinking", "chatml-bare"])
@pytest.mark.parametrize("local", [True, False])
def test_on_chatml_the_pull_requests_defaults_are_derived(name: str, local: bool) -> None:
    render = renderer(name) if local else prompt_only(renderer(name))
    found = probe_template(render, CHATML, renders_without_generation_prompt=local)
    assert found.turn_suffix == "<|im_end|>\n"
    assert found.markers == ("<|im_end|>", "<|endoftext|>")


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("chatml-thinking", TurnEnd("<|im_end|>", "<|im_end|>\n"), TurnEnd("<|im_end|>", "<|im_end|>\n")),
        ("header-ids", TurnEnd("<|eot_id|>", "<|eot_id|>"), TurnEnd("<|eot_id|>", "<|eot_id|>")),
        ("inst", TurnEnd("</s>", "</s>"), TurnEnd("</s>", "</s>")),
        ("turns", TurnEnd("<end_of_turn>", "<end_of_turn>\n"), None),
        ("role-stops", None, None),
        ("channels", TurnEnd("<|end|>", "<|end|>"), TurnEnd("<|call|>", "<|call|>")),
        ("extra-ids", None, None),
        ("actions", TurnEnd("<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"), None),
        ("no-end", None, None),
    ],
)
def test_the_turn_end_of_each_kind_is_derived(name: str, text: TurnEnd | None, call: TurnEnd | None) -> None:
    found = profile(name)
    assert found.turn_ends == {TurnKind.TEXT: text, TurnKind.CALL: call}


def test_a_suffix_of_plain_text_behind_the_marker_is_part_of_it() -> None:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>--\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
    )
    found = probe_template(JinjaRenderer(template), CHATML)
    assert found.turn_ends[TurnKind.TEXT] == TurnEnd("<|im_end|>", "<|im_end|>--\n")


def test_the_form_of_calls_that_the_template_reads_is_found() -> None:
    assert profile("bars").forms == MessageForms(ArgumentForm.STRING, EmptyContent.NULL)
    assert profile("chatml-thinking").forms == MessageForms()
    assert profile("parts").forms.text_parts is TextParts.WRAPPED


def test_a_template_that_walks_over_parts_gets_lists() -> None:
    template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    )
    assert probe_template(JinjaRenderer(template), CHATML).forms.text_parts is TextParts.KEPT


def test_a_template_that_prints_a_list_as_python_gets_joined_strings() -> None:
    template = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    assert probe_template(JinjaRenderer(template), CHATML).forms.text_parts is TextParts.JOINED


def test_arguments_printed_as_a_python_mapping_are_given_as_json_text() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}<|im_end|>{% endfor %}"
    )
    found = probe_template(JinjaRenderer(template), CHATML)
    assert found.tool_calls
    assert found.forms.arguments is ArgumentForm.STRING


def test_arguments_that_come_through_only_as_a_python_mapping_still_count() -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments if c.function.arguments is mapping else '' }}"
        "{% endfor %}<|im_end|>{% endfor %}"
    )
    found = probe_template(JinjaRenderer(template), CHATML)
    assert found.tool_calls
    assert found.forms.arguments is ArgumentForm.MAPPING


def test_roles_behind_an_assistant_turn_are_told_apart() -> None:
    shown = profile("chatml-thinking").roles
    assert shown == {
        "user": RoleSupport.SHOWN,
        "tool": RoleSupport.SHOWN,
        "system": RoleSupport.SHOWN,
        "developer": RoleSupport.DROPPED,
    }
    assert profile("extra-ids").roles["system"] is RoleSupport.HOISTED
    assert profile("inst").roles["developer"] is RoleSupport.REJECTED


def test_a_template_without_system_prompt_or_calls_says_so() -> None:
    found = profile("turns")
    assert not found.system_prompt
    assert not found.tool_calls
    assert found.spliceable["text > user"].refusal is None
    assert found.spliceable["call > tool"].refusal is RefusalReason.TEMPLATE_REJECTED
    assert len(found.problems) == 2


def test_a_template_that_renders_nothing_without_tools_is_probed_with_them() -> None:
    template = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + family("chatml-bare").template
    found = probe_template(JinjaRenderer(template), CHATML)
    assert found.needs_tools
    assert found.spliceable["text > user"].refusal is None


def test_a_template_that_rejects_everything_has_a_profile_of_refusals() -> None:
    found = probe_template(JinjaRenderer("{{ raise_exception('never') }}"), CHATML)
    assert set(found.roles.values()) == {RoleSupport.REJECTED}
    assert {check.refusal for check in found.spliceable.values()} == {RefusalReason.TEMPLATE_REJECTED}


@pytest.mark.parametrize(
    ("name", "support"),
    [
        ("chatml-thinking", ReasoningSupport.STRIPPED),
        ("role-stops", ReasoningSupport.STRIPPED),
        ("inst", ReasoningSupport.IGNORED),
    ],
)
def test_what_becomes_of_earlier_reasoning_is_told(name: str, support: ReasoningSupport) -> None:
    assert profile(name).reasoning is support


def test_reasoning_that_is_always_shown_is_kept() -> None:
    template = "{% for m in messages %}{{ m.reasoning_content or '' }}{{ m.content }}<|im_end|>{% endfor %}"
    assert probe_template(JinjaRenderer(template), CHATML).reasoning is ReasoningSupport.KEPT


def test_the_stop_token_that_suits_a_continuation_best_is_named() -> None:
    checks = profile("role-stops").spliceable
    assert checks["text > user"].stop_token == "<|user|>"
    assert checks["call > tool"].stop_token == "<|observation|>"
    assert all(check.refusal is None and not check.flags for check in checks.values())


def test_flagged_continuations_are_no_problem_but_are_shown() -> None:
    found = profile("channels")
    assert found.spliceable["2 calls > 2 tools"].flags == {SpliceFlag.TOOL_CALLS_PARTLY_RENDERED}
    assert found.problems == ()
    assert "tool_calls_partly_rendered" in describe(found)
    assert profile("actions").spliceable["call > tool"].flags == {SpliceFlag.FOREIGN_STOP}


def test_one_call_at_a_time_is_a_problem_with_the_templates_own_words() -> None:
    (problem,) = profile("header-ids").problems
    assert problem.startswith("2 calls > 2 tools: template_rejected")
    assert "Only one call at a time." in problem


def test_a_pinned_suffix_that_does_not_fit_shows_as_a_problem() -> None:
    found = profile("header-ids", pins=Pins("<|im_end|>\n"))
    assert found.spliceable["text > user"].refusal is RefusalReason.PINNED_SUFFIX_MISMATCH
    assert (
        profile("chatml-thinking", pins=Pins("<|im_end|>\n", ("<|im_end|>", "<|endoftext|>"))).problems == ()
    )


def test_without_any_known_stop_token_continuations_are_tried_as_cut_off() -> None:
    found = probe_template(renderer("chatml-thinking"), SpecialTokens(CHATML.texts))
    assert found.spliceable["text > user"].stop_token is None
    assert found.spliceable["text > user"].flags == {SpliceFlag.UNTERMINATED_GENERATION}


def test_template_arguments_reach_the_probe_and_are_checked() -> None:
    template = "{% if not mode %}{{ raise_exception('mode') }}{% endif %}" + family("chatml-bare").template
    assert probe_template(JinjaRenderer(template), CHATML).problems != ()
    assert probe_template(JinjaRenderer(template), CHATML, {"mode": 1}).problems == ()
    with pytest.raises(RequestError):
        probe_template(JinjaRenderer(template), CHATML, {"messages": 1})


async def test_an_awaited_renderer_gives_the_same_profile() -> None:
    inner = renderer("chatml-thinking")

    async def render(request: RenderRequest) -> Rendered | RenderFailed:
        return inner(request)

    assert await run_async(probe_steps(CHATML), render) == probe_template(inner, CHATML)


@pytest.mark.parametrize("name", [made.name for made in FAMILIES])
def test_every_family_is_described_in_lines_a_person_can_read(name: str) -> None:
    text = describe(profile(name))
    assert text.splitlines()[0] == "messages"
    for heading in ("behind an assistant turn", "turn ends", "splicing"):
        assert heading in text.splitlines()
    assert all(len(line) < 200 for line in text.splitlines())
    assert "probecal" not in text


def test_the_description_says_what_is_not_spliceable_and_why() -> None:
    text = describe(profile("header-ids"))
    assert "text                  '<|eot_id|>', suffix '<|eot_id|>'" in text
    assert "2 calls > 2 tools     NO: template_rejected" in text
    assert "no token of its own" in describe(profile("role-stops"))
    assert "an empty string" in text
    assert "content is null" in describe(profile("bars"))
