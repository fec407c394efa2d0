from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.grown_list import GrownList
from sglang_model.conversation_digest import (
    DIGEST_SIZE,
    ConversationDigests,
    digest_conversation,
    digest_grown,
    digest_rendering,
)
from tests.sglang_model.test_canonical_form import JSON_VALUES
from tests.support.turns import Message, assistant, call, system, tool, user


def meaning(*messages: object) -> bytes:
    return digest_conversation(messages).semantic[-1]


def trace(*messages: object) -> bytes:
    return digest_conversation(messages).traces[-1]


CALL = call("call_1", "weather", '{"city": "Köln", "days": 3}')


def with_arguments(arguments: object) -> Message:
    return assistant(None, tool_calls=[call("call_1", "weather", arguments)])


SAME = {
    "text as one part": (user("hi"), user([{"type": "text", "text": "hi"}])),
    "a part of the Responses API": (user("hi"), user([{"type": "input_text", "text": "hi"}])),
    "null and empty content": (assistant(None, tool_calls=[CALL]), assistant("", tool_calls=[CALL])),
    "absent content": (assistant(None, tool_calls=[CALL]), {"role": "assistant", "tool_calls": [CALL]}),
    "no parts": (user(""), user([])),
    "null tool calls": (assistant("ok"), assistant("ok", tool_calls=None)),
    "empty tool calls": (assistant("ok"), assistant("ok", tool_calls=[])),
    "null fields": (user("hi"), {**user("hi"), "name": None}),
    "a cache mark that moves on": (
        user("hi"),
        user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]),
    ),
    "a cache mark on the message": (user("hi"), {**user("hi"), "cache_control": {"type": "ephemeral"}}),
    "a cache mark on an image": (
        user([{"type": "file", "file": {"id": "f"}}]),
        user([{"type": "file", "file": {"id": "f"}, "cache_control": {"type": "ephemeral"}, "x": None}]),
    ),
    "reasoning in front of an image": (
        assistant(["<think>hm</think>ab", {"type": "image_url", "image_url": "data:1"}]),
        assistant(["ab", {"type": "image_url", "image_url": "data:1"}]),
    ),
    "order of argument keys": (with_arguments('{"a":1,"b":2}'), with_arguments('{"b": 2, "a": 1}')),
    "spaces in arguments": (with_arguments('{"a":[1,2]}'), with_arguments('{ "a" : [ 1,\n2 ] }')),
    "escapes in arguments": (
        with_arguments('{"q": "你好 🚀"}'),
        with_arguments('{"q": "\\u4f60\\u597d \\ud83d\\ude80"}'),
    ),
    "1 and 1.0 in arguments": (with_arguments('{"a": 1}'), with_arguments('{"a": 1.0}')),
    "arguments as a mapping": (with_arguments('{"a": {"b": null}}'), with_arguments({"a": {"b": None}})),
    "empty arguments": (with_arguments(""), with_arguments("{}")),
    "null arguments": (with_arguments(None), with_arguments({})),
    "a streamed call's index": (
        assistant(None, tool_calls=[CALL]),
        assistant(None, tool_calls=[{**CALL, "index": 0}]),
    ),
    "a call without its type": (
        assistant(None, tool_calls=[CALL]),
        assistant(None, tool_calls=[{"id": CALL["id"], "function": CALL["function"]}]),
    ),
    "a flat call": (
        with_arguments("{}"),
        assistant(None, tool_calls=[{"id": "call_1", "name": "weather", "arguments": "{}"}]),
    ),
    "reasoning omitted": (assistant("42", reasoning_content="hm"), assistant("42")),
    "reasoning under its other name": (assistant("42", reasoning="hm"), assistant("42")),
    "reasoning in the text": (assistant("<think>hm</think>\n\n42"), assistant("42")),
    "reasoning moved into the text": (
        assistant("\n\n42", reasoning_content="hm"),
        assistant("<think>hm</think>\n\n42"),
    ),
    "reasoning that the prompt opened": (assistant("hm\n</think>\n\n42"), assistant("42")),
    "reasoning cut by length": (assistant("<think>hm, so"), assistant(None)),
    "two stretches of reasoning": (assistant("<think>a</think>4<think>b</think>2"), assistant("42")),
    "a reasoning part": (
        assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "42"}]),
        assistant("42"),
    ),
    "an answer in two parts": (
        assistant([{"type": "output_text", "text": "4"}, {"type": "output_text", "text": "2"}]),
        assistant("42"),
    ),
    "token ids sent back": (
        assistant("42", prompt_token_ids=[1], generation_token_ids=[2], generation_log_probs=[-0.5]),
        assistant("42"),
    ),
    "what only OpenAI's answer carries": (
        assistant("42", annotations=[], audio=None, function_call=None, refusal=None),
        assistant("42"),
    ),
    "a URL alone or in its mapping": (
        user([{"type": "image_url", "image_url": "https://x/a.png"}]),
        user([{"type": "image_url", "image_url": {"url": "https://x/a.png", "detail": None}}]),
    ),
}

DIFFERENT = {
    "other text": (user("hi"), user("ho")),
    "other role": (user("hi"), system("hi")),
    "developer is not system": (system("hi"), {"role": "developer", "content": "hi"}),
    "a space more from the user": (user("hi"), user("hi ")),
    "a changed answer": (assistant("42"), assistant("43")),
    "inner space of an answer": (assistant("4 2"), assistant("42")),
    "two parts and their sum": (
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        user("ab"),
    ),
    "where parts are cut": (
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]),
        user([{"type": "text", "text": "ab"}, {"type": "text", "text": "c"}]),
    ),
    "thinking of a user": (user("<think>a</think>b"), user("b")),
    "reasoning field of a user": ({**user("b"), "reasoning_content": "a"}, user("b")),
    "text behind a tag that the answer mentions": (
        assistant("write <think> before it"),
        assistant("write <think> behind it"),
    ),
    "text behind the reasoning": (assistant("<think>a</think>b"), assistant("<think>a</think>c")),
    "an argument's value": (with_arguments('{"a": 1}'), with_arguments('{"a": 2}')),
    "a number and its text": (with_arguments('{"a": 1}'), with_arguments('{"a": "1"}')),
    "a boolean and a number": (with_arguments('{"a": true}'), with_arguments('{"a": 1}')),
    "null and absent in arguments": (with_arguments('{"a": null}'), with_arguments("{}")),
    "order of a list": (with_arguments('{"a": [1, 2]}'), with_arguments('{"a": [2, 1]}')),
    "integers beyond 64 bits": (
        with_arguments('{"a": 123456789012345678901}'),
        with_arguments('{"a": 123456789012345678902}'),
    ),
    "numbers beyond floats": (with_arguments('{"a": 1e400}'), with_arguments('{"a": 2e400}')),
    "broken JSON is text": (with_arguments('{"a": 1,}'), with_arguments('{"a":1,}')),
    "text is not a JSON string": (with_arguments("a"), with_arguments('"a"')),
    "JSON in a string": (with_arguments('{"a": 1}'), with_arguments(json.dumps('{"a": 1}'))),
    "a call's name": (
        assistant(None, tool_calls=[call("c", "f", "{}")]),
        assistant(None, tool_calls=[call("c", "g", "{}")]),
    ),
    "a call's id": (
        assistant(None, tool_calls=[call("c", "f", "{}")]),
        assistant(None, tool_calls=[call("d", "f", "{}")]),
    ),
    "a call dropped": (assistant("x", tool_calls=[CALL]), assistant("x")),
    "order of calls": (
        assistant(None, tool_calls=[call("c", "f", "{}"), call("d", "g", "{}")]),
        assistant(None, tool_calls=[call("d", "g", "{}"), call("c", "f", "{}")]),
    ),
    "which call a result answers": (tool("c", "ok"), tool("d", "ok")),
    "a custom call's input": (
        assistant(None, tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f", "input": "a"}}]),
        assistant(None, tool_calls=[{"id": "c", "type": "custom", "custom": {"name": "f", "input": "b"}}]),
    ),
    "a name": (user("hi"), {**user("hi"), "name": "ann"}),
    "a key that a template may read": (tool("c", "ok"), {**tool("c", "ok"), "is_error": True}),
    "an image": (
        user([{"type": "image_url", "image_url": {"url": "data:1"}}]),
        user([{"type": "image_url", "image_url": {"url": "data:2"}}]),
    ),
    "an image in front of text and behind it": (
        assistant(["ab", {"type": "image_url", "image_url": "data:1"}]),
        assistant([{"type": "image_url", "image_url": "data:1"}, "ab"]),
    ),
    "an assistant's name": (assistant("x", name="ann"), assistant("x")),
    "a call of the old API": (assistant(None, function_call={"name": "f"}), assistant(None)),
    "an answer in sound": (assistant(None, audio={"id": "a"}), assistant(None, audio={"id": "b"})),
    "no role": ({"text": "x"}, assistant("x")),
    "a refusal": (assistant(None, refusal="no"), assistant(None)),
    "a refusal part": (assistant([{"type": "refusal", "refusal": "no"}]), assistant("no")),
    "composed and decomposed letters": (user("é"), user("e\u0301")),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_ways_to_write_one_message_have_one_digest(pair: tuple[Message, Message]) -> None:
    assert meaning(user("q"), pair[0], user("w")) == meaning(user("q"), pair[1], user("w"))


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_messages_that_mean_something_else_have_another_digest(pair: tuple[Message, Message]) -> None:
    assert meaning(user("q"), pair[0], user("w")) != meaning(user("q"), pair[1], user("w"))


def test_no_two_messages_of_the_tables_share_a_digest_across_rows() -> None:
    by_digest: dict[bytes, set[str]] = {}
    for pair in DIFFERENT.values():
        for message in pair:
            by_digest.setdefault(meaning(message), set()).add(repr(message))
    assert all(len(messages) == 1 for messages in by_digest.values())


def test_parallel_calls_answered_in_other_order_do_not_match() -> None:
    calls = assistant(None, tool_calls=[call("c", "f", "{}"), call("d", "g", "{}")])
    assert meaning(calls, tool("c", "1"), tool("d", "2")) != meaning(calls, tool("d", "2"), tool("c", "1"))


def test_every_prefix_has_the_digest_that_it_has_alone() -> None:
    messages = [system("s"), user("u"), assistant("a", reasoning="r"), tool("c", "t"), assistant("b")]
    whole = digest_conversation(messages)
    for count in range(len(messages) + 1):
        assert whole.semantic[count] == meaning(*messages[:count])
    assert whole.messages == 5
    assert whole.assistant_ends == (3, 5)
    assert {len(digest) for digest in whole.semantic} == {DIGEST_SIZE}
    assert [len(one) for one in whole.traces] == [0, 0, DIGEST_SIZE, 0, 0]


def test_a_reply_appended_is_the_conversation_with_it() -> None:
    messages = [user("u"), assistant("a"), user("v")]
    reply = assistant("b", reasoning_content="r")
    assert digest_conversation(messages).followed_by(reply) == digest_conversation([*messages, reply])
    assert digest_conversation(messages).followed_by(user("w")) == digest_conversation([*messages, user("w")])


def test_where_one_message_ends_counts() -> None:
    assert meaning(user("ab"), user("c")) != meaning(user("a"), user("bc")) != meaning(user("abc"))
    assert meaning(user("a")) != meaning(user("a"), user(""))


def test_a_trace_is_reasoning_and_outer_blanks_wherever_they_stand() -> None:
    thought = assistant("42", reasoning_content="a")
    assert (
        trace(thought) == trace(assistant("<think>\na\n</think>42")) == trace(assistant("42", reasoning="a"))
    )
    assert trace(thought) != trace(assistant("42", reasoning_content="b"))
    assert trace(assistant("42\n")) not in (trace(thought), b"")
    assert trace(user("x"), thought) == trace(thought)


def test_without_reasoning_there_is_no_trace() -> None:
    assert trace(assistant("42")) == trace(assistant(None, tool_calls=[CALL])) == b""
    assert trace({**user(" x "), "reasoning_content": "a"}) == b""


def test_digests_are_the_same_in_every_process() -> None:
    # A store outside this process holds digests of other processes and of older releases.
    assert meaning(user("hi")).hex() == "429a4ff90b6b8f340b5879b05b0c67e2"


@given(
    st.lists(
        JSON_VALUES | st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "type"]), JSON_VALUES)
    )
)
def test_no_input_raises(messages: list[object]) -> None:
    assert digest_conversation(messages).messages == len(messages)


@given(JSON_VALUES, JSON_VALUES, JSON_VALUES)
def test_no_message_raises_and_none_is_changed(content: object, calls: object, part: object) -> None:
    for role in ("user", "assistant", "tool"):
        message = {"role": role, "content": [part, {"type": part, "text": content}], "tool_calls": [calls]}
        before = copy.deepcopy(message)
        assert meaning(message) == meaning({**message, "tool_calls": (calls,)})
        assert repr(message) == repr(before)


@pytest.mark.parametrize(
    "odd",
    [
        object(),
        {"role": "assistant", "content": object()},
        {"role": "user", "content": [object()]},
        {"role": ["user"], "content": b"bytes"},
        {"role": "user", ("a", "tuple"): 1},
        assistant("x", tool_calls=[{"id": 1, "function": {"name": "f", "arguments": {1, 2}}}]),
    ],
)
def test_what_is_no_json_matches_nothing_and_raises_nothing(odd: object) -> None:
    assert meaning(odd) != meaning(odd)


def test_json_nested_too_deeply_to_read_compares_as_text() -> None:
    deep = "[" * 100_000
    assert (
        meaning(with_arguments(deep)) == meaning(with_arguments(deep)) != meaning(with_arguments(deep + "["))
    )


def test_a_hundred_thousand_unclosed_tags_take_no_quadratic_time() -> None:
    assert meaning(assistant("a" + "<think>" * 100_000)) != meaning(assistant("a"))


def test_no_tools_and_no_kwargs_have_one_digest() -> None:
    assert digest_rendering(None, None) == digest_rendering([], {}) == digest_rendering((), None, {"x": None})


def test_order_of_keys_does_not_change_the_rendering_but_order_of_tools_does() -> None:
    left = {"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2}}}
    same = {"function": {"parameters": {"b": 2, "a": 1}, "name": "f"}, "type": "function"}
    other = {"type": "function", "function": {"name": "g"}}
    assert digest_rendering([left, other], None) == digest_rendering([same, other], None)
    assert digest_rendering([left, other], None) != digest_rendering([other, left], None)
    assert digest_rendering([left], None) != digest_rendering([left, other], None)


def test_template_inputs_change_the_rendering() -> None:
    digests = {
        digest_rendering(None, None),
        digest_rendering(None, {"enable_thinking": True}),
        digest_rendering(None, {"enable_thinking": False}),
        digest_rendering(None, None, {"enable_thinking": False}),
        digest_rendering([{"enable_thinking": False}], None),
    }
    assert len(digests) == 5


def test_an_empty_conversation_has_a_digest() -> None:
    assert digest_conversation([]) == ConversationDigests((bytes(DIGEST_SIZE),), (), ())


def test_where_parts_stand_in_the_visible_text_is_found_in_one_pass() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}

    def turn(*parts: object) -> dict[str, object]:
        return {
            "role": "assistant",
            "content": [{"type": "text", "text": p} if isinstance(p, str) else p for p in parts],
        }

    assert meaning(turn(" a ", image, "b")) == meaning(turn("a", image, " b"))
    assert meaning(turn("a", image, "b")) != meaning(turn("ab", image))
    assert meaning(turn("<think>t</think>a", image, "b")) == meaning(turn("a", image, "b"))
    assert meaning(turn("a" * 300_000, *[image] * 3_000)) != meaning(turn("a" * 300_000, *[image] * 2_999))


MESSAGES = st.lists(
    st.one_of(
        st.builds(user, st.sampled_from(["a", "b", ""])),
        st.builds(assistant, st.sampled_from(["a", "<think>t</think>b"])),
        st.just({"role": "assistant", "content": None, "tool_calls": [call("c", "look", {"a": 1})]}),
        st.just(tool("c", "r")),
        st.sampled_from([1, None, "text", {"n": 10**30}]),
    ),
    max_size=4,
)


@given(st.lists(MESSAGES, max_size=5))
def test_a_list_that_grew_has_the_digests_that_it_would_have_had(stretches: list[list[object]]) -> None:
    messages: GrownList[object] = GrownList()
    for stretch in stretches:
        messages = GrownList([*messages, *stretch], known=len(messages), before=messages.made)
        assert digest_grown(messages) == digest_conversation(messages)
