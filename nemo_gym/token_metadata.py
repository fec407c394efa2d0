"""The token triple: what the engine saw, what it sampled, and how likely each sampled token was.

`prompt_token_ids`, `generation_token_ids` and `generation_log_probs` travel together or not at all. Models
carry them by reference, because a turn has tens of thousands of ids and every hop through a model would
touch each of them again. This module knows no API shape and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Annotated, NotRequired, Self, TypeAlias

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict

from nemo_gym.by_reference import by_reference
from nemo_gym.token_ids import LogProbs, TokenIds

__all__ = [
    "TOKEN_FIELDS",
    "LogProbs",
    "RoutedExperts",
    "TokenIDLogProbMixin",
    "TokenIDLogProbTypedDictMixin",
    "TokenIds",
    "aligned_triple",
    "has_token_metadata",
    "token_fields",
    "token_metadata_of",
]

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class _Opaque:
    """Annotation for routed experts: a list or a string, carried by reference and never looked into."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _s: object, _h: GetCoreSchemaHandler) -> CoreSchema:
        return by_reference(_list_or_string, core_schema.any_schema())

    @classmethod
    def __get_pydantic_json_schema__(cls, _s: CoreSchema, _h: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "array"}, {"type": "string"}]}


def _list_or_string(value: object) -> object:
    if isinstance(value, (list, str)):
        return value
    raise ValueError(f"expected nested lists or an opaque string, got {type(value).__name__}")


RoutedExperts: TypeAlias = Annotated[list[list[list[int]]] | str, _Opaque]
"""Expert indices [token][layer][k] as the engine gives them, or its base64 string."""


class TokenIDLogProbMixin(BaseModel):
    """A model that carries the token triple: all three fields, a log probability for each sampled id, or it
    does not validate. Empty lists are a triple.
    """

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: RoutedExperts | None = None

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        _check_alignment(self.generation_token_ids, self.generation_log_probs)
        return self


class TokenIDLogProbTypedDictMixin(TypedDict):
    """The same for request messages."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: NotRequired[RoutedExperts | None]


def aligned_triple(message: Mapping[str, object]) -> Mapping[str, object]:
    """Validator for a TypedDict with the token triple, whose fields are already checked: as many log
    probabilities as sampled ids.
    """
    ids, log_probs = message["generation_token_ids"], message["generation_log_probs"]
    if isinstance(ids, Sized) and isinstance(log_probs, Sized):
        _check_alignment(ids, log_probs)
    return message


def _check_alignment(ids: Sized, log_probs: Sized) -> None:
    if len(ids) != len(log_probs):
        raise PydanticCustomError(
            "token_metadata",
            "expected one of generation_log_probs for each of generation_token_ids, "
            "got {log_probs} for {ids}",
            {"log_probs": len(log_probs), "ids": len(ids)},
        )


def has_token_metadata(value: object) -> bool:
    """True if any of the three fields is there and not null: then all three are required."""
    if isinstance(value, TokenIDLogProbMixin):
        return True
    # Spelt out, because it is asked of every item of every request, twice.
    get = _fields_of(value).get
    return (
        get("prompt_token_ids") is not None
        or get("generation_token_ids") is not None
        or get("generation_log_probs") is not None
    )


def token_metadata_of(value: object) -> TokenIDLogProbMixin | None:
    """The triple of a message or item, its lists by reference; None if it carries none.

    Raises pydantic's ValidationError if only a part of it is there.
    """
    if isinstance(value, TokenIDLogProbMixin):
        return value
    if (isinstance(value, BaseModel) and not value.model_extra) or not has_token_metadata(value):
        return None
    return TokenIDLogProbMixin.model_validate(token_fields(_fields_of(value)))


def token_fields(fields: Mapping[str, object]) -> dict[str, object]:
    """Those of the triple's fields, and routed experts, that are there and not null, unchecked and by reference."""
    return {name: fields[name] for name in (*TOKEN_FIELDS, "routed_experts") if fields.get(name) is not None}


def _fields_of(value: object) -> Mapping[str, object]:
    """The fields of a message among which a triple could be; a model without places for it has it in its
    extra fields.
    """
    if isinstance(value, dict):  # first, because asking for a Mapping takes longer than all the rest
        return value
    if isinstance(value, BaseModel):
        return value.model_extra or {}
    return value if isinstance(value, Mapping) else {}
