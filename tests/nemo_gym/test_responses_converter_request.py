"""Responses request -> chat request."""

from __future__ import annotations

import copy

import pytest
from pydantic import ValidationError

from nemo_gym.errors import RequestError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter, UnsupportedContentError
from nemo_gym.token_metadata import TOKEN_FIELDS
from tests.support.token_lists import triple, untouchable_triple

CONVERTER = ResponsesConverter(return_token_id_information=True)
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
CALL_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
CHAT_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object"}, "description": "d"},
}


def reasoning(*texts: str) -> dict[str, object]:
    return {
        "type": "reasoning",
        "id": "rs",
        "summary": [{"type": "summary_text", "text": text} for text in texts],
    }


def said(text: str, **fields: object) -> dict[str, object]:
    return {"role": "assistant", "content": text, **fields}


def converted(converter: ResponsesConverter = CONVERTER, **fields: object) -> dict[str, object]:
    """What the chat request holds beyond defaults."""
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(fields)
    return converter.responses_to_chat_completion_create_params(params).model_dump(exclude_unset=True)


def messages(*items: object, converter: ResponsesConverter = CONVERTER, **fields: object) -> object:
    return converted(converter, input=list(items), **fields)["messages"]


def test_a_string_becomes_one_user_message_with_a_text_part() -> None:
    assert converted(input="hi") == {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    }


@pytest.mark.parametrize("role", ["user", "system", "developer"])
@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
def test_messages_of_each_role_keep_role_and_string(role: str, kind: dict[str, object]) -> None:
    assert messages({"role": role, "content": "x"} | kind) == [{"role": role, "content": "x"}]


def test_text_and_image_parts_become_chat_parts() -> None:
    parts = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "http://x"}]
    parts.append({"type": "input_image", "image_url": "http://y", "detail": "low"})
    assert messages({"role": "user", "content": parts}) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "http://x", "detail": "auto"}},
                {"type": "image_url", "image_url": {"url": "http://y", "detail": "low"}},
            ],
        }
    ]


@pytest.mark.parametrize("image", [{"image_url": ""}, {"file_id": "f"}, {}])
def test_an_image_without_a_url_is_refused_by_place(image: dict[str, object]) -> None:
    with pytest.raises(RequestError) as caught:
        messages(USER, {"role": "user", "content": [{"type": "input_image"} | image]})
    assert caught.value.param == "input.1.content.0.image_url"


def test_an_unsupported_part_is_refused_by_type_and_place() -> None:
    part = {"type": "input_file", "file_data": "secret"}
    with pytest.raises(NotImplementedError, match="input_file") as caught:
        messages(USER, {"role": "user", "content": [{"type": "input_text", "text": "a"}, part]})
    assert isinstance(caught.value, UnsupportedContentError)
    assert caught.value.param == "input.1.content.1"
    assert caught.value.status_code == 400
    assert "secret" not in str(caught.value)


def test_an_unsupported_item_is_refused_by_type_and_place() -> None:
    item = {"type": "mcp_call", "name": "secret", "arguments": "{}", "server_label": "s"}
    with pytest.raises(UnsupportedContentError, match="mcp_call") as caught:
        messages(USER, item)
    assert caught.value.param == "input.1"
    assert "secret" not in str(caught.value)


def test_an_assistants_image_is_refused() -> None:
    with pytest.raises(UnsupportedContentError, match="input_image"):
        messages({"role": "assistant", "content": [{"type": "input_image", "image_url": "http://x"}]})


def test_the_parts_of_an_assistant_are_joined_and_a_refusal_is_text() -> None:
    parts = [
        {"type": "output_text", "text": "I ", "annotations": []},
        {"type": "refusal", "refusal": "won't"},
    ]
    item = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": parts}
    assert messages(item) == [{"role": "assistant", "content": "I won't"}]


def test_a_call_and_its_output_become_an_assistant_and_a_tool_message() -> None:
    assert messages(CALL, CALL_OUTPUT) == [
        {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]


def test_a_plain_assistant_message_has_no_tool_call_list() -> None:
    assert messages(said("a"), USER, said("b")) == [said("a"), USER, said("b")]


def test_the_text_parts_of_a_tool_output_become_chat_parts() -> None:
    output = [{"type": "input_text", "text": "4"}, {"type": "input_text", "text": "2"}]
    assert messages(CALL_OUTPUT | {"output": output}) == [
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": t} for t in "42"]}
    ]


def test_an_image_in_a_tool_output_is_refused_by_place() -> None:
    with pytest.raises(UnsupportedContentError) as caught:
        messages(CALL_OUTPUT | {"output": [{"type": "input_image", "image_url": "http://x"}]})
    assert caught.value.param == "input.0.output.0"


def test_a_chat_shaped_tool_turn_is_understood() -> None:
    assistant = {"role": "assistant", "content": None, "tool_calls": [CHAT_CALL]}
    tool = {"role": "tool", "content": "42", "tool_call_id": "c1"}
    assert messages(assistant, tool) == [assistant, tool]


def test_a_malformed_chat_shaped_call_is_refused_by_place() -> None:
    with pytest.raises(RequestError) as caught:
        messages(
            USER, {"role": "assistant", "tool_calls": [CHAT_CALL, {"id": "c2", "function": {"name": "f"}}]}
        )
    assert caught.value.param == "input.1.tool_calls.1"


def test_reasoning_text_and_calls_of_a_turn_become_one_message() -> None:
    assert messages(reasoning("a", "b"), said("x"), CALL, CALL | {"call_id": "c2"}) == [
        {
            "role": "assistant",
            "content": "<think>a</think><think>b</think>x",
            "tool_calls": [CHAT_CALL, CHAT_CALL | {"id": "c2"}],
        }
    ]


def test_reasoning_without_a_summary_adds_nothing() -> None:
    assert messages(USER, reasoning(), said("x")) == [USER, said("x")]


def test_reasoning_that_only_has_content_is_not_lost() -> None:
    item = reasoning() | {"content": [{"type": "reasoning_text", "text": "hm"}]}
    assert messages(item, said("x")) == [said("<think>hm</think>x")]


# Instructions


def test_instructions_become_the_leading_system_message() -> None:
    assert messages(USER, instructions="be kind") == [{"role": "system", "content": "be kind"}, USER]


def test_instructions_take_in_the_leading_system_and_developer_messages() -> None:
    parts = [{"type": "input_text", "text": "s"}, {"type": "input_text", "text": "2"}]
    later = {"role": "system", "content": "later"}
    assert messages(
        {"role": "system", "content": "s1"},
        {"role": "developer", "content": parts},
        USER,
        later,
        instructions="be kind",
    ) == [{"role": "system", "content": "be kind\n\ns1\n\ns2"}, USER, later]


def test_instructions_leave_a_system_message_alone_that_is_not_all_text() -> None:
    system = {"role": "system", "content": [{"type": "input_image", "image_url": "http://x"}]}
    result = messages(system, USER, instructions="be kind")
    assert isinstance(result, list)
    assert [message["role"] for message in result] == ["system", "system", "user"]


@pytest.mark.parametrize("instructions", [None, ""])
def test_no_instructions_add_no_message(instructions: object) -> None:
    assert messages({"role": "system", "content": "s"}, USER, instructions=instructions) == [
        {"role": "system", "content": "s"},
        USER,
    ]


def test_instructions_alone_are_a_conversation() -> None:
    assert messages(instructions="go") == [{"role": "system", "content": "go"}]


# Fields


def test_model_limit_and_tools_are_translated() -> None:
    assert converted(input=[USER], model="m", max_output_tokens=7, tools=[TOOL]) == {
        "messages": [USER],
        "model": "m",
        "max_tokens": 7,
        "tools": [CHAT_TOOL],
    }


def test_a_limit_of_zero_is_zero() -> None:
    assert converted(input=[USER], max_output_tokens=0)["max_tokens"] == 0


def test_a_null_is_left_out_so_that_it_hides_no_configured_value() -> None:
    assert converted(input=[USER], model=None, max_output_tokens=None, temperature=None, top_k=None) == {
        "messages": [USER]
    }


def test_sampling_extensions_travel_by_name() -> None:
    sent = {"top_k": 20, "min_p": 0.1, "seed": 3, "stop": ["x"], "stop_token_ids": [5], "regex": "a", "n": 1}
    sent |= {
        "chat_template_kwargs": {"enable_thinking": False},
        "metadata": {"extra_body": "{}"},
        "top_logprobs": 0,
    }
    assert converted(input=[USER], **sent) == {"messages": [USER]} | sent


def test_reasoning_effort_and_verbosity_find_their_chat_names() -> None:
    chat = converted(input=[USER], reasoning={"effort": "low"}, text={"verbosity": "high"})
    assert (chat["reasoning_effort"], chat["verbosity"]) == ("low", "high")


def test_a_text_format_becomes_a_response_format() -> None:
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    formats = {
        "json_schema": {"type": "json_schema", "json_schema": schema},
        "json_object": {"type": "json_object"},
    }
    for kind, expected in formats.items():
        text = {"format": {"type": kind} | (schema if kind == "json_schema" else {})}
        assert converted(input=[USER], text=text)["response_format"] == expected
    assert "response_format" not in converted(input=[USER], text={"format": {"type": "text"}})


@pytest.mark.parametrize("text_format", [{"type": "grammar"}, {"type": "json_schema", "name": "n"}])
def test_a_text_format_that_cannot_be_honoured_is_refused(text_format: object) -> None:
    with pytest.raises(RequestError, match=r"text\.format"):
        converted(input=[USER], text={"format": text_format})


def test_two_formats_at_once_are_refused() -> None:
    with pytest.raises(RequestError, match="both set"):
        converted(input=[USER], text={"format": {"type": "json_object"}}, response_format={"type": "text"})


@pytest.mark.parametrize("tools", [{}, {"tools": []}, {"tools": None}])
@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_without_tools_there_is_no_choice_to_send(tools: dict[str, object], choice: object) -> None:
    assert converted(input=[USER], tool_choice=choice, parallel_tool_calls=True, **tools) == {
        "messages": [USER]
    }


@pytest.mark.parametrize("tools", [{}, {"tools": []}])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}])
def test_without_tools_a_call_cannot_be_required(tools: dict[str, object], choice: object) -> None:
    with pytest.raises(ValueError, match="requires at least one tool") as caught:
        converted(input=[USER], tool_choice=choice, **tools)
    assert isinstance(caught.value, RequestError)


def test_with_tools_the_choice_is_kept() -> None:
    chat = converted(input=[USER], tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("required", False)


def test_a_named_function_is_nested_as_chat_wants_it() -> None:
    chat = converted(input=[USER], tools=[TOOL], tool_choice={"type": "function", "name": "f"})
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools.1.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True}, "background"),
        ({"n": 2}, "n"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_what_a_chat_request_cannot_say_is_refused_by_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        converted(input=[USER], **fields)
    assert caught.value.param == param


def test_what_asks_for_nothing_special_passes() -> None:
    chat = converted(input=[USER], truncation="disabled", top_logprobs=None, max_tool_calls=3)
    assert chat == {"messages": [USER]}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("parts", [{}, {"id": "msg_1", "content": [{"type": "output_text", "text": "x"}]}])
def test_reasoning_in_a_field_of_an_assistant_message_is_kept(field: str, parts: dict[str, object]) -> None:
    assert messages(USER, said("x") | parts | {field: "hm"}) == [USER, said("<think>hm</think>x")]


@pytest.mark.parametrize("items", [[], [reasoning()]])
def test_an_input_without_a_message_is_refused(items: list[object]) -> None:
    with pytest.raises(RequestError) as caught:
        converted(input=items)
    assert caught.value.param == "input"


# Token ids


def test_ids_on_an_item_reach_its_message_by_reference() -> None:
    fields = untouchable_triple()
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": [USER, said("a", **fields)]})
    chat = CONVERTER.responses_to_chat_completion_create_params(params)
    assert isinstance(chat, NeMoGymChatCompletionCreateParamsNonStreaming)
    message = dict(chat.messages[1])
    assert all(message[name] is fields[name] for name in TOKEN_FIELDS)


def test_empty_prompt_ids_are_ids() -> None:
    empty: dict[str, object] = {name: [] for name in TOKEN_FIELDS}
    assert messages(said("a", **empty)) == [said("a", **empty)]


def test_routed_experts_go_with_the_ids() -> None:
    assert messages(said("a", **triple(3), routed_experts="AAEC")) == [
        said("a", **triple(3), routed_experts="AAEC")
    ]


def test_a_later_turn_without_ids_does_not_inherit_them() -> None:
    assert messages(said("a", **triple(3)), USER, said("b")) == [said("a", **triple(3)), USER, said("b")]


def test_two_turns_with_nothing_between_are_two_messages_each_with_its_own_ids() -> None:
    assert messages(
        said("a", **triple(3)), reasoning("hm"), said("b", **triple(4)), said("c", **triple(5))
    ) == [
        said("a", **triple(3)),
        said("<think>hm</think>b", **triple(4)),
        said("c", **triple(5)),
    ]


def test_a_turn_after_a_closed_one_does_not_inherit_its_ids_without_a_message_between() -> None:
    assert messages(said("a", **triple(3)), said("b")) == [said("a", **triple(3)), said("b")]


def test_a_turn_with_ids_and_no_text_stays_a_message() -> None:
    empty = {"role": "assistant", "content": None}
    assert messages(said("", **triple(3)), USER, reasoning() | triple(4), USER) == [
        empty | triple(3),
        USER,
        empty | triple(4),
        USER,
    ]


def test_ids_on_a_message_that_was_not_sampled_belong_to_no_turn() -> None:
    assert messages(USER | triple(3), said("a")) == [USER, said("a")]
    assert messages(CALL_OUTPUT | triple(3), said("a"))[1:] == [said("a")]  # type: ignore[index]


def test_without_training_the_ids_stay_behind_but_the_turns_stay_apart() -> None:
    converter = ResponsesConverter(return_token_id_information=False)
    assert messages(said("a", **triple(3)), said("b", **triple(4)), converter=converter) == [
        said("a"),
        said("b"),
    ]


def test_a_part_of_a_triple_never_gets_to_the_converter() -> None:
    with pytest.raises(ValidationError, match="generation_log_probs"):
        messages(said("a", prompt_token_ids=[1], generation_token_ids=[2]))


def test_the_callers_request_is_not_changed() -> None:
    fields = {
        "input": [
            {"role": "system", "content": [{"type": "input_text", "text": "s"}]},
            {"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]},
            reasoning("hm"),
            CALL | triple(3),
            CALL_OUTPUT,
        ],
        "tools": [TOOL],
        "instructions": "i",
    }
    before = copy.deepcopy(fields)
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate(fields)
    dumped = params.model_dump(exclude_unset=True)
    CONVERTER.responses_to_chat_completion_create_params(params)
    assert fields == before
    assert params.model_dump(exclude_unset=True) == dumped
