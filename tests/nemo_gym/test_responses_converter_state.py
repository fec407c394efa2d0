from __future__ import annotations

from nemo_gym.reasoning import extract_reasoning_from_content, wrap_reasoning_in_think_tags
from nemo_gym.responses_converter import (
    ResponsesConverter,
    ResponsesConverterState,
    VLLMConverter,
    VLLMConverterResponsesToChatCompletionsState,
)
from nemo_gym.token_metadata import TOKEN_FIELDS, TokenIDLogProbMixin
from tests.support.token_lists import triple, untouchable_triple


def state(*, training: bool = True) -> ResponsesConverterState:
    return ResponsesConverterState(return_token_id_information=training)


def tokens(generated: int) -> TokenIDLogProbMixin:
    return TokenIDLogProbMixin.model_validate(triple(generated))


def test_gyms_names_are_the_same_objects() -> None:
    assert VLLMConverter is ResponsesConverter
    assert VLLMConverterResponsesToChatCompletionsState is ResponsesConverterState


def test_wrapping_reasoning_skips_empty_texts() -> None:
    assert wrap_reasoning_in_think_tags(["a", "", "b"]) == "<think>a</think><think>b</think>"
    assert ResponsesConverter._wrap_reasoning_in_think_tags(["", ""]) == ""


def test_every_closed_span_is_taken_out_and_whitespace_stays() -> None:
    content = "<think>\na\n</think>\n\nx <think>b</think>y"
    assert extract_reasoning_from_content(content) == (["\na\n", "b"], "\n\nx y")


def test_reasoning_that_is_not_closed_is_not_guessed() -> None:
    for content in ("no tags", "step</think>answer", "<think>cut off"):
        assert extract_reasoning_from_content(content) == ([], content)


def test_flushing_nothing_makes_no_message() -> None:
    empty = state()
    empty.flush_assistant()
    assert empty.messages == []


def test_a_flushed_turn_is_a_plain_message_without_an_empty_tool_call_list() -> None:
    turn = state()
    turn.content_buffer = "hello"
    turn.flush_assistant()
    assert turn.messages == [{"role": "assistant", "content": "hello"}]
    assert (turn.content_buffer, turn.tool_calls_buffer) == ("", [])


def test_a_flushed_turn_with_ids_carries_them_by_reference() -> None:
    fields = untouchable_triple()
    turn = state()
    turn.content_buffer = "hello"
    turn.token_information = TokenIDLogProbMixin.model_validate(fields | {"routed_experts": "AAEC"})
    turn.flush_assistant()
    message = dict(turn.messages[0])
    assert all(message[name] is fields[name] for name in TOKEN_FIELDS)
    assert message["routed_experts"] == "AAEC"


def test_without_training_no_message_carries_ids() -> None:
    turn = state(training=False)
    turn.content_buffer = "hello"
    turn.token_information = tokens(3)
    turn.flush_assistant()
    assert turn.messages == [{"role": "assistant", "content": "hello"}]


def test_ids_do_not_leak_into_a_later_message() -> None:
    turn = state()
    turn.content_buffer = "first"
    turn.token_information = tokens(3)
    turn.flush_assistant()
    turn.content_buffer = "second"
    turn.flush_assistant()
    assert turn.messages == [
        {"role": "assistant", "content": "first"} | triple(3),
        {"role": "assistant", "content": "second"},
    ]


def test_ids_without_a_turn_are_forgotten_by_a_flush() -> None:
    turn = state()
    turn.token_information = tokens(3)
    turn.flush_assistant()
    assert turn.messages == []
    assert turn.token_information is None
    turn.content_buffer = "later"
    turn.flush_assistant()
    assert turn.messages == [{"role": "assistant", "content": "later"}]


def test_an_item_without_text_still_asks_for_its_message() -> None:
    turn = state()
    turn.assistant_item_buffered = True
    turn.token_information = tokens(3)
    turn.flush_assistant()
    turn.flush_assistant()
    assert turn.messages == [{"role": "assistant", "content": None} | triple(3)]
