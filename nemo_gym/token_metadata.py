"""The token triple: what the engine saw, what it sampled, and how likely each sampled token was.

`prompt_token_ids`, `generation_token_ids` and `generation_log_probs` travel together or not at all. Their
elements are checked once, where they enter the process; from there on the lists are carried by reference,
because a turn has tens of thousands of ids and every hop through a model would touch each of them again.
This module knows no API shape and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sized
from typing import Annotated, NotRequired, Self, TypeAlias

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from typing_extensions import TypedDict

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class TokenIds(list[int]):
    """Token ids, each known to be an int >= 0.

    Made by `checked`; calling the class itself trusts the caller. A field of this type carries an instance by
    reference, at validation and at `model_dump()`, and checks anything else element by element.
    """

    @classmethod
    def checked(cls, raw: object, where: str = "token ids") -> Self:
        """Check `raw` and keep it; an instance is returned as it is.

        Nothing is coerced: `True`, `"12"` and `3.0` are signs that something else than ids was read. Raises
        ValueError with the index and the kind of the first bad element, never with the list.
        """
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, (list, tuple)):
            raise ValueError(f"{where}: expected a list of token ids, got {type(raw).__name__}")  # noqa: TRY004  one kind of error for pydantic
        if not set(map(type, raw)) <= {int}:
            index = next(i for i, element in enumerate(raw) if type(element) is not int)
            raise ValueError(
                f"{where}[{index}]: expected an integer token id, got {type(raw[index]).__name__}"
            )
        if raw and min(raw) < 0:
            index = next(i for i, element in enumerate(raw) if element < 0)
            raise ValueError(f"{where}[{index}]: expected a token id >= 0, got {raw[index]}")
        return cls(raw)

    @classmethod
    def __get_pydantic_core_schema__(cls, _s: object, _h: GetCoreSchemaHandler) -> CoreSchema:
        return _by_reference(cls.checked, core_schema.list_schema(core_schema.int_schema()))

    @classmethod
    def __get_pydantic_json_schema__(cls, _s: CoreSchema, _h: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}


class LogProbs(list[float]):
    """Log probabilities, each known to be a finite float. Otherwise as `TokenIds`."""

    @classmethod
    def checked(cls, raw: object, where: str = "log probs") -> Self:
        """Check `raw` and keep it; an instance is returned as it is.

        JSON writes -1.0 as -1 at times, so ints are taken and become floats; bools, strings, null, NaN and
        infinities are not. Raises ValueError with the index and the kind of the first bad element.
        """
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, (list, tuple)):
            raise ValueError(f"{where}: expected a list of numbers, got {type(raw).__name__}")  # noqa: TRY004
        kinds = set(map(type, raw))
        if not kinds <= {float, int}:
            index = next(i for i, element in enumerate(raw) if type(element) not in (float, int))
            raise ValueError(f"{where}[{index}]: expected a log probability, got {type(raw[index]).__name__}")
        if int in kinds:
            raw = [_as_float(element) for element in raw]
        if not all(map(math.isfinite, raw)):
            index = next(i for i, element in enumerate(raw) if not math.isfinite(element))
            raise ValueError(f"{where}[{index}]: expected a finite log probability, got {raw[index]}")
        return cls(raw)

    @classmethod
    def __get_pydantic_core_schema__(cls, _s: object, _h: GetCoreSchemaHandler) -> CoreSchema:
        return _by_reference(cls.checked, core_schema.list_schema(core_schema.float_schema()))

    @classmethod
    def __get_pydantic_json_schema__(cls, _s: CoreSchema, _h: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "array", "items": {"type": "number"}}


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _by_reference(check: Callable[[object], object], json_form: CoreSchema) -> CoreSchema:
    """A schema that runs `check` and hands its result on untouched, in and out; only a JSON dump walks the
    elements.

    pydantic copies every list that it serialises with its own list or "any" serialiser. `to_string` with
    `when_used="json"` is the one that returns the very object in Python mode, and in JSON mode the outer
    serialiser takes over before it is asked.
    """

    def checked(value: object) -> object:
        try:
            return check(value)
        except ValueError as error:
            raise PydanticCustomError("token_metadata", "{reason}", {"reason": str(error)}) from None

    untouched = core_schema.any_schema(serialization=core_schema.to_string_ser_schema(when_used="json"))
    return core_schema.no_info_after_validator_function(
        checked,
        untouched,
        serialization=core_schema.plain_serializer_function_ser_schema(
            _itself, return_schema=json_form, when_used="json"
        ),
    )


def _itself(value: object) -> object:
    return value


class _Opaque:
    """Annotation for routed experts: a list or a string, carried by reference and never looked into."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _s: object, _h: GetCoreSchemaHandler) -> CoreSchema:
        return _by_reference(_list_or_string, core_schema.any_schema())

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
    if isinstance(ids, list) and isinstance(log_probs, list):
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
    return any(_field(value, name) is not None for name in TOKEN_FIELDS)


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def token_metadata_of(value: object) -> TokenIDLogProbMixin | None:
    """The triple of a message or item, its lists by reference; None if it carries none.

    Raises pydantic's ValidationError if only a part of it is there.
    """
    if not has_token_metadata(value):
        return None
    fields = {name: _field(value, name) for name in (*TOKEN_FIELDS, "routed_experts")}
    return TokenIDLogProbMixin.model_validate(
        {name: field for name, field in fields.items() if field is not None}
    )
