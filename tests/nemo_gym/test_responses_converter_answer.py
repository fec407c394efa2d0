"""Chat answer -> Responses answer, and chat history -> Responses items."""

from __future__ import annotations

import copy
import json
from types import SimpleNamespace
from uuid import UUID

import pytest
from openai.types.responses import Response
from pydantic import ValidationError

from nemo_gym.errors import RequestError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseReasoningItem,
    NeMoGymResponseReasoningItemForTraining,
)
from nemo_gym.responses_converter import (
    ResponsesConverter,
    UnsupportedContentError,
    split_responses_input_output_items,
)
from nemo_gym.token_metadata import TOKEN_FIELDS
from tests.support.token_lists import triple, untouchable_triple

CONVERTER = ResponsesConverter(return_token_id_information=True)
PLAIN = ResponsesConverter(return_token_id_information=False)
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "name": "f"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}


@pytest.fixture(autouse=True)
def _known_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_gym.responses_converter.uuid4", lambda: UUID(int=7))


UID = f"{7:032x}"


def items(message: dict[str, object], converter: ResponsesConverter = CONVERTER) -> list[dict[str, object]]:
    """The items of an assistant message, as a dump of what was set shows them."""
    found = converter.postprocess_assistant_message_dict({"role": "assistant"} | message)
    return [item.model_dump(exclude_unset=True) for item in found]


def reasoning_item(*texts: str) -> dict[str, object]:
    summary = [{"text": text, "type": "summary_text"} for text in texts]
    return {"id": f"rs_{UID}", "summary": summary, "type": "reasoning"}


def message_item(text: str) -> dict[str, object]:
    part = {"annotations": [], "text": text, "type": "output_text"}
    return {
        "id": f"msg_{UID}",
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }


def call_item(call_id: str = "c1") -> dict[str, object]:
    fields = {
        "arguments": '{"a": 1}',
        "call_id": call_id,
        "name": "f",
        "type": "function_call",
        "id": call_id,
    }
    return fields | {"status": "completed"}


def completion(
    message: dict[str, object], finish_reason: str = "stop", **fields: object
) -> NeMoGymChatCompletion:
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant"} | message}
    answer = {"id": "c", "created": 5, "model": "served", "object": "chat.completion", "choices": [choice]}
    return NeMoGymChatCompletion.model_validate(answer | fields)


def response(answer: NeMoGymChatCompletion, **request: object) -> NeMoGymResponse:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": "hi"} | request)
    return CONVERTER.chat_completion_to_response(params, answer)


# One message


def test_closed_spans_become_one_reasoning_item_with_a_summary_each() -> None:
    assert items({"content": "<think>a</think><think>b</think> x"}) == [
        reasoning_item("a", "b"),
        message_item(" x"),
    ]


def test_without_a_reasoning_parser_the_spans_stay_in_the_text() -> None:
    converter = ResponsesConverter(return_token_id_information=True, uses_reasoning_parser=False)
    assert items({"content": "<think>a</think>x"}, converter) == [message_item("<think>a</think>x")]


def test_reasoning_in_a_field_of_its_own_is_reasoning() -> None:
    assert items({"content": "x", "reasoning_content": "a"}) == [reasoning_item("a"), message_item("x")]


@pytest.mark.parametrize("content", [None, "", []])
def test_an_empty_turn_is_an_empty_message_item(content: object) -> None:
    assert items({"content": content}) == [message_item("")]


def test_calls_follow_the_text_in_order() -> None:
    assert items({"content": "x", "tool_calls": [CALL, CALL | {"id": "c2"}]}) == [
        message_item("x"),
        call_item("c1"),
        call_item("c2"),
    ]


@pytest.mark.parametrize(
    "message", [{"tool_calls": [CALL]}, {"content": "<think>a</think>", "tool_calls": []}]
)
def test_a_turn_without_text_has_no_message_item_if_something_else_carries_it(
    message: dict[str, object],
) -> None:
    assert [item["type"] for item in items(message)] == [
        "function_call" if message["tool_calls"] else "reasoning"
    ]


def test_a_refusal_is_a_part_of_the_message_item() -> None:
    [item] = items({"content": None, "refusal": "no"})
    assert item["content"] == [{"refusal": "no", "type": "refusal"}]


def test_a_call_without_an_id_is_refused_by_place() -> None:
    with pytest.raises(RequestError) as caught:
        items({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})
    assert caught.value.param == "message.tool_calls.0"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"content": "x"}, NeMoGymResponseOutputMessageForTraining),
        ({"content": ""}, NeMoGymResponseOutputMessageForTraining),
        ({"content": "<think>a</think>"}, NeMoGymResponseReasoningItemForTraining),
        ({"content": "x", "tool_calls": [CALL]}, NeMoGymResponseFunctionToolCallForTraining),
    ],
)
def test_the_last_item_carries_the_ids_by_reference(message: dict[str, object], kind: type[object]) -> None:
    fields = untouchable_triple()
    experts = [[[1, 2]]]
    choice = completion(message | fields | {"routed_experts": experts}).choices[0]
    *others, last = CONVERTER.postprocess_chat_response(choice)
    assert type(last) is kind
    assert all(getattr(last, name) is fields[name] for name in TOKEN_FIELDS)
    assert getattr(last, "routed_experts", None) is experts
    assert not any(hasattr(item, name) for item in others for name in TOKEN_FIELDS)


def test_the_item_with_the_ids_is_otherwise_the_plain_item() -> None:
    assert items({"content": "x"} | triple(3)) == [message_item("x") | triple(3)]


def test_without_training_no_item_carries_ids() -> None:
    assert items({"content": "x"} | triple(3), PLAIN) == [message_item("x")]


def test_a_part_of_a_triple_is_not_turned_into_an_item() -> None:
    with pytest.raises(ValidationError, match="generation_log_probs"):
        items({"content": "x", "prompt_token_ids": [1], "generation_token_ids": [2]})


# The whole answer


@pytest.mark.parametrize(
    ("finish_reason", "status", "reason"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
def test_the_finish_reason_becomes_status_and_details(
    finish_reason: str, status: str, reason: str | None
) -> None:
    answer = response(completion({"content": "x"}, finish_reason))
    assert answer.status == status
    assert (answer.incomplete_details and answer.incomplete_details.reason) == reason


def test_an_answer_says_when_which_model_and_what_was_asked() -> None:
    asked = {
        "model": "policy",
        "temperature": 0.5,
        "max_output_tokens": 9,
        "metadata": {"a": None},
        "top_p": 1,
    }
    asked |= {
        "instructions": "i",
        "reasoning": {"effort": "unheard-of"},
        "user": "u",
        "truncation": "disabled",
    }
    answer = response(completion({"content": "x"}), tools=[TOOL], tool_choice="auto", **asked)
    dumped = answer.model_dump()
    assert {name: dumped[name] for name in asked} == asked
    assert (answer.id, answer.created_at, answer.object) == (f"resp_{UID}", 5, "response")
    assert dumped["tools"] == [TOOL | {"parameters": None, "strict": None}]


def test_an_answer_to_a_request_full_of_nulls_has_openais_defaults() -> None:
    nulls = dict.fromkeys(("model", "tools", "tool_choice", "parallel_tool_calls", "metadata", "text"))
    answer = response(completion({"content": "x"}), **nulls)
    assert (answer.model, answer.tools, answer.tool_choice) == ("served", [], "auto")
    assert answer.parallel_tool_calls is True


def test_usage_details_are_read_where_openai_nests_them() -> None:
    details = {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    usage = response(completion({"content": "x"}, usage=USAGE | details)).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == 4
    assert usage.output_tokens_details.reasoning_tokens == 2
    assert usage.unreported == ["input_tokens_details.cache_write_tokens"]


def test_usage_details_are_read_where_sglang_puts_them() -> None:
    flat = {"reasoning_tokens": 0, "cached_tokens": 4, "prompt_tokens_details": None}
    usage = response(completion({"content": "x"}, usage=USAGE | flat)).usage
    assert usage is not None
    assert usage.input_tokens_details.cached_tokens == 4
    assert "output_tokens_details.reasoning_tokens" not in (usage.unreported or [])


def test_counts_that_were_not_reported_are_named_instead_of_invented() -> None:
    usage = response(completion({"content": "x"}, usage=USAGE)).usage
    assert usage is not None
    assert usage.unreported == [
        "input_tokens_details.cached_tokens",
        "input_tokens_details.cache_write_tokens",
        "output_tokens_details.reasoning_tokens",
    ]


def test_the_total_is_the_engines() -> None:
    usage = response(completion({"content": "x"}, usage=USAGE | {"total_tokens": 99})).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (10, 3, 99)


def test_usage_that_was_not_reported_is_null() -> None:
    assert response(completion({"content": "x"})).usage is None


def test_openais_own_type_accepts_every_answer() -> None:
    message = {"content": "<think>a</think>x", "tool_calls": [CALL]} | triple(3)
    answer = response(completion(message, "length", usage=USAGE), tools=[TOOL], metadata={"a": "b"})
    for dumped in (answer.model_dump(mode="json"), json.loads(answer.model_dump_json())):
        accepted = Response.model_validate(dumped)
        assert accepted.output_text == "x"
        assert accepted.usage is not None


# History


def test_a_chat_history_becomes_items_of_every_role() -> None:
    history: list[dict[str, object]] = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": "<think>a</think>x", "tool_calls": [CALL]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    found = CONVERTER.chat_messages_to_responses_items(history)
    assert [type(item) for item in found] == [
        NeMoGymEasyInputMessage,
        NeMoGymEasyInputMessage,
        NeMoGymEasyInputMessage,
        NeMoGymResponseReasoningItem,
        NeMoGymResponseOutputMessage,
        NeMoGymResponseFunctionToolCall,
        NeMoGymFunctionCallOutput,
    ]
    dumped = [item.model_dump(exclude_unset=True) for item in found]
    assert dumped[2]["content"] == [{"type": "input_text", "text": "u"}]
    assert (dumped[6]["call_id"], dumped[6]["output"]) == ("c1", "42")
    assert CONVERTER.chat_completions_messages_to_responses_items(history) == found


def test_a_history_is_read_without_changing_it() -> None:
    history: list[dict[str, object]] = [
        {"role": role, "content": None} for role in ("user", "system", "assistant")
    ]
    before = copy.deepcopy(history)
    found = CONVERTER.chat_messages_to_responses_items(history)
    assert history == before
    assert [item.model_dump()["content"] for item in found[:2]] == ["", ""]


@pytest.mark.parametrize("message", [{"role": "robot", "content": "x"}, {"content": "x"}])
def test_an_unknown_role_is_refused_by_place(message: dict[str, object]) -> None:
    with pytest.raises(UnsupportedContentError, match="role") as caught:
        CONVERTER.chat_messages_to_responses_items([{"role": "user", "content": "u"}, message])
    assert caught.value.param == "messages.1"


def test_a_part_that_responses_does_not_know_is_refused_by_place() -> None:
    with pytest.raises(UnsupportedContentError, match="video_url") as caught:
        CONVERTER.chat_messages_to_responses_items([{"role": "user", "content": [{"type": "video_url"}]}])
    assert caught.value.param == "messages.0.content.0"


def responses_fields(**fields: object) -> dict[str, object]:
    params = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(
        {"messages": [{"role": "user", "content": "u"}]} | fields
    )
    dumped = CONVERTER.chat_completion_to_responses_create_params(params).model_dump(exclude_unset=True)
    return {name: value for name, value in dumped.items() if name != "input"}


def test_a_chat_request_without_tools_becomes_a_responses_request() -> None:
    assert responses_fields(tools=None, max_tokens=4, top_k=20) == {"max_output_tokens": 4, "top_k": 20}
    assert responses_fields(max_tokens=4, max_completion_tokens=5) == {"max_output_tokens": 5}


def test_a_chat_request_with_tools_becomes_a_responses_request() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    choice = {"type": "function", "function": {"name": "f"}}
    assert responses_fields(tools=tools, tool_choice=choice, parallel_tool_calls=False) == {
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
    }


def test_reasoning_effort_survives_there_and_back() -> None:
    params = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(
        {"messages": [{"role": "user", "content": "u"}], "reasoning_effort": "high", "verbosity": "low"}
    )
    responses = CONVERTER.chat_completion_to_responses_create_params(params)
    assert responses.reasoning == {"effort": "high"}
    back = CONVERTER.responses_to_chat_completion_create_params(responses)
    assert (back.reasoning_effort, back.verbosity) == ("high", "low")


# Splitting a conversation


def split(*conversation: dict[str, object]) -> tuple[int, int]:
    found = [SimpleNamespace(**fields) for fields in conversation]
    before, after = split_responses_input_output_items(found)  # type: ignore[arg-type]
    assert before + after == found
    return len(before), len(after)


USER = {"type": "message", "role": "user"}
TOOL_OUTPUT = {"type": "function_call_output"}


def test_nothing_splits_into_nothing() -> None:
    assert split() == (0, 0)


def test_a_conversation_without_an_answer_is_all_input() -> None:
    assert split(USER, USER, TOOL_OUTPUT) == (3, 0)


@pytest.mark.parametrize(
    "item",
    [{"type": "message", "role": "assistant"}, {"role": "assistant"}]
    + [
        {"type": kind} for kind in ("reasoning", "function_call", "mcp_call", "web_search_call", "shell_call")
    ],
)
def test_the_first_generated_item_begins_the_output(item: dict[str, object]) -> None:
    assert split(USER, item, TOOL_OUTPUT, USER) == (1, 3)


def test_only_a_message_is_generated_by_its_role() -> None:
    assert split(USER, TOOL_OUTPUT | {"role": "assistant"}) == (2, 0)
