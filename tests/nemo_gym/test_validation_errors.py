"""Unions that pydantic tries member by member, as a plugin's own models may have them."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel

from nemo_gym.errors import RequestError
from nemo_gym.request_body import validate_object


class Said(BaseModel):
    type: Literal["said"]
    text: str
    language: str


class Called(BaseModel):
    type: Literal["called"]
    name: str


class Conversation(BaseModel):
    turns: list[Said | Called | str]
    limit: int | list[int] = 0


def error_for(*turns: object, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validate_object({"turns": list(turns), **fields}, Conversation)
    return caught.value


def test_the_error_is_that_of_the_member_whose_type_was_given() -> None:
    error = error_for("fine", {"type": "said", "text": 5, "language": "de"})
    assert error.param == "turns.1.text"
    assert str(error) == "turns.1.text: input should be a valid string, got an integer"


def test_fewer_errors_of_another_member_do_not_win_over_its_type() -> None:
    assert str(error_for({"type": "said"})).startswith("turns.0.text: is required")


def test_each_union_counts_once() -> None:
    error = error_for({"type": "called"}, {"type": "called"}, limit="x")
    assert error.param == "turns.0.name"
    assert str(error).endswith("(+2 more)")


def test_a_union_inside_a_union_is_one_error_with_the_whole_path() -> None:
    class Nested(BaseModel):
        turns: str | list[Said | Called]

    with pytest.raises(RequestError) as caught:
        validate_object({"turns": [{"type": "called", "name": 5}]}, Nested)
    assert caught.value.param == "turns.0.name"
    assert "more" not in str(caught.value)


def test_a_value_of_no_members_kind_is_named_by_its_path() -> None:
    assert error_for(7).param == "turns.0"


def test_a_body_that_is_wrong_as_a_whole_has_no_path() -> None:
    class Whole(BaseModel):
        model_config = {"extra": "forbid"}

    with pytest.raises(RequestError) as caught:
        validate_object([], Whole)  # type: ignore[arg-type]
    assert caught.value.param is None
    assert str(caught.value).startswith("the request body: ")
