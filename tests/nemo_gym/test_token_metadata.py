from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from nemo_gym.errors import RequestError
from nemo_gym.json_response import json_bytes
from nemo_gym.openai_utils import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.request_body import validate_object
from nemo_gym.token_ids import LARGEST_ID
from nemo_gym.token_metadata import (
    TOKEN_FIELDS,
    LogProbs,
    TokenIDLogProbMixin,
    TokenIDLogProbTypedDictMixin,
    TokenIds,
    has_token_metadata,
    token_metadata_of,
)
from tests.support.token_lists import triple, untouchable_triple


class Message(TypedDict):
    ids: TokenIds


class Turn(BaseModel):
    ids: TokenIds
    message: Message


@given(st.lists(st.integers(0, LARGEST_ID)))
def test_checked_ids_are_the_ids_that_came_in(raw: list[int]) -> None:
    assert TokenIds.checked(raw) == raw


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_checked_log_probs_are_the_numbers_that_came_in(raw: list[float]) -> None:
    assert LogProbs.checked(raw) == raw


@pytest.mark.parametrize("bad", [True, "12", 3.0, None, [1], -1, 10**10])
def test_an_element_that_is_no_token_id_is_refused_by_index(bad: object) -> None:
    with pytest.raises(ValueError, match=r"prompt\[2\]: expected"):
        TokenIds.checked([5, 6, bad, 7], "prompt")


@pytest.mark.parametrize("bad", [True, "-0.5", None, math.nan, math.inf, -math.inf, 10**400])
def test_an_element_that_is_no_finite_log_prob_is_refused_by_index(bad: object) -> None:
    with pytest.raises(ValueError, match=r"logprobs\[1\]: expected"):
        LogProbs.checked([-0.5, bad, -1.0], "logprobs")


@pytest.mark.parametrize("kind", [TokenIds, LogProbs])
@pytest.mark.parametrize("raw", ["12", {"a": 1}, None, 7, {1, 2}])
def test_only_a_list_is_a_list(kind: type[TokenIds | LogProbs], raw: object) -> None:
    with pytest.raises(ValueError, match="where: expected a list"):
        kind.checked(raw, "where")


def test_a_refusal_never_shows_the_other_elements() -> None:
    with pytest.raises(ValueError) as caught:
        TokenIds.checked([123456789, "x"])
    assert "123456789" not in str(caught.value)


def test_whole_log_probs_become_floats() -> None:
    checked = LogProbs.checked([-1, 0, -0.5])
    assert [type(number) for number in checked] == [float, float, float]


@pytest.mark.parametrize(("kind", "raw"), [(TokenIds, [1]), (LogProbs, [-1.0])])
def test_what_was_checked_once_is_not_checked_again(kind: type[TokenIds | LogProbs], raw: list[int]) -> None:
    checked = kind.checked(raw)
    assert kind.checked(checked) is checked


LOOKS: dict[str, Callable[[TokenIds], object]] = {
    "length": len,
    "truth": bool,
    "text": lambda ids: ids.text,
    "json": lambda ids: ids.json,
    "numbers": lambda ids: ids.tolist(),
    "equality": lambda ids: ids == [1, 22, 333],
    "repr": repr,
    "reading": lambda ids: ids.read(),
    "being carried": lambda ids: ids.carries(b"1,22,333"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_ids_that_are_a_view_are_the_same_ids_and_let_go_of_the_rest_once_they_are_looked_at(
    look: str,
) -> None:
    body = b'{"prompt_token_ids":[1,22,333]}'
    view, copy = TokenIds.unread(memoryview(body)[21:29]), TokenIds.unread(b"1,22,333")
    held = sys.getrefcount(body)
    assert LOOKS[look](view) == LOOKS[look](copy)
    assert sys.getrefcount(body) == held - 1


def test_a_model_carries_checked_ids_by_reference_in_and_out() -> None:
    ids = TokenIds.checked([1, 2, 3])
    turn = Turn.model_validate({"ids": ids, "message": {"ids": ids}})
    assert turn.ids is ids
    assert turn.message["ids"] is ids
    dumped = turn.model_dump(exclude_none=True)
    assert dumped["ids"] is ids
    assert dumped["message"]["ids"] is ids


def test_a_model_never_looks_into_checked_lists() -> None:
    fields = untouchable_triple()
    carrier = TokenIDLogProbMixin.model_validate(fields)
    assert all(getattr(carrier, name) is fields[name] for name in TOKEN_FIELDS)
    assert all(carrier.model_dump()[name] is fields[name] for name in TOKEN_FIELDS)


@pytest.mark.parametrize("bad", [["1"], [True], [1.0], [-1], "1", None])
def test_a_model_checks_everything_else_strictly(bad: object) -> None:
    with pytest.raises(ValidationError) as caught:
        TokenIDLogProbMixin.model_validate(triple(3) | {"generation_token_ids": bad})
    assert [error["loc"] for error in caught.value.errors()] == [("generation_token_ids",)]


def test_a_model_refuses_log_probs_that_json_cannot_write() -> None:
    with pytest.raises(ValidationError, match="finite"):
        TokenIDLogProbMixin.model_validate(triple(3) | {"generation_log_probs": [math.nan]})


def test_json_dumps_write_the_elements() -> None:
    carrier = TokenIDLogProbMixin.model_validate(triple(3))
    expected = triple(3) | {"routed_experts": None}
    assert carrier.model_dump(mode="json") == expected
    assert json.loads(carrier.model_dump_json()) == expected
    assert orjson.loads(json_bytes(carrier)) == expected


def test_the_openapi_schema_of_a_carrier_says_arrays_of_numbers() -> None:
    fields = TokenIDLogProbMixin.model_json_schema()["properties"]
    assert fields["prompt_token_ids"]["items"] == {"type": "integer", "minimum": 0}
    assert fields["generation_log_probs"]["items"] == {"type": "number"}


@pytest.mark.parametrize("missing", TOKEN_FIELDS)
def test_a_partial_triple_is_refused_naming_what_is_missing(missing: str) -> None:
    fields = {name: value for name, value in triple(3).items() if name != missing}
    for kind in (TypeAdapter(TokenIDLogProbMixin), TypeAdapter(TokenIDLogProbTypedDictMixin)):
        with pytest.raises(ValidationError) as caught:
            kind.validate_python(fields)
        assert [(error["loc"], error["type"]) for error in caught.value.errors()] == [((missing,), "missing")]


MISALIGNED = {"prompt_token_ids": [1], "generation_token_ids": [2, 3], "generation_log_probs": [-0.5]}
MISALIGNED_SAID = "got 1 for 2"


def test_ids_and_log_probs_of_different_number_are_refused_with_both_counts() -> None:
    with pytest.raises(ValidationError, match=MISALIGNED_SAID):
        TokenIDLogProbMixin.model_validate(MISALIGNED)
    with pytest.raises(ValidationError, match=MISALIGNED_SAID):
        token_metadata_of(MISALIGNED)


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (
            NeMoGymChatCompletionCreateParamsNonStreaming,
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "messages.1",
        ),
        (
            NeMoGymResponseCreateParamsNonStreaming,
            {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            "input.1",
        ),
    ],
)
def test_a_request_with_misaligned_ids_is_refused_at_the_turn(
    model: type[BaseModel], body: dict[str, list[dict[str, object]]], param: str
) -> None:
    next(iter(body.values()))[1] |= MISALIGNED
    with pytest.raises(RequestError, match=MISALIGNED_SAID) as caught:
        validate_object(dict(body), model)
    assert caught.value.param == param


def test_an_empty_triple_is_a_triple() -> None:
    empty: dict[str, object] = {name: [] for name in TOKEN_FIELDS}
    assert has_token_metadata(empty)
    carried = token_metadata_of(empty)
    assert carried is not None
    assert carried.generation_token_ids == []


def test_nulls_are_no_metadata() -> None:
    assert not has_token_metadata(dict.fromkeys(TOKEN_FIELDS))
    assert token_metadata_of({"role": "assistant"}) is None


def test_a_part_of_a_triple_is_not_taken_for_none() -> None:
    with pytest.raises(ValidationError, match="generation_log_probs"):
        token_metadata_of({"prompt_token_ids": [1], "generation_token_ids": [2]})


@pytest.mark.parametrize("experts", [[[[1, 2]], [[3, 4]]], "AAEC", None])
def test_routed_experts_are_carried_as_they_are(experts: object) -> None:
    carrier = TokenIDLogProbMixin.model_validate(triple(3) | {"routed_experts": experts})
    assert carrier.routed_experts is experts
    assert carrier.model_dump()["routed_experts"] is experts
    assert json.loads(carrier.model_dump_json())["routed_experts"] == experts


def test_routed_experts_that_are_a_number_are_refused() -> None:
    with pytest.raises(ValidationError, match="routed_experts"):
        TokenIDLogProbMixin.model_validate(triple(3) | {"routed_experts": 7})
