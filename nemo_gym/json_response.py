"""Where a model becomes response bytes. The only place.

FastAPI's own way walks every token id in Python (88 to 168 ms for 100k ids), pydantic's serialiser needs 4
ms; here they are text already and are copied.
"""

from __future__ import annotations

from typing import Final

import orjson
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from starlette.responses import Response

from nemo_gym import json_ids
from nemo_gym.errors import UpstreamContractError

JSON_MEDIA_TYPE: Final = "application/json"

_TOO_DEEP: Final = ("depth", "circular reference", "recursion limit")
"""How pydantic 2.12 to 2.14 and orjson say that a value is nested too deeply to be written."""


def json_bytes(content: object) -> bytes:
    """Return `content`, a model or plain JSON, as UTF-8 JSON.

    Both writers stop at about 250 levels, but up to 1024 are read: an engine's deeper field can be carried
    and not be answered. That is an UpstreamContractError; any other failure is a mistake of the handler's
    and stays one.
    """
    try:
        if isinstance(content, BaseModel):
            content = content.model_dump(by_alias=True)
        return json_ids.dumps(content)
    except (PydanticSerializationError, orjson.JSONEncodeError) as error:
        if isinstance(error.__cause__, ValueError):
            raise UpstreamContractError(
                f"the engine's token ids cannot be used: {error.__cause__}"
            ) from error
        if not any(words in str(error).lower() for words in _TOO_DEEP):
            raise
        raise UpstreamContractError(
            "the answer cannot be written as JSON: its nesting is deeper than about 250 levels"
        ) from error


def json_response(content: object, *, status_code: int = 200) -> Response:
    """Return a response with `content` as its body; a Response is passed through."""
    if isinstance(content, Response):
        return content
    return Response(json_bytes(content), status_code=status_code, media_type=JSON_MEDIA_TYPE)
