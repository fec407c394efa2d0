"""Where request bytes become Python objects. The only place; the ids of earlier turns stay text (`json_ids`).

Every way in which a body can be unusable ends here as a RequestError that names the byte, the field or the
limit.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from nemo_gym import json_ids
from nemo_gym.errors import RequestError, RequestTooLargeError
from nemo_gym.json_ids import Numbers
from nemo_gym.loop_time import give_way, off_the_loop_if_long
from nemo_gym.request_memo import RequestMemo
from nemo_gym.validation_errors import json_type_name, request_error

Model = TypeVar("Model", bound=BaseModel)

DEFAULT_MAX_REQUEST_BYTES: Final = 256 * 1024 * 1024

BYTES_OF_AN_ITEM: Final = 400
"""A hundred tokens, by which it is judged how many items there are in a text."""

_NOT_NUMBERS: Final = ("NaN", "Infinity")


class UnsupportedContentEncodingError(RequestError):
    """The body is compressed. Bodies come from the next process; there is nothing to save."""

    status_code = 415
    code = "unsupported_content_encoding"


class Remembered(NamedTuple):
    """Where earlier requests of this conversation are looked for, and the field that holds a request's items."""

    memo: RequestMemo
    conversation: Hashable
    field: str


async def read_model(
    request: Request, model_class: type[Model], *, max_request_bytes: int, earlier: Remembered | None = None
) -> Model:
    """Read the body as a `model_class`. Raises RequestError, ClientDisconnect when the caller has left."""
    raw = await read_bytes(request, max_request_bytes=max_request_bytes)
    await give_way(len(raw))
    text, arrays = json_ids.cut(raw)
    await give_way(len(raw))
    if earlier is not None:
        memo, conversation, field = earlier
        new = memo.new_bytes(conversation, text) // BYTES_OF_AN_ITEM
        continued = await off_the_loop_if_long(
            new, memo.continued, conversation, text, arrays, model_class, field
        )
        await give_way(len(text))
        if continued is not None:
            return continued
    body = _decoded(raw, text, arrays)
    await give_way(len(text))
    elements = max((len(value) for value in body.values() if isinstance(value, list)), default=0)
    model = await off_the_loop_if_long(elements, validate_object, body, model_class)
    if earlier is not None and memo.wants(model, field):
        size = len(text) // BYTES_OF_AN_ITEM
        await off_the_loop_if_long(size, memo.remember, conversation, text, arrays, body, model, field)
    return model


async def read_bytes(request: Request, *, max_request_bytes: int) -> bytes:
    """Read the whole body, but never more than `max_request_bytes` of it."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedContentEncodingError(
            f"Content-Encoding {encoding[:40]!r} is not supported; send the body uncompressed",
            param="Content-Encoding",
        )
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_request_bytes:
        raise _too_large(int(declared), max_request_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_request_bytes:
            raise _too_large(size, max_request_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def decode_object(raw: bytes) -> dict[str, object]:
    """Decode `raw`, which must be one JSON object in UTF-8."""
    return _decoded(raw, *json_ids.cut(raw))


def _decoded(raw: bytes, text: bytes, arrays: Sequence[Numbers]) -> dict[str, object]:
    if not raw or raw.isspace():
        raise RequestError("the request body is empty, expected a JSON object")
    try:
        value = json_ids.decoded(raw, text, arrays)
    except orjson.JSONDecodeError as error:
        raise RequestError(_why_not_json(raw, error)) from None
    if not isinstance(value, dict):
        raise RequestError(f"the request body must be a JSON object, got {json_type_name(value)}")
    return value


def validate_object(body: dict[str, object], model_class: type[Model]) -> Model:
    """Return `body` as a `model_class`; the RequestError names the field.

    From objects, not from the bytes: on bytes pydantic tries every member of a union on the text (790 ms
    instead of 83 for ten echoed turns of 100k ids).
    """
    try:
        return model_class.model_validate(body)
    except ValidationError as error:
        raise request_error(error.errors(include_url=False), body) from None


def _too_large(size: int, limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"the request body has {size} bytes or more, max_request_bytes of the server is {limit}"
    )


def _why_not_json(raw: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as undecodable:
        return f"the request body is not UTF-8: byte {undecodable.start} of {len(raw)} ({undecodable.reason})"
    place = f"line {error.lineno}, column {error.colno} (character {error.pos})"
    if text.startswith(_NOT_NUMBERS, error.pos):
        return f"the request body is not JSON: NaN and Infinity are not JSON numbers, at {place}"
    if "limit" in error.msg.lower():  # of orjson's depth; its words for it differ between releases
        return f"the request body cannot be read: its nesting depth is over 1024 levels at {place}"
    return f"the request body is not JSON: {error.msg} at {place}"
