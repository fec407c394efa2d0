"""Bodies that never reach an endpoint's logic: not JSON, not an object, of the wrong shape.

SGLang answers them through one handler, whose texts are FastAPI's error list twice over. The status, the `type` and
the kind of error are kept here; where pydantic's wording depends on SGLang's class names, it differs.
"""

from __future__ import annotations

import json

from pydantic import ValidationError

from sglang_model.testing.exchange import Answer, Exchange
from sglang_model.testing.wire_shapes import object_error

_NOT_JSON = {
    "loc": ["header", "content-type"],
    "msg": "Unsupported Media Type: Only 'application/json' is allowed",
    "type": "value_error",
}


def is_json(exchange: Exchange) -> bool:
    content_type = exchange.record.headers.get("content-type", "")
    return content_type.partition(";")[0].strip().lower() == "application/json"


def body_problem(exchange: Exchange) -> Answer | None:
    """The refusal of a body that an OpenAI endpoint cannot read at all, or None."""
    if not is_json(exchange):
        return schema_error([dict(_NOT_JSON)])
    return unreadable(exchange) or _not_an_object(exchange)


def unreadable(exchange: Exchange) -> Answer | None:
    """The refusal of an absent body, or of one that is not JSON."""
    if exchange.malformed is not None:
        try:
            json.loads(exchange.malformed)
        except json.JSONDecodeError as error:
            item: dict[str, object] = {
                "type": "json_invalid",
                "loc": ("body", error.pos),
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": error.msg},
            }
            return schema_error([item])
    if exchange.body is None:
        return schema_error([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    return None


def _not_an_object(exchange: Exchange) -> Answer | None:
    """SGLang looks into the body before it knows that it is an object, and falls over."""
    return None if isinstance(exchange.body, dict) else Answer("Internal Server Error", 500, plain=True)


def schema_error(items: list[dict[str, object]]) -> Answer:
    """The list of errors, once as FastAPI prints it and once as Python does."""
    plural = "" if len(items) == 1 else "s"
    lines = "".join(f"\n  {item}" for item in items)
    message = f"{len(items)} validation error{plural}:{lines} {items}"
    return Answer(object_error(message, "Bad Request", 400), 400)


def validation_error(error: ValidationError) -> Answer:
    """A body whose fields have the wrong types."""
    return schema_error(
        [
            {**item, "loc": ("body", *item["loc"])}
            for item in error.errors(include_url=False, include_context=False)
        ]
    )


def wrong_value(value: object, message: str, *location: str) -> Answer:
    """A body, or the part of it at `location`, that a validator of SGLang refuses."""
    item = {"type": "value_error", "loc": ("body", *location), "msg": f"Value error, {message}"}
    return schema_error([{**item, "input": value, "ctx": {"error": ValueError(message)}}])
