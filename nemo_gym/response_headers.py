"""Headers that a handler adds to the response of its request, whether that becomes an answer or an error."""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

_SCOPE_KEY: Final = "nemo_gym.response_headers"


def start_collecting(scope: Scope) -> None:
    """Make the place for headers, in the outermost layer: those below may hand a copy of the scope on."""
    scope[_SCOPE_KEY] = {}


def add_response_header(request: HTTPConnection, name: str, value: str) -> None:
    """Send `name: value` with the response to `request`; models have no room for headers."""
    request.scope.setdefault(_SCOPE_KEY, {})[name] = value


def collected_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers added so far, as ASGI wants them."""
    added: dict[str, str] = scope.get(_SCOPE_KEY, {})
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in added.items()]
