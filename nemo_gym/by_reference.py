"""pydantic fields whose value is handed on untouched, at validation and at `model_dump()`.

pydantic copies every list that it validates or serialises, element by element; a turn's ids would be walked
at every hop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic_core import CoreSchema, PydanticCustomError, core_schema


def by_reference(check: Callable[[object], object], json_form: CoreSchema) -> CoreSchema:
    """A schema that runs `check` and hands its result on untouched, in and out; only a JSON dump walks the
    elements.

    `to_string` with `when_used="json"` is the one serialiser that returns the very object in Python mode,
    and in JSON mode the outer serialiser takes over before it is asked.
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
            _in_json, return_schema=json_form, when_used="json"
        ),
    )


def _in_json(value: object) -> object:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, (list, str)) else value
