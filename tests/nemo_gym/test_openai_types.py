"""The shapes, as requests and answers meet them. CI runs this file with openai 2.7.2 and with the newest
release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, ValidationError

from nemo_gym import openai_utils
from nemo_gym.openai_utils import (
    RESPONSES_TO_TRAIN,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
    NeMoGymChoice,
    NeMoGymEasyInputMessage,
    NeMoGymEasyInputMessageForTraining,
    NeMoGymFunction,
    NeMoGymFunctionCallOutput,
    NeMoGymMessage,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
    training_variant_of,
)
from nemo_gym.token_metadata import TOKEN_FIELDS
from tests.support.token_lists import triple, untouchable_triple

USER = {"role": "user", "content": "hello"}
REQUESTS = [NeMoGymChatCompletionCreateParamsNonStreaming, NeMoGymResponseCreateParamsNonStreaming]

TEXT = {"type": "output_text", "text": "hi", "annotations": []}
OUTPUT_MESSAGE = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "status": "completed",
    "content": [TEXT],
}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
CALL_OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}
PARTS = [{"type": "input_text", "text": "hello"}]


def request(kind: type[BaseModel], **fields: object) -> BaseModel:
    content = (
        {"messages": [USER]} if kind is NeMoGymChatCompletionCreateParamsNonStreaming else {"input": "hello"}
    )
    return kind.model_validate(content | fields)


def responses_request(*items: object) -> NeMoGymResponseCreateParamsNonStreaming:
    return NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": list(items)})


def chat_request(*messages: object) -> NeMoGymChatCompletionCreateParamsNonStreaming:
    return NeMoGymChatCompletionCreateParamsNonStreaming.model_validate({"messages": list(messages)})


def chat_completion(message: Mapping[str, object], **choice: object) -> dict[str, object]:
    choices = [{"index": 0, "finish_reason": "stop", "message": message} | choice]
    return {"id": "c", "created": 1, "model": "m", "object": "chat.completion", "choices": choices}


def response(*output: object) -> dict[str, object]:
    fields = {"id": "r", "created_at": 1, "model": "m", "object": "response", "parallel_tool_calls": True}
    return fields | {"output": list(output), "tool_choice": "auto", "tools": []}


def problems(caught: pytest.ExceptionInfo[ValidationError]) -> dict[str, str]:
    """What pydantic complained about, by path as a caller writes it."""
    return {".".join(map(str, error["loc"])): error["msg"] for error in caught.value.errors()}


# Names


def test_every_name_of_gyms_module_is_here() -> None:
    """The names of `nemo_gym.openai_utils` in nemo-gym 0.4.0, and those that Gym's main added since."""
    messages = ["UserMessageParam", "SystemMessageParam", "DeveloperMessageParam", "ToolMessageParam"]
    messages += ["AssistantMessageParam", "AssistantMessageForTrainingParam", "MessageParam", "ToolParam"]
    messages += ["MessageToolCall", "MessageToolCallParam", "MessageToolCallFunctionParam", "Message"]
    messages += ["ContentPartParam", "ContentPartTextParam", "ContentPartImageParam", "MessageForTraining"]
    messages += ["CreateParamsNonStreaming", ""]
    responses = [
        "ReasoningItem",
        "OutputText",
        "OutputRefusal",
        "OutputMessage",
        "FunctionToolCall",
        "InputText",
    ]
    responses += [
        "Usage",
        "InputTokensDetails",
        "OutputTokensDetails",
        "Input",
        "InputItem",
        "OutputItem",
        "",
    ]
    responses += ["CreateParamsNonStreaming", "OutputMessageForTraining", "FunctionToolCallForTraining"]
    responses += ["ReasoningItemForTraining"]
    others = [
        "Summary",
        "Content",
        "EasyInputMessage",
        "EasyInputMessageForTraining",
        "Message",
        "AsyncOpenAI",
    ]
    others += ["MessageForTraining", "FunctionCallOutput", "Function", "Choice", "FunctionDefinition"]
    others += ["FunctionToolParam", "McpCall", "McpListTools", "McpApprovalRequest"]
    names = {f"NeMoGymChatCompletion{name}" for name in messages} | {
        f"NeMoGymResponse{name}" for name in responses
    }
    names |= {f"NeMoGym{name}" for name in others}
    names |= {
        "TokenIDLogProbMixin",
        "TokenIDLogProbTypedDictMixin",
        "RESPONSES_TO_TRAIN",
        "training_variant_of",
    }
    names |= {"RATE_LIMIT_ERROR_CODES", "RETRY_ERROR_CODES"}
    assert sorted(name for name in names if not hasattr(openai_utils, name)) == []
    assert sorted(names - set(openai_utils.__all__)) == []


@pytest.mark.parametrize("plain", list(RESPONSES_TO_TRAIN))
def test_a_training_variant_is_the_plain_class_with_the_triple(plain: type[BaseModel]) -> None:
    variant = training_variant_of(plain)
    assert issubclass(variant, plain)
    assert set(TOKEN_FIELDS) <= set(variant.model_fields)


def test_a_class_without_a_training_variant_is_named() -> None:
    with pytest.raises(NotImplementedError, match="NeMoGymFunctionCallOutput"):
        training_variant_of(NeMoGymFunctionCallOutput)


# Both requests


@pytest.mark.parametrize("kind", REQUESTS)
def test_sampling_extensions_are_accepted_by_name(kind: type[BaseModel]) -> None:
    """What the openai client sends for `extra_body={"top_k": 20, ...}`."""
    sent = {"top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 2, "stop_token_ids": [7]}
    sent |= {"stop_regex": "a+", "ignore_eos": True, "no_stop_trim": False, "skip_special_tokens": False}
    sent |= {
        "regex": "a|b",
        "ebnf": "root ::= 'a'",
        "seed": 3,
        "stop": ["x"],
        "logit_bias": {"5": -1.5},
        "n": 1,
    }
    sent |= {"frequency_penalty": 0.5, "presence_penalty": -0.5, "response_format": {"type": "json_object"}}
    sent |= {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0, "top_p": 1}
    dumped = request(kind, **sent).model_dump(exclude_unset=True)
    assert {name: dumped[name] for name in sent} == sent


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("name", ["extra_body", "top_kk", "functions"])
def test_an_unknown_field_is_refused_by_name(kind: type[BaseModel], name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        request(kind, **{name: {}})
    assert list(problems(caught)) == [name]


@pytest.mark.parametrize("kind", REQUESTS)
def test_fields_of_openai_that_are_not_interpreted_are_accepted(kind: type[BaseModel]) -> None:
    sent = {"user": "u", "store": True, "service_tier": "flex", "safety_identifier": "s"}
    sent |= {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "stream_options": None}
    dumped = request(kind, **sent).model_dump(exclude_unset=True)
    assert {name: dumped[name] for name in sent} == sent


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("metadata", [None, {"a": None}, {"a": "b"}])
def test_null_metadata_and_null_values_are_tolerated(kind: type[BaseModel], metadata: object) -> None:
    assert request(kind, metadata=metadata).model_dump(exclude_unset=True)["metadata"] == metadata


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("stream", [None, False])
def test_a_request_without_streaming_may_say_so(kind: type[BaseModel], stream: object) -> None:
    assert request(kind, stream=stream).model_dump(exclude_unset=True)["stream"] is stream


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("stream", [True, "x", 0])
def test_a_request_to_stream_hears_that_it_is_not_supported(kind: type[BaseModel], stream: object) -> None:
    with pytest.raises(ValidationError) as caught:
        request(kind, stream=stream)
    assert "streaming is not supported" in problems(caught)["stream"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (NeMoGymChatCompletionCreateParamsNonStreaming, "max_tokens"),
        (NeMoGymChatCompletionCreateParamsNonStreaming, "max_completion_tokens"),
        (NeMoGymResponseCreateParamsNonStreaming, "max_output_tokens"),
    ],
)
def test_a_limit_of_new_tokens_is_a_count(kind: type[BaseModel], name: str) -> None:
    assert request(kind, **{name: 0}).model_dump(exclude_unset=True)[name] == 0
    for bad in (-1, True, "8", 1.5):
        with pytest.raises(ValidationError) as caught:
            request(kind, **{name: bad})
        assert list(problems(caught)) == [name]


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("bad", ["0.7", True, float("nan")])
def test_a_temperature_is_a_finite_number(kind: type[BaseModel], bad: object) -> None:
    with pytest.raises(ValidationError) as caught:
        request(kind, temperature=bad)
    assert list(problems(caught)) == ["temperature"]


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_error_text_does_not_show_what_was_sent(kind: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as caught:
        request(kind, temperature="a secret prompt")
    assert "secret" not in str(caught.value)


# Chat requests


def test_a_chat_dump_holds_only_what_the_caller_sent() -> None:
    params = request(NeMoGymChatCompletionCreateParamsNonStreaming, max_tokens=8)
    assert params.model_dump(exclude_unset=True) == {"messages": [USER], "max_tokens": 8}


def test_a_conversation_needs_a_message() -> None:
    with pytest.raises(ValidationError) as caught:
        chat_request()
    assert list(problems(caught)) == ["messages"]


@pytest.mark.parametrize("role", ["user", "system", "developer", "assistant"])
@pytest.mark.parametrize("content", ["text", None, [{"type": "text", "text": "a"}]])
def test_messages_of_each_role_keep_their_content(role: str, content: object) -> None:
    message = {"role": role, "content": content}
    assert chat_request(message).messages == [message]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": "a", "tool_calls": None, "refusal": None, "annotations": []},
        {"role": "assistant", "content": "a", "reasoning_content": "thought", "audio": None},
        {"role": "tool", "content": "42", "tool_call_id": "c1", "name": "f"},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}}],
        },
        {"role": "user", "content": [{"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,"}}]},
    ],
)
def test_messages_as_agents_send_them_back_lose_nothing(message: object) -> None:
    assert chat_request(message).model_dump(exclude_unset=True)["messages"] == [message]


@pytest.mark.parametrize(
    ("message", "path", "said"),
    [
        ({"role": "robot", "content": "x"}, "messages.1", "got robot"),
        ({"content": "x"}, "messages.1", "got nothing"),
        ("x", "messages.1", "got a message of kind str"),
        ({"role": "user"}, "messages.1.content", "required"),
        ({"role": "user", "content": 3}, "messages.1.content", "got a value of kind int"),
        ({"role": "user", "content": [{"type": "smell"}]}, "messages.1.content.0", "got smell"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages.1.content.0.text", "required"),
        ({"role": "tool", "content": "x"}, "messages.1.tool_call_id", "required"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}]},
            "messages.1.tool_calls.0.function.arguments",
            "required",
        ),
    ],
)
def test_a_bad_message_is_named_by_index_and_field(message: object, path: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat_request(USER, message)
    assert list(problems(caught)) == [path]
    assert said in problems(caught)[path]


@pytest.mark.parametrize("missing", TOKEN_FIELDS)
def test_a_partial_triple_on_a_chat_message_is_refused(missing: str) -> None:
    partial = {name: value for name, value in triple(3).items() if name != missing}
    with pytest.raises(ValidationError) as caught:
        chat_request(USER, {"role": "assistant", "content": "a"} | partial)
    assert list(problems(caught)) == [f"messages.1.{missing}"]


def test_a_triple_on_a_chat_message_is_carried_untouched() -> None:
    fields = untouchable_triple()
    params = chat_request(USER, {"role": "assistant", "content": "a"} | fields)
    carried, dumped = params.messages[1], params.model_dump(exclude_unset=True)["messages"][1]
    for name in TOKEN_FIELDS:
        assert dict(carried)[name] is fields[name]
        assert dumped[name] is fields[name]


# Chat answers


def test_an_answer_carries_its_triple_untouched() -> None:
    fields = untouchable_triple()
    completion = NeMoGymChatCompletion.model_validate(
        chat_completion({"role": "assistant", "content": "a"} | fields)
    )
    message = completion.choices[0].message
    assert isinstance(message, NeMoGymChatCompletionMessageForTraining)
    assert all(getattr(message, name) is fields[name] for name in TOKEN_FIELDS)


def test_an_answer_without_a_triple_is_a_plain_message() -> None:
    completion = NeMoGymChatCompletion.model_validate(chat_completion({"role": "assistant", "content": "a"}))
    assert type(completion.choices[0].message) is NeMoGymChatCompletionMessage
    assert "prompt_token_ids" not in completion.model_dump()["choices"][0]["message"]


@pytest.mark.parametrize("missing", TOKEN_FIELDS)
def test_a_half_filled_training_message_is_impossible(missing: str) -> None:
    partial = {name: value for name, value in triple(3).items() if name != missing}
    with pytest.raises(ValidationError) as caught:
        NeMoGymChatCompletion.model_validate(chat_completion({"role": "assistant", "content": "a"} | partial))
    assert list(problems(caught)) == [f"choices.0.message.{missing}"]
    plain = NeMoGymChatCompletionMessage.model_validate({"role": "assistant", "content": "a"} | partial)
    with pytest.raises(ValidationError):
        NeMoGymChoice.model_validate({"index": 0, "finish_reason": "stop", "message": plain})


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_a_finish_reason_is_one_of_openais(reason: str) -> None:
    answer = chat_completion({"role": "assistant", "content": "a"}, finish_reason=reason)
    assert NeMoGymChatCompletion.model_validate(answer).choices[0].finish_reason == reason


def test_abort_is_no_finish_reason() -> None:
    with pytest.raises(ValidationError, match=r"choices\.0\.finish_reason"):
        NeMoGymChatCompletion.model_validate(chat_completion({"role": "assistant"}, finish_reason="abort"))


def test_keys_of_the_engine_are_kept() -> None:
    answer = chat_completion({"role": "assistant", "content": "a", "reasoning_content": "r"}, matched_stop=7)
    dumped = NeMoGymChatCompletion.model_validate(answer | {"sglext": {"x": 1}}).model_dump()
    assert dumped["sglext"] == {"x": 1}
    assert dumped["choices"][0]["matched_stop"] == 7
    assert dumped["choices"][0]["message"]["reasoning_content"] == "r"


def test_a_training_answer_is_an_answer_for_openai() -> None:
    answer = NeMoGymChatCompletion.model_validate(
        chat_completion({"role": "assistant", "content": None, "tool_calls": None} | triple(3))
    )
    assert (
        ChatCompletion.model_validate(json.loads(answer.model_dump_json())).choices[0].finish_reason == "stop"
    )


@pytest.mark.parametrize("bad", [{"name": "f"}, {"arguments": "{}"}, {"name": "f", "arguments": {}}])
def test_a_sampled_call_needs_a_name_and_arguments_as_text(bad: object) -> None:
    with pytest.raises(ValidationError):
        NeMoGymFunction.model_validate(bad)


def test_an_answer_has_a_choice() -> None:
    with pytest.raises(ValidationError, match="choices"):
        NeMoGymChatCompletion.model_validate(chat_completion({}) | {"choices": []})


# Responses requests


def test_a_responses_dump_holds_only_what_the_caller_sent() -> None:
    sent = {"input": [USER, CALL_OUTPUT], "max_output_tokens": 8}
    assert NeMoGymResponseCreateParamsNonStreaming.model_validate(sent).model_dump(exclude_unset=True) == sent


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        (USER, NeMoGymEasyInputMessage),
        ({"type": "message", "role": "developer", "content": PARTS}, NeMoGymEasyInputMessage),
        ({"type": "message", "role": "user", "status": "completed", "content": PARTS}, NeMoGymMessage),
        ({"role": "assistant", "content": "plain text"}, NeMoGymEasyInputMessage),
        (
            {"role": "assistant", "content": [{"type": "output_text", "text": "no id"}]},
            NeMoGymEasyInputMessage,
        ),
        ({"role": "assistant", "content": None}, NeMoGymEasyInputMessage),
        ({"role": "assistant", "content": "a"} | triple(3), NeMoGymEasyInputMessageForTraining),
        (OUTPUT_MESSAGE, NeMoGymResponseOutputMessage),
        (OUTPUT_MESSAGE | triple(3), NeMoGymResponseOutputMessageForTraining),
        (REASONING, NeMoGymResponseReasoningItem),
        (REASONING | triple(3), NeMoGymResponseReasoningItemForTraining),
        (CALL, NeMoGymResponseFunctionToolCall),
        (CALL | triple(3), NeMoGymResponseFunctionToolCallForTraining),
        (CALL_OUTPUT, NeMoGymFunctionCallOutput),
        (CALL_OUTPUT | {"output": PARTS}, NeMoGymFunctionCallOutput),
        (
            {"type": "mcp_call", "name": "f", "arguments": "{}", "server_label": "s"},
            openai_utils.NeMoGymMcpCall,
        ),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": []}, openai_utils.NeMoGymMcpListTools),
        (
            {"type": "mcp_approval_request", "name": "f", "arguments": "{}", "server_label": "s"},
            openai_utils.NeMoGymMcpApprovalRequest,
        ),
    ],
)
def test_an_item_becomes_the_class_that_its_type_and_role_say(item: object, kind: type[BaseModel]) -> None:
    validated = responses_request(item).input[0]
    assert type(validated) is kind
    assert type(responses_request(validated).input[0]) is kind


@pytest.mark.parametrize(
    ("item", "path", "said"),
    [
        ({"type": "web_search_call", "id": "w"}, "input.1", "got web_search_call"),
        ({"type": "message", "role": "robot", "content": "x"}, "input.1", "role robot"),
        ({"content": "x"}, "input.1", "got none"),
        (7, "input.1", "got a value of kind int"),
        ({"role": "user", "content": 3}, "input.1.content", "got a value of kind int"),
        ({"role": "user"}, "input.1.content", "required"),
        ({"role": "user", "content": [{"type": "smell"}]}, "input.1.content.0", "got smell"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input.1.call_id", "required"),
        (CALL_OUTPUT | {"output": {"a": 1}}, "input.1.output", "got a value of kind dict"),
        (OUTPUT_MESSAGE | {"content": [{"type": "output_text"}]}, "input.1.content.0.text", "required"),
    ],
)
def test_a_bad_item_is_named_by_index_and_field(item: object, path: str, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        responses_request(USER, item)
    assert list(problems(caught)) == [path]
    assert said in problems(caught)[path]


@pytest.mark.parametrize("item", [{"role": "assistant", "content": "a"}, OUTPUT_MESSAGE, REASONING, CALL])
@pytest.mark.parametrize("missing", TOKEN_FIELDS)
def test_a_partial_triple_on_an_item_is_refused(item: dict[str, object], missing: str) -> None:
    partial = {name: value for name, value in triple(3).items() if name != missing}
    with pytest.raises(ValidationError) as caught:
        responses_request(USER, item | partial)
    assert list(problems(caught)) == [f"input.1.{missing}"]


def test_a_tool_may_leave_out_strict_and_parameters() -> None:
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    sent = request(NeMoGymResponseCreateParamsNonStreaming, tools=tools, tool_choice=None)
    assert sent.model_dump(exclude_unset=True)["tools"] == tools


# Responses answers


def test_a_response_carries_its_triple_untouched() -> None:
    fields = untouchable_triple()
    item = NeMoGymResponse.model_validate(response(OUTPUT_MESSAGE | fields)).output[0]
    assert isinstance(item, NeMoGymResponseOutputMessageForTraining)
    assert all(getattr(item, name) is fields[name] for name in TOKEN_FIELDS)
    assert NeMoGymResponse.model_validate(response(item)).output[0] is item


def test_an_output_item_must_say_its_type() -> None:
    untagged = {name: value for name, value in OUTPUT_MESSAGE.items() if name != "type"}
    assert responses_request(untagged).input
    with pytest.raises(ValidationError) as caught:
        NeMoGymResponse.model_validate(response(untagged))
    assert list(problems(caught)) == ["output.0"]


def test_a_reasoning_item_has_no_status_to_send_back() -> None:
    item = responses_request(REASONING | {"status": "completed"}).input[0]
    assert "status" not in NeMoGymResponseReasoningItem.model_validate(item).model_dump()
