"""Requests read with a memo against the plain way: whatever was sent before, the same model or the same error.

The same but for the ids of earlier turns, which are let go where items are kept.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from typing import cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from starlette.requests import Request
from starlette.types import Message as ASGIMessage

from nemo_gym.errors import RequestError
from nemo_gym.grown_list import GrownList, Made, mapped
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.request_body import Remembered, read_model
from nemo_gym.request_memo import RequestMemo
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.token_metadata import TOKEN_FIELDS
from tests.support.turns import assistant, call, tool, user

Json = dict[str, object]
FIELDS: dict[type[BaseModel], str] = {
    NeMoGymResponseCreateParamsNonStreaming: "input",
    NeMoGymChatCompletionCreateParamsNonStreaming: "messages",
}
CONVERTER = ResponsesConverter(return_token_id_information=True, forwards_token_ids=False)


def read(
    memo: RequestMemo | None, raw: bytes, model_class: type[BaseModel], conversation: str = "s"
) -> BaseModel:
    async def receive() -> ASGIMessage:
        return {"type": "http.request", "body": raw, "more_body": False}

    request = Request({"type": "http", "method": "POST", "headers": []}, receive)
    earlier = None if memo is None else Remembered(memo, conversation, FIELDS[model_class])
    return asyncio.run(read_model(request, model_class, max_request_bytes=10**7, earlier=earlier))


def outcome(memo: RequestMemo | None, raw: bytes, model_class: type[BaseModel]) -> object:
    """Everything that a handler can see of a request but the ids in it, or the words of its refusal."""
    try:
        model = read(memo, raw, model_class)
    except RequestError as error:
        return error.message, error.param
    field = FIELDS[model_class]
    items = getattr(model, field)
    dumped = model.model_dump()
    dumped[field] = [emptied(item) for item in dumped[field]]
    return dumped, model.model_fields_set, [type(item) for item in items]


def emptied(item: Json) -> Json:
    return {name: [] if name in TOKEN_FIELDS and value is not None else value for name, value in item.items()}


def in_chat(raw: bytes, memo: RequestMemo | None) -> object:
    """The chat request that is made of it."""
    try:
        params = cast(
            "NeMoGymResponseCreateParamsNonStreaming",
            read(memo, raw, NeMoGymResponseCreateParamsNonStreaming),
        )
        return CONVERTER.responses_to_chat_completion_create_params(params).model_dump(exclude_unset=True)
    except RequestError as error:
        return error.message, error.param


def triple(start: int, count: int = 2, log_probs: int | None = None) -> Json:
    return {
        "prompt_token_ids": list(range(start)),
        "generation_token_ids": list(range(count)),
        "generation_log_probs": [-0.5] * (count if log_probs is None else log_probs),
    }


def reply(text: str, **ids: object) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **ids,
    }


TEXTS = st.sampled_from(["a", "é\n", '"input":[', '\\"messages\\":[1', "]}", ",", "<think>b</think>c", ""])
IDS = st.one_of(
    st.just({}),
    st.builds(triple, st.integers(1, 4)),
    st.just({"prompt_token_ids": None}),
)
ODD_IDS = st.sampled_from(
    [
        triple(2, 2, 3),
        {"prompt_token_ids": [1], "generation_token_ids": [1]},
        {**triple(1), "generation_token_ids": [[1], 2]},
        {"nested": triple(3)},
    ]
)


def often(usual: st.SearchStrategy[object], odd: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Conversations are remembered while they are valid, so what is odd must be rare."""
    return st.integers(0, 11).flatmap(lambda drawn: usual if drawn else odd)


ITEMS = often(
    st.one_of(
        st.builds(user, TEXTS),
        st.builds(user, st.just([{"type": "input_text", "text": "p"}])),
        st.builds(lambda text, ids: reply(text, **ids), TEXTS, IDS),
        st.builds(lambda ids: assistant("x", **ids), IDS),
        st.builds(
            lambda ids: {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", **ids}, IDS
        ),
        st.builds(lambda text: {"type": "function_call_output", "call_id": "c", "output": text}, TEXTS),
        st.just({"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]}),
        st.just({"role": "system", "content": "s"}),
    ),
    st.one_of(
        st.builds(lambda ids: reply("x", **ids), ODD_IDS),
        st.builds(lambda ids: user("x") | ids, ODD_IDS),
        st.builds(
            lambda ids: {"type": "function_call_output", "call_id": "c", "output": "o", **ids}, IDS | ODD_IDS
        ),
        st.sampled_from([{"type": "unknown"}, 7, None, {"role": "user"}]),
    ),
)
MESSAGES = often(
    st.one_of(
        st.builds(user, TEXTS),
        st.builds(lambda text, ids: assistant(text, **ids), TEXTS, IDS),
        st.just({"role": "assistant", "content": None, "tool_calls": [call("c", "look", "{}")]}),
        st.builds(lambda text: tool("c", text), TEXTS),
    ),
    st.one_of(
        st.builds(lambda ids: assistant("x", **ids), ODD_IDS),
        st.builds(lambda ids: user("u") | ids, IDS | ODD_IDS),
        st.sampled_from([{"role": "system", "content": "s"}, {"role": "odd"}, 7]),
    ),
)
OPTIONS = st.sampled_from(
    [
        {},
        {"temperature": 0.5},
        {"metadata": {"input": "[", "messages": "x"}},
        {"tools": []},
        {"unheard_of": 1},
    ]
)
LAYOUTS = st.sampled_from(
    ["compact", "spaced", "indented", "list first", "doubled", "doubled empty", "broken"]
)
GROWTH = st.sampled_from(["grow", "grow", "grow", "grow", "edit", "cut", "other ids", "again"])


def written(items: Sequence[object], options: Json, field: str, layout: str) -> bytes:
    body = {field: items, **options} if layout == "list first" else {**options, field: items}
    if layout in ("compact", "list first"):
        return orjson.dumps(body)
    if layout in ("spaced", "indented"):
        return json.dumps(body, indent=2 if layout == "indented" else None).encode()
    raw = orjson.dumps(body)
    if layout == "broken":
        return raw[:-2]
    twice = [] if layout == "doubled empty" else items[:1]
    return raw[:-1] + b"," + orjson.dumps({field: twice})[1:]


@st.composite
def conversations(draw: st.DrawFn, element: st.SearchStrategy[object], field: str) -> list[bytes]:
    items: list[object] = draw(st.lists(element, min_size=2, max_size=5))
    layout, options = draw(LAYOUTS), draw(OPTIONS)
    requests = [written(items, options, field, layout)]
    for step in draw(st.lists(GROWTH, min_size=1, max_size=5)):
        if step == "grow":
            items = [*items, *draw(st.lists(element, min_size=1, max_size=3))]
        elif step == "edit":
            items = [*items[:1], draw(element), *items[2:]]
        elif step == "cut":
            items = items[: max(1, len(items) - 2)]
        elif step == "other ids":
            items = [
                item | triple(9) if isinstance(item, dict) and "prompt_token_ids" in item else item
                for item in items
            ]
        if draw(st.integers(0, 5)) == 0:
            layout, options = draw(LAYOUTS), draw(OPTIONS)
        requests.append(written(items, options, field, layout))
    return requests


@given(conversations(ITEMS, "input"))
def test_a_responses_request_is_read_as_without_what_was_sent_before(requests: list[bytes]) -> None:
    memo = RequestMemo(fewest_items=2)
    for raw in requests:
        plain = outcome(None, raw, NeMoGymResponseCreateParamsNonStreaming)
        assert outcome(memo, raw, NeMoGymResponseCreateParamsNonStreaming) == plain


@given(conversations(MESSAGES, "messages"))
def test_a_chat_request_is_read_as_without_what_was_sent_before(requests: list[bytes]) -> None:
    memo = RequestMemo(fewest_items=2)
    for raw in requests:
        plain = outcome(None, raw, NeMoGymChatCompletionCreateParamsNonStreaming)
        assert outcome(memo, raw, NeMoGymChatCompletionCreateParamsNonStreaming) == plain


@given(conversations(ITEMS, "input"), st.sampled_from([None, "be brief"]))
def test_the_chat_request_made_of_it_is_the_same_too(requests: list[bytes], instructions: str | None) -> None:
    memo = RequestMemo(fewest_items=2)
    for raw in requests:
        sent = raw if instructions is None else raw.replace(b"{", b'{"instructions":"be brief",', 1)
        assert in_chat(sent, memo) == in_chat(sent, None)


def conversation(turns: int, *, ids: bool = False) -> list[object]:
    items: list[object] = [{"role": "system", "content": "s"}, user("u")]
    for turn in range(turns):
        items += [reply(f"r{turn}", **(triple(turn + 1) if ids else {})), user(f"u{turn}")]
    return items


OPTION: Json = {"temperature": 1.0}


def responses(memo: RequestMemo, items: Sequence[object]) -> NeMoGymResponseCreateParamsNonStreaming:
    raw = written(items, OPTION, "input", "spaced")
    return cast(
        "NeMoGymResponseCreateParamsNonStreaming", read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
    )


def test_only_the_new_items_of_a_growing_conversation_are_made() -> None:
    memo = RequestMemo()
    before = responses(memo, conversation(3)).input
    after = responses(memo, conversation(4)).input
    assert isinstance(after, GrownList)
    assert after.known == len(before) == 8
    assert all(old is new for old, new in zip(before, after, strict=False))


@pytest.mark.parametrize("field", ["input", "messages"])
def test_a_request_whose_items_are_kept_leaves_no_ids_and_none_of_its_bytes_behind(field: str) -> None:
    memo = RequestMemo()
    model_class = next(kind for kind, name in FIELDS.items() if name == field)
    for turns in (4, 5, 6):
        chat = [assistant("r", **triple(turn + 1)) if turn % 2 else user("u") for turn in range(2 * turns)]
        items = conversation(turns, ids=True) if field == "input" else chat
        raw = written(items, OPTION, field, "compact")
        held = sys.getrefcount(raw)
        model = read(memo, raw, model_class)
        assert sys.getrefcount(raw) == held
        kept = [emptied(cast("Json", item)) for item in items]
        assert model.model_dump(exclude_unset=True)[field] == kept


def test_the_same_turns_with_other_ids_are_the_same_items() -> None:
    memo = RequestMemo()
    before = responses(memo, conversation(3, ids=True)).input
    other = [
        item | triple(50) if isinstance(item, dict) and "prompt_token_ids" in item else item
        for item in conversation(4, ids=True)
    ]
    after = responses(memo, other).input
    assert isinstance(after, GrownList)
    assert after.known == 8
    assert all(old is new for old, new in zip(before, after, strict=False))


def refusal(memo: RequestMemo, raw: bytes) -> RequestError:
    with pytest.raises(RequestError) as refused:
        read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
    return refused.value


def test_ids_that_do_not_belong_together_are_refused_in_a_known_item_too() -> None:
    memo = RequestMemo()
    items = conversation(3, ids=True)
    responses(memo, items)
    items[2] = reply("r0", **triple(1, 2, 1))
    assert refusal(memo, written([*items, user("more")], OPTION, "input", "spaced")).param == "input.2"


def test_a_list_that_stands_twice_is_the_last_one() -> None:
    memo = RequestMemo()
    read(memo, written(conversation(3), {}, "input", "compact"), NeMoGymResponseCreateParamsNonStreaming)
    raw = written(conversation(4), {}, "input", "doubled")
    model = read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
    assert len(model.input) == 1  # type: ignore[attr-defined]


def test_a_list_of_the_same_name_elsewhere_in_the_request_is_another_one() -> None:
    memo = RequestMemo()
    items, more = conversation(3), [user("more")]
    for nested, sent in ((items, items), ([*items, *more], more)):
        raw = written(sent, {"custom_params": {"input": nested}}, "input", "compact")
        model = read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
        assert len(model.input) == len(sent)  # type: ignore[attr-defined]


def test_what_follows_a_known_beginning_must_be_json() -> None:
    memo = RequestMemo()
    raw = written(conversation(3), {}, "input", "compact")
    read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
    assert "is not JSON" in refusal(memo, raw[:-2] + b'x{"role":"user","content":"u"}]}').message


@pytest.mark.parametrize("end", [b",]}", b" , ]}", b",,{}]}"])
def test_a_comma_without_an_item_is_refused(end: bytes) -> None:
    memo = RequestMemo()
    raw = written(conversation(3), {}, "input", "compact")
    read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
    assert "is not JSON" in refusal(memo, raw[:-2] + end).message


@pytest.mark.parametrize("depth", [900, 1_010, 1_018, 1_019, 1_020, 1_021, 1_022, 1_023, 1_024, 1_025, 5_000])
@pytest.mark.parametrize("place", ["item", "option"])
def test_what_is_nested_deeply_is_read_or_refused_as_without(depth: int, place: str) -> None:
    memo = RequestMemo()
    nest = b"[" * depth + b"]" * depth
    first = written(conversation(3), {}, "input", "compact")
    for known in (b"", first):
        if known:
            read(memo, known, NeMoGymResponseCreateParamsNonStreaming)
        more = b',{"role":"user","content":"u","x":' + nest + b"}]}"
        raw = first[:-2] + (more if place == "item" else b'],"custom_params":{"x":' + nest + b"}}")
        kinds = [outcome_of(m, raw) for m in (memo, None)]
        assert kinds[0] == kinds[1]


def outcome_of(memo: RequestMemo | None, raw: bytes) -> str:
    """Without a look inside what is nested, which no comparison survives."""
    try:
        model = read(memo, raw, NeMoGymResponseCreateParamsNonStreaming)
    except RequestError as error:
        return error.message
    return f"{len(model.input)} items"  # type: ignore[attr-defined]


def test_one_request_that_is_too_large_pushes_out_no_other() -> None:
    for memo in (RequestMemo(max_items=60), RequestMemo(max_bytes=4_000)):
        responses(memo, conversation(4))
        raw = written(conversation(40), {}, "input", "compact")
        read(memo, raw, NeMoGymResponseCreateParamsNonStreaming, "other")
        assert [key[0] for key in memo._known] == ["s"]  # type: ignore[index]


def test_a_request_with_routed_experts_is_not_kept() -> None:
    memo = RequestMemo()
    experts = {**triple(2), "routed_experts": [[[1]], [[2]]]}
    responses(memo, [*conversation(3), reply("r", **experts)])
    assert memo.items == 0


class Watched(dict[object, object]):
    """What is made of a list, and a second request that looks at it whenever something is put there."""

    def __init__(self, look: Callable[[Made], None]) -> None:
        super().__init__()
        self._look = look

    def __setitem__(self, key: object, value: object) -> None:
        super().__setitem__(key, value)
        self._look(Made(self))  # type: ignore[arg-type]


@pytest.mark.parametrize("instructions", [None, "be brief"])
def test_a_request_that_comes_while_the_one_before_is_converted_loses_nothing(
    instructions: str | None,
) -> None:
    """In a thread, one can see what the other has made so far."""
    items = responses(RequestMemo(), conversation(3)).input
    assert isinstance(items, GrownList)
    whole = NeMoGymResponseCreateParamsNonStreaming(input=[], instructions=instructions)
    seen: list[int] = []

    def follow(made: Made) -> None:
        later = whole.model_copy(update={"input": GrownList(items, known=len(items), before=made)})
        seen.append(len(CONVERTER.responses_to_chat_completion_create_params(later).messages))

    items.made.of = Watched(follow)  # type: ignore[assignment]
    first = whole.model_copy(update={"input": items})
    expected = len(CONVERTER.responses_to_chat_completion_create_params(first).messages)
    assert seen == [expected] * len(seen)
    assert seen


def test_a_list_that_was_changed_in_place_is_not_believed() -> None:
    earlier = GrownList([1, 2])
    earlier.append(3)
    assert mapped(str, earlier) == ["1", "2", "3"]
    assert mapped(str, GrownList([1, 2, 4], known=2, before=earlier.made)) == ["1", "2", "4"]


def test_an_error_in_a_new_item_names_its_place_in_the_whole() -> None:
    memo = RequestMemo()
    responses(memo, conversation(3))
    assert (
        refusal(memo, written([*conversation(3), {"type": "no"}], {}, "input", "spaced")).param == "input.8"
    )


def test_ids_in_an_odd_place_of_a_new_item_stay_what_they_are() -> None:
    memo = RequestMemo()
    responses(memo, conversation(3))
    odd = user("u") | {"nested": {"prompt_token_ids": [1, 2]}}
    assert responses(memo, [*conversation(3), odd]).input[-1].nested == {"prompt_token_ids": [1, 2]}  # type: ignore[union-attr]


def test_a_turn_that_goes_on_in_the_next_request_is_one_message() -> None:
    memo = RequestMemo()
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(2)]
    CONVERTER.responses_to_chat_completion_create_params(responses(memo, [*conversation(3), calls[0]]))
    params = responses(memo, [*conversation(3), *calls])
    messages = CONVERTER.responses_to_chat_completion_create_params(params).messages
    assert [made["id"] for made in messages[-1]["tool_calls"]] == ["c0", "c1"]  # type: ignore[typeddict-item]
    assert isinstance(messages, GrownList)
    assert messages.known == len(messages) - 1


def test_no_ids_are_kept() -> None:
    memo = RequestMemo()
    responses(memo, conversation(3, ids=True))
    (known,) = memo._known.values()
    assert [len(item.prompt_token_ids) for item in known.items if hasattr(item, "prompt_token_ids")] == [
        0
    ] * 3
    assert b"0, 1, 2" not in known.text


def test_conversations_do_not_share_items() -> None:
    memo = RequestMemo()
    first, other = conversation(3), conversation(4)
    raw = written(first, {}, "input", "compact")
    read(memo, raw, NeMoGymResponseCreateParamsNonStreaming, "one")
    model = read(memo, written(other, {}, "input", "compact"), NeMoGymResponseCreateParamsNonStreaming, "two")
    assert cast("GrownList[object]", model.input).known == 0  # type: ignore[attr-defined]


def test_no_more_is_kept_than_allowed() -> None:
    for memo in (RequestMemo(max_items=30), RequestMemo(max_bytes=2_000)):
        for session in range(20):
            read(
                memo,
                written(conversation(4), {}, "input", "compact"),
                NeMoGymResponseCreateParamsNonStreaming,
                f"s{session}",
            )
        assert 0 < memo.items <= 30
        assert sum(len(known.items) for known in memo._known.values()) == memo.items
        assert tuple(key[0] for key in memo._known)[-1:] == ("s19",)  # type: ignore[index]
