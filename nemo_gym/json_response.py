"""Where a model becomes response bytes. The only place, so that a faster way has one door to go through.

FastAPI's own way walks every token id in Python (88 to 168 ms for 100k ids); pydantic's serialiser needs 4.
"""

from __future__ import annotations

from typing import Final

import orjson
from pydantic import BaseModel
from starlette.responses import Response

JSON_MEDIA_TYPE: Final = "application/json"


def json_bytes(content: object) -> bytes:
    """Return `content`, a model or plain JSON, as UTF-8 JSON."""
    if isinstance(content, BaseModel):
        return content.__pydantic_serializer__.to_json(content, by_alias=True)
    return orjson.dumps(content)


def json_response(content: object, *, status_code: int = 200) -> Response:
    """Return a response with `content` as its body; a Response is passed through."""
    if isinstance(content, Response):
        return content
    return Response(json_bytes(content), status_code=status_code, media_type=JSON_MEDIA_TYPE)
