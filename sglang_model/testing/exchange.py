"""One HTTP exchange: what came, what is answered, and how that is put on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import httpx
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sglang_model.testing.misbehaviour import Misbehaviour

TRANSPORT_KEY = "sglang_model.transport"
"""Scope key of the asyncio transport when the engine runs behind uvicorn, so that a connection can be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What arrived. Header names are lower case; the value of Authorization is never kept."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: object
    """The parsed JSON, or the raw text when it is not JSON, or None."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request on its way. `misbehaviour` is the one that applies to it, once it is known."""

    record: RecordedRequest
    malformed: str | None = None
    """The text of a body that said it was JSON and is not."""
    disconnected: Callable[[], Awaitable[None]] | None = None
    misbehaviour: Misbehaviour | None = None

    @property
    def body(self) -> object:
        return self.record.body


@dataclass(frozen=True, slots=True)
class Answer:
    """`payload` is JSON, a `str` too; `plain` sends a `str` as text. None is an empty body."""

    payload: object
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    plain: bool = False


class InsteadError(Exception):
    """The request's misbehaviour is to be answered instead of the sample."""

    def __init__(self, misbehaviour: Misbehaviour) -> None:
        super().__init__("answered by a misbehaviour")
        self.misbehaviour = misbehaviour


class ConnectionDroppedError(Exception):
    """The engine goes away without an answer."""


def answer_of(misbehaviour: Misbehaviour) -> Answer:
    """The answer that `misbehaviour` gives instead of the right one."""
    headers = {}
    if misbehaviour.retry_after is not None:
        headers["retry-after"] = str(misbehaviour.retry_after)
    plain = isinstance(misbehaviour.body, str)
    return Answer(misbehaviour.body, misbehaviour.status or 200, headers, plain=plain)


def response_of(answer: Answer, misbehaviour: Misbehaviour | None) -> Response:
    """The HTTP response of `answer`, with the misbehaviour's truncation or cut."""
    body, media_type = _encode(answer)
    if misbehaviour is not None and misbehaviour.truncate_at is not None:
        body = body[: misbehaviour.truncate_at]
    headers = dict(answer.headers)
    if media_type is not None:
        headers["content-type"] = media_type
    if misbehaviour is not None and misbehaviour.cut_at is not None:
        return CutResponse(body, answer.status, headers, cut_at=misbehaviour.cut_at)
    return Response(body, answer.status, headers)


def _encode(answer: Answer) -> tuple[bytes, str | None]:
    payload = answer.payload
    if payload is None:
        return b"", None
    if isinstance(payload, str) and answer.plain:
        html = payload.lstrip().startswith("<")
        return payload.encode(), "text/html; charset=utf-8" if html else "text/plain; charset=utf-8"
    # Not orjson: it refuses NaN, which an engine told to misbehave must be able to write.
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode(), "application/json"


class CutResponse(Response):
    """Announces the whole body, sends its first `cut_at` bytes (0: nothing at all) and hangs up."""

    def __init__(self, content: bytes, status_code: int, headers: Mapping[str, str], *, cut_at: int) -> None:
        super().__init__(content, status_code, headers)
        self._cut_at = cut_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent = bytes(self.body[: self._cut_at])
        if sent:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            await send({"type": "http.response.body", "body": sent, "more_body": True})
        transport = scope.get(TRANSPORT_KEY)
        if not isinstance(transport, asyncio.Transport):
            # In process there is no connection to close: the client is given what it would have seen.
            raise httpx.RemoteProtocolError(f"the engine closed the connection after {len(sent)} bytes")
        transport.close()
        while (await receive())["type"] != "http.disconnect":
            pass
