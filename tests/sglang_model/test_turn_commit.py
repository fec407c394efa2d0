"""What is remembered of a finished completion, and what a caller without ids gets of it."""

from __future__ import annotations

import pytest

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
)
from sglang_model.conversation_digest import digest_conversation
from sglang_model.turn_commit import doubtful_stop, finished_turn, without_token_ids
from tests.support.turns import call

EOS = 9
TRIPLE = {"prompt_token_ids": [1, 2], "generation_token_ids": [3, EOS], "generation_log_probs": [-0.5, -0.25]}


def completion(finish: str = "stop", matched: object = EOS, **message: object) -> NeMoGymChatCompletion:
    choice = {
        "index": 0,
        "finish_reason": finish,
        "matched_stop": matched,
        "message": {"role": "assistant", "content": "hi", **TRIPLE, **message},
    }
    answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return NeMoGymChatCompletion.model_validate(answer)


def without_ids() -> NeMoGymChatCompletion:
    made = completion()
    made.choices[0].message = without_token_ids(made.choices[0].message)
    return made


def test_a_turn_is_its_ids_its_end_and_its_reply_as_the_client_will_send_it():
    turn = finished_turn(completion(routed_experts="AAEC"), {}, set())
    assert turn is not None
    assert (turn.prompt_token_ids, turn.generation_token_ids) == ([1, 2], [3, EOS])
    assert (turn.finish, turn.stop_token_id) == ("stop", EOS)
    assert turn.reply == {"role": "assistant", "content": "hi"}


def test_the_reply_of_a_call_means_the_same_as_what_comes_back():
    calls = [call("c1", "look", '{"a": 1}')]
    made = completion("tool_calls", None, content=None, tool_calls=calls)
    turn = finished_turn(made, {}, set())
    assert turn is not None
    sent_back = {"role": "assistant", "content": "", "tool_calls": [call("c1", "look", '{"a":1}')]}
    assert digest_conversation([turn.reply]).semantic == digest_conversation([sent_back]).semantic


@pytest.mark.parametrize(
    "made",
    [
        without_ids(),
        completion("length", None, generation_token_ids=[], generation_log_probs=[]),
    ],
    ids=["without ids", "a prompt that did not fit"],
)
def test_what_was_not_sampled_is_not_remembered(made):
    assert finished_turn(made, {}, set()) is None


def test_an_empty_answer_that_stopped_is_a_turn():
    """Under a stop token that came first; nothing of it is a prompt that did not fit."""
    made = completion("stop", "x", generation_token_ids=[], generation_log_probs=[])
    turn = finished_turn(made, {"stop": ["x"]}, set())
    assert turn is not None
    assert turn.stop_token_id is None


def test_a_stop_string_is_no_stop_token():
    turn = finished_turn(completion("stop", "x"), {"stop": ["x"]}, set())
    assert turn is not None
    assert turn.stop_token_id is None


@pytest.mark.parametrize("body", [{"stop": "x"}, {"stop": ["x"]}, {"stop_regex": "x+"}])
def test_behind_a_tool_parse_it_is_doubtful_whether_a_stop_string_ended_the_turn(body):
    made = completion("tool_calls", None)
    assert doubtful_stop(made, body) == EOS
    turn = finished_turn(made, body, set())
    assert turn is not None
    assert turn.stop_token_id is None
    known = finished_turn(made, body, {EOS})
    assert known is not None
    assert known.stop_token_id == EOS


@pytest.mark.parametrize(
    ("made", "body"),
    [
        (completion("tool_calls", None), {}),
        (completion("tool_calls", None), {"stop": []}),
        (completion("stop", EOS), {"stop": ["x"]}),
        (completion("stop", "x"), {"stop": ["x"]}),
        (completion("length", None), {"stop": ["x"]}),
        (completion("tool_calls", None, generation_token_ids=[], generation_log_probs=[]), {"stop": ["x"]}),
        (without_ids(), {"stop": ["x"]}),
    ],
)
def test_nothing_is_doubtful_about_any_other_end(made, body):
    assert doubtful_stop(made, body) is None


def test_a_bool_is_no_matched_token():
    turn = finished_turn(completion("stop", True), {"stop": ["x"]}, set())
    assert turn is not None
    assert turn.stop_token_id is None


def test_a_caller_without_ids_gets_the_same_message_without_them():
    message = completion(routed_experts="AAEC", tool_calls=[call("c1", "look", "{}")]).choices[0].message
    assert isinstance(message, NeMoGymChatCompletionMessageForTraining)
    plain = without_token_ids(message)
    assert type(plain) is NeMoGymChatCompletionMessage
    dumped = plain.model_dump(exclude_unset=True)
    assert dumped["content"] == "hi"
    assert dumped["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert not {*TRIPLE, "routed_experts"} & dumped.keys()
