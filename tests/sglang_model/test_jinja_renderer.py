"""The small renderer of the tests renders as transformers does."""

from __future__ import annotations

import warnings

import pytest

from sglang_model.message_forms import MessageForms, normalise_messages
from sglang_model.splice_types import Rendered, RenderFailed, RenderRequest
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.splice_shapes import all_shapes
from sglang_model.testing.template_families import FAMILIES

PLAIN = RenderRequest(({"role": "user", "content": "<é>"},), None, {}, True)


def render(template: str, **variables: str) -> Rendered | RenderFailed:
    return JinjaRenderer(template, variables)(PLAIN)


def test_json_is_neither_escaped_for_html_nor_for_ascii() -> None:
    assert render("{{ messages[0] | tojson }}") == Rendered('{"role": "user", "content": "<é>"}')
    assert render("{{ [1] | tojson(indent=1) }}") == Rendered("[\n 1\n]")


def test_loop_controls_generation_blocks_and_dates_are_known() -> None:
    assert render("{% for m in messages %}{% break %}x{% endfor %}") == Rendered("")
    assert render("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == Rendered("abuserc")
    assert render("{{ strftime_now('%Y') | int > 2000 }}") == Rendered("True")


def test_blocks_take_their_line_with_them() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == Rendered("a\nb\nc")


def test_tokenizer_variables_and_template_arguments_reach_the_template() -> None:
    asked = RenderRequest(PLAIN.messages, None, {"enable_thinking": False}, False)
    made = JinjaRenderer(
        "{{ bos_token }}{{ enable_thinking }}{{ add_generation_prompt }}", {"bos_token": "<s>"}
    )
    assert made(asked) == Rendered("<s>FalseFalse")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ missing.name }}",
        "{{ messages.append(1) }}",
        "{{ 1 / 0 }}",
    ],
)
def test_whatever_a_template_raises_is_a_failed_rendering(template: str) -> None:
    assert isinstance(render(template), RenderFailed)


def test_it_renders_every_shape_on_every_family_as_transformers_does() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    compared = 0
    for family in FAMILIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bare, **family.facts.variables)
        small = JinjaRenderer(family.template, family.facts.variables)
        for shape in all_shapes():
            messages = (*shape.previous, shape.assistant, *shape.new_messages)
            shown = normalise_messages(messages, MessageForms())
            for prompt in (True, False):
                result = small(RenderRequest(shown, shape.tools, shape.kwargs, prompt))
                if isinstance(result, RenderFailed):
                    continue
                tools = list(shape.tools) if shape.tools else None
                expected = tokenizer.apply_chat_template(
                    list(shown),
                    tools=tools,
                    chat_template=family.template,
                    add_generation_prompt=prompt,
                    tokenize=False,
                    **shape.kwargs,
                )
                assert result.text == expected
                compared += 1
    assert compared > 400
