"""Unions whose member is chosen by looking at the value, with errors that name the field and nothing else.

pydantic's smart mode tries every member and reports the failures of all of them; its tagged unions are
exact but put the name of the member into the error's path. This module keeps the exact choice and takes the
name out again, so that a path reads `input.2.content`.
"""

from __future__ import annotations

from collections.abc import Callable

from pydantic import GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, core_schema


class PlainPath:
    """Annotation around a union with a callable discriminator: drops the tag from error paths.

    `what` names the thing in the error for an unknown tag, `known` lists what would have been accepted. The
    discriminator describes a value it does not know (`described`) instead of returning None.
    """

    def __init__(self, what: str, known: str) -> None:
        self.what = what
        self.known = known

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(self._validate, handler(source))

    def _validate(self, value: object, validate: Callable[[object], object]) -> object:
        try:
            return validate(value)
        except ValidationError as error:
            details = [self._detail(line) for line in error.errors(include_url=False)]
            raise ValidationError.from_exception_data(error.title, details) from None

    def _detail(self, line: ErrorDetails) -> InitErrorDetails:
        if line["type"] == "union_tag_invalid" and not line["loc"]:
            names = {"what": self.what, "kind": line["ctx"]["tag"][:80], "known": self.known}
            unknown = PydanticCustomError("unknown_kind", "{what}: expected {known}; got {kind}", names)
            return InitErrorDetails(type=unknown, input=line["input"])
        # Without a context pydantic takes the message as it is.
        same = PydanticCustomError(line["type"], line["msg"])
        return InitErrorDetails(type=same, loc=line["loc"][1:], input=line["input"])


def described(value: object) -> str:
    """A short, safe description of an unexpected value's kind."""
    if isinstance(value, str):
        return value[:60]
    return "nothing" if value is None else f"a value of kind {type(value).__name__}"


def text_or_parts(value: object) -> str:
    """Discriminator for content: tag `text` for a string, `parts` for a list."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, (list, tuple)):
        return "parts"
    return described(value)


def field_of(value: object, name: str) -> object:
    """The field of a mapping or of a model; None if it has none."""
    if isinstance(value, dict):
        return value.get(name)
    return getattr(value, name, None)


def part_type(part: object) -> str:
    """Discriminator for content parts: their `type`."""
    kind = field_of(part, "type")
    return kind if isinstance(kind, str) else described(kind)
