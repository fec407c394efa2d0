"""Messages reach every template in a form it can read; what cannot be rendered is refused by its path."""

from __future__ import annotations

import copy
import json

import pytest

from nemo_gym.errors import RequestError
from sglang_model.message_forms import (
    ArgumentForm,
    BadArguments,
    EmptyContent,
    Message,
    MessageForms,
    TextParts,
    check_template_kwargs,
    forms_ladder,
    message_text,
    normalise_message,
    normalise_messages,
    parsed_arguments,
)

MAPPINGS = MessageForms()
STRINGS = MessageForms(arguments=ArgumentForm.STRING)


def called(arguments: object, content: object = None) -> Message:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


def arguments_of(message: Message) -> object:
    calls = message["tool_calls"]
    assert isinstance(calls, list)
    return calls[0]["function"]["arguments"]


def normal(message: Message, forms: MessageForms = MAPPINGS) -> dict[str, object]:
    return normalise_message(message, forms, "messages[0]")


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def test_text_parts_become_one_string_joined_by_a_space_as_on_the_server() -> None:
    assert normal({"role": "user", "content": parts("a", "b ", "c")})["content"] == "a b  c"
    assert normal({"role": "user", "content": []})["content"] == ""


def test_plain_strings_in_a_list_count_as_text_parts() -> None:
    assert normal({"role": "tool", "content": ["a", "b"]})["content"] == "a b"


def test_a_template_that_walks_over_parts_gets_the_list_but_tool_results_are_joined() -> None:
    kept = MessageForms(text_parts=TextParts.KEPT)
    assert normal({"role": "user", "content": parts("a", "b")}, kept)["content"] == parts("a", "b")
    assert normal({"role": "user", "content": "a"}, kept)["content"] == "a"
    assert normal({"role": "tool", "content": parts("a", "b")}, kept)["content"] == "a b"


def test_a_template_that_reads_only_parts_gets_lists_for_strings_and_for_nothing() -> None:
    wrapped = MessageForms(text_parts=TextParts.WRAPPED)
    assert normal({"role": "tool", "content": "a"}, wrapped)["content"] == parts("a")
    assert normal({"role": "user", "content": None}, wrapped)["content"] == parts("")


def test_message_text_is_the_text_of_strings_and_of_parts() -> None:
    assert message_text({"content": "a"}) == "a"
    assert message_text({"content": parts("a", "b")}) == "ab"
    assert message_text({"content": None}) == ""


def test_null_content_is_the_empty_string_unless_the_template_needs_null() -> None:
    null = MessageForms(empty_content=EmptyContent.NULL)
    assert normal(called("{}"))["content"] == ""
    assert normal(called("{}", ""), null)["content"] is None
    assert normal(called("{}", "text"), null)["content"] == "text"
    assert normal({"role": "assistant", "content": None}, null)["content"] == ""
    assert normal({"role": "user"})["content"] == ""


def test_keys_with_a_null_value_and_empty_tool_calls_are_left_out() -> None:
    message = {"role": "assistant", "content": "a", "tool_calls": [], "name": None, "reasoning_content": None}
    assert normal(message) == {"role": "assistant", "content": "a"}
    assert normal({"role": "assistant", "content": "a", "tool_calls": None}) == {
        "role": "assistant",
        "content": "a",
    }


def test_reasoning_and_names_and_call_ids_stay() -> None:
    message = {"role": "tool", "content": "a", "tool_call_id": "x", "name": "n", "reasoning_content": "r"}
    assert normal(message) == message


def test_argument_strings_become_mappings_and_mappings_strings_as_the_template_needs() -> None:
    assert arguments_of(normal(called('{"a": [1, {"b": "ü"}]}'))) == {"a": [1, {"b": "ü"}]}
    assert arguments_of(normal(called({"a": "ü"}), STRINGS)) == '{"a": "ü"}'
    assert arguments_of(normal(called('{"a":1}'), STRINGS)) == '{"a": 1}'


@pytest.mark.parametrize("nothing", [None, "", "  \n", "null", {}])
def test_blank_and_null_arguments_are_a_call_without_arguments(nothing: object) -> None:
    assert arguments_of(normal(called(nothing))) == {}
    assert arguments_of(normal(called(nothing), STRINGS)) == "{}"


@pytest.mark.parametrize(
    "bad", ['{"a": 1', "call me", "[1, 2]", "5", '"{}"', '{"a": "\\ud83d"}', "[" * 100_000]
)
def test_arguments_that_are_no_json_object_stay_what_the_model_wrote(bad: str) -> None:
    assert arguments_of(normal(called(bad))) == bad
    assert arguments_of(normal(called(bad), STRINGS)) == bad
    wrapped = MessageForms(bad_arguments=BadArguments.WRAPPED)
    assert arguments_of(normal(called(bad), wrapped)) == {"arguments": bad}


def test_arguments_that_are_a_list_already_are_kept_as_their_json() -> None:
    assert parsed_arguments({"function": {"name": "f", "arguments": [1, "ü"]}}) == '[1, "ü"]'


def test_nothing_that_was_passed_in_is_changed() -> None:
    messages = [
        called('{"a": 1}'),
        {"role": "user", "content": parts("a", "b"), "name": None},
        called({"a": {"b": 1}}, ""),
    ]
    before = copy.deepcopy(messages)
    for forms in forms_ladder(messages, MAPPINGS):
        normalise_messages(messages, forms)
    assert messages == before


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ("text", "messages[0]"),
        ({"content": "a"}, "messages[0].role"),
        ({"role": 1, "content": "a"}, "messages[0].role"),
        ({"role": "user", "content": 1}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "user", "content": [*parts("a"), 1]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "half \ud83d"}, "messages[0].content"),
        ({"role": "user", "content": parts("half \ud83d")}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": "f"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
    ],
)
def test_a_message_that_cannot_be_rendered_is_refused_with_its_path(message: Message, path: str) -> None:
    with pytest.raises(RequestError) as caught:
        normalise_messages([message], MAPPINGS)
    assert caught.value.param == path
    assert caught.value.message.startswith(path)
    assert caught.value.status_code == 400


def test_a_refused_part_is_named_by_its_type() -> None:
    with pytest.raises(RequestError, match="'input_audio'") as caught:
        normal({"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]})
    assert caught.value.code == "unsupported_content_part"


def test_other_forms_are_tried_only_where_they_make_a_difference() -> None:
    assert forms_ladder([{"role": "user", "content": "a"}], MAPPINGS) == (MAPPINGS,)
    ladder = forms_ladder([called("{}")], MAPPINGS)
    assert ladder[0] == MAPPINGS
    assert {(f.arguments, f.empty_content) for f in ladder} == {
        (a, e) for a in ArgumentForm for e in EmptyContent
    }
    assert forms_ladder([called("{}")], STRINGS)[0] == STRINGS


def test_a_conversation_with_a_call_that_is_no_json_is_tried_with_that_call_wrapped() -> None:
    assert BadArguments.WRAPPED not in {f.bad_arguments for f in forms_ladder([called("{}")], MAPPINGS)}
    assert forms_ladder([called("{oops")], MAPPINGS)[1] == MessageForms(bad_arguments=BadArguments.WRAPPED)


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template", "tokenize"])
def test_template_arguments_that_would_shadow_the_renderers_own_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        check_template_kwargs({"enable_thinking": True, name: 1})
    assert caught.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("value", [None, "", [], "{}", {1: 2}])
def test_template_arguments_that_are_no_object_are_refused(value: object) -> None:
    with pytest.raises(RequestError, match="chat_template_kwargs"):
        check_template_kwargs(value)


def test_template_arguments_pass_as_they_are() -> None:
    kwargs = {"enable_thinking": False, "n": json.loads("[1]")}
    assert check_template_kwargs(kwargs) == kwargs
