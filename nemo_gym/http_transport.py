"""The socket side of the HTTP client: aiohttp underneath httpx's API.

The only module that knows aiohttp. It must not know retries or configuration classes. aiohttp is here because
httpcore looks through every queued request whenever one changes, which is quadratic with thousands of
rollouts waiting, and costs several times the CPU per request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextvars import ContextVar
from types import SimpleNamespace

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from nemo_gym.http_retry import StaleConnectionError, disconnected

_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Probe an idle peer after 60 s, every 10 s, give up after 3: a host that vanished during a long generation
is noticed in 90 s instead of at the read timeout."""

_AddressInfo = tuple[
    "int | socket.AddressFamily",
    "int | socket.SocketKind",
    int,
    str,
    "tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]",
]


_CHUNK_BYTES = 1 << 18
_WHOLE_BODY_BYTES = 1 << 20
"""Up to here a request body is handed to aiohttp in one piece; above, aiohttp itself warns that copying it to
the socket holds up the event loop."""


class _Reuse:
    """Whether the request in flight travels on a connection that had been used before."""

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


_current: ContextVar[_Reuse | None] = ContextVar("_current", default=None)


class SocketTransport(httpx.AsyncBaseTransport):
    """Sends over real sockets and raises httpx's exceptions with httpcore's meaning.

    Invariant: an exception that leaves `handle_async_request` tells by its class whether a byte of a response
    had arrived. httpx-aiohttp 0.2 calls a refused connection and a server that hung up both a ConnectTimeout,
    and lets a malformed response escape as an aiohttp error.
    """

    def __init__(self, *, max_connections: int | None, keepalive_expiry: float) -> None:
        self._max_connections = max_connections
        self._keepalive_expiry = keepalive_expiry
        self._session: aiohttp.ClientSession | None = None
        # Named explicitly so that SSL_CERT_FILE and SSL_CERT_DIR keep working although httpx is told to
        # ignore the rest of the environment.
        self._ssl_context = httpx.create_ssl_context(trust_env=True)
        self._inner = AiohttpTransport(verify=self._ssl_context, client=self._open_session)

    def _open_session(self) -> aiohttp.ClientSession:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0 if self._max_connections is None else self._max_connections,
                keepalive_timeout=self._keepalive_expiry,
                ssl=self._ssl_context,
                socket_factory=_open_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[tracing],
        )
        return self._session

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reuse = _Reuse()
        token = _current.set(reuse)
        try:
            async with asyncio.timeout(_limit_to_headers(request)):
                return await self._inner.handle_async_request(_in_chunks(request))
        except TimeoutError as error:
            raise httpx.WriteTimeout("The server did not take the request body.") from error
        except httpx.TransportError as error:
            raise _translate(error, reused=reuse.reused) from error.__cause__
        except aiohttp.ClientError as error:
            raise httpx.RemoteProtocolError("The server sent something that is not HTTP.") from error
        finally:
            _current.reset(token)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def abandon(self) -> None:
        """Let go of everything without a loop to close it in; for a loop that is gone."""
        if self._session is not None:
            self._session.detach()


async def _note_reuse(
    _session: aiohttp.ClientSession,
    _context: SimpleNamespace,
    _params: aiohttp.TraceConnectionReuseconnParams,
) -> None:
    reuse = _current.get()
    if reuse is not None:
        reuse.reused = True


def _open_socket(address: _AddressInfo) -> socket.socket:
    """Open a client socket that notices a peer which is gone, as far as the platform can."""
    family, kind, protocol, _, _ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        option: int | None = getattr(socket, name, None)
        if option is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened


class _Chunks(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), _CHUNK_BYTES):
            yield bytes(self._content[start : start + _CHUNK_BYTES])


def _in_chunks(request: httpx.Request) -> httpx.Request:
    """Return a request that sends a very large body piece by piece, under the same Content-Length."""
    if int(request.headers.get("content-length", 0)) <= _WHOLE_BODY_BYTES:
        return request
    return httpx.Request(
        request.method,
        request.url,
        headers=request.headers,
        stream=_Chunks(request.content),
        extensions=request.extensions,
    )


def _limit_to_headers(request: httpx.Request) -> float | None:
    """Return the seconds in which the response headers must be there, None for no limit.

    aiohttp has no write timeout and starts the read timeout when the body is sent, so that a server which
    accepts and never reads would hold a large request for ever. Nothing legal takes longer than the three
    limits one after the other.
    """
    timeout: dict[str, float | None] = request.extensions.get("timeout", {})
    pool, write, read = timeout.get("pool"), timeout.get("write"), timeout.get("read")
    if pool is None or write is None or read is None:
        return None
    return pool + write + read


def _translate(error: httpx.TransportError, *, reused: bool) -> httpx.TransportError:
    """Give `error` the class that httpcore would have given it, judged by aiohttp's own exception
    underneath."""
    cause = error.__cause__
    if isinstance(cause, aiohttp.ServerTimeoutError):
        return error
    if isinstance(cause, aiohttp.ClientConnectorError):
        return httpx.ConnectError(cause.os_error.strerror or str(cause.os_error))
    if isinstance(cause, aiohttp.ServerDisconnectedError) and not isinstance(cause.message, str):
        # aiohttp hands over the head it had begun to parse: the engine was already answering.
        return httpx.RemoteProtocolError("The connection closed inside the response head.")
    if isinstance(cause, aiohttp.ClientConnectionError):
        return StaleConnectionError(str(disconnected())) if reused else disconnected()
    return error
