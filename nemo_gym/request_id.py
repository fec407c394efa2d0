"""The id under which one request is found again in the log and in the caller's hands."""

from __future__ import annotations

import re
import secrets
from typing import Final

from starlette.types import Scope

REQUEST_ID_HEADER: Final = "x-request-id"

_NAME: Final = REQUEST_ID_HEADER.encode()
_SANE: Final = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


def choose_request_id(scope: Scope) -> str:
    """Return the caller's id when it can stand in a log line, else a new one."""
    for name, value in scope["headers"]:
        if name == _NAME:
            sent: str = value.decode("latin-1")
            return sent if _SANE.fullmatch(sent) else new_request_id()
    return new_request_id()


def new_request_id() -> str:
    """Return 32 random hexadecimal digits."""
    return secrets.token_hex(16)
