"""The id under which one request is found again in the log and in the caller's hands."""

from __future__ import annotations

import re
from typing import Final
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import Scope

REQUEST_ID_HEADER: Final = "x-request-id"

_SCOPE_KEY: Final = "nemo_gym.request_id"
_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def assign_request_id(scope: Scope) -> str:
    """Keep the caller's id in `scope` when it can stand in a log line, else make one; return it."""
    sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    request_id = sent if _SANE.fullmatch(sent) else uuid4().hex
    scope[_SCOPE_KEY] = request_id
    return request_id


def request_id_of(request: HTTPConnection) -> str:
    """Return the id that `assign_request_id` gave to this request."""
    return str(request.scope[_SCOPE_KEY])
