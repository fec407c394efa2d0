"""The id under which one request is found again in the log and in the caller's hands."""

from __future__ import annotations

import re
from typing import Final
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.types import Scope

REQUEST_ID_HEADER: Final = "x-request-id"

_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def choose_request_id(scope: Scope) -> str:
    """Return the caller's id when it can stand in a log line, else a new one."""
    sent = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
    return sent if _SANE.fullmatch(sent) else uuid4().hex
