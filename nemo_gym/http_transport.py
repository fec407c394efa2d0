"""The socket side of the HTTP client: aiohttp underneath httpx's API.

The only module that knows aiohttp. It must not know retries or configuration classes. aiohttp is here because
httpcore looks through every queued request whenever one changes, which is quadratic with thousands of
rollouts waiting, and costs several times the CPU per request.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar

import aiohttp
import httpx
from aiohttp import hdrs

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

_BUFFERED_BYTES = 1 << 15
"""Up to here a request is in the event loop's write buffer at once, whether the server reads or not, and the read
timeout counts from there. Well under the 64 KiB at which a loop makes a writer wait."""


class _Connection:
    """What is known of the connection that the request in flight travels on."""

    __slots__ = ("opened",)

    def __init__(self) -> None:
        self.opened = False
        """A socket was opened for it; else it had been kept from an earlier request."""


_current: ContextVar[_Connection | None] = ContextVar("_current", default=None)


class SocketTransport(httpx.AsyncBaseTransport):
    """Sends over real sockets and raises httpx's exceptions with httpcore's meaning.

    Invariant: an exception that leaves `handle_async_request` tells by its class whether a byte of a response
    had arrived. Must be made inside the running loop.
    """

    def __init__(self, *, max_connections: int | None, keepalive_expiry: float) -> None:
        # Named explicitly so that SSL_CERT_FILE and SSL_CERT_DIR keep working although the rest of the
        # environment is ignored.
        ssl_context = httpx.create_ssl_context(trust_env=True)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0 if max_connections is None else max_connections,
                keepalive_timeout=keepalive_expiry,
                ssl=ssl_context,
                socket_factory=_open_socket,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connection = _Connection()
        token = _current.set(connection)
        try:
            answer = await self._send(request)
        except aiohttp.ClientError as error:
            raise _translate(error, reused=not connection.opened) from error
        except TimeoutError as error:
            raise httpx.WriteTimeout("The server did not take the request body.") from error
        finally:
            _current.reset(token)
        body = _Body(answer, request.extensions.get("timeout", {}).get("read"))
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=body, request=request)

    async def _send(self, request: httpx.Request) -> aiohttp.ClientResponse:
        timeout: dict[str, float | None] = request.extensions.get("timeout", {})
        content = request.read()
        answer = self._session.request(
            request.method,
            str(request.url),
            headers=[(key.decode("ascii"), value.decode("latin-1")) for key, value in request.headers.raw],
            data=_in_chunks(content) if len(content) > _WHOLE_BODY_BYTES else content or None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                sock_connect=timeout.get("connect"),
                sock_read=timeout.get("read"),
                connect=timeout.get("pool"),
            ),
        )
        if len(content) <= _BUFFERED_BYTES:
            return await answer
        async with asyncio.timeout(_limit_to_headers(timeout)):
            return await answer

    async def aclose(self) -> None:
        await self._session.close()

    def abandon(self) -> None:
        """Let go of everything without a loop to close it in; for a loop that is gone."""
        self._session.detach()


class _Body(httpx.AsyncByteStream):
    """The body of an answer, in the pieces in which it came.

    Closed before its end, it closes the connection: on that an engine gives the generation up.
    """

    def __init__(self, answer: aiohttp.ClientResponse, read_timeout: float | None) -> None:
        self._answer = answer
        # aiohttp 3.14 forgets the reader of a body whose chunks stop making sense, and its own limit with it.
        self._limit = read_timeout if hdrs.TRANSFER_ENCODING in answer.headers else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._answer.content
        try:
            while not content.at_eof():
                if self._limit is None:  # the usual case, and a large answer comes in dozens of pieces
                    part = await content.readany()
                else:
                    async with asyncio.timeout(self._limit):
                        part = await content.readany()
                yield part
        except TimeoutError as error:
            raise httpx.ReadTimeout(str(error)) from error
        except aiohttp.ClientError as error:
            raise httpx.ReadError(str(error)) from error

    async def aclose(self) -> None:
        self._answer.close()


def _open_socket(address: _AddressInfo) -> socket.socket:
    """Open a client socket that notices a peer which is gone, as far as the platform can."""
    family, kind, protocol, _, _ = address
    connection = _current.get()
    if connection is not None:
        connection.opened = True
    opened = socket.socket(family=family, type=kind, proto=protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        option: int | None = getattr(socket, name, None)
        if option is not None:
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened


async def _in_chunks(content: bytes) -> AsyncIterator[bytes]:
    """Send a very large body piece by piece, under the Content-Length that the request already has."""
    whole = memoryview(content)
    for start in range(0, len(content), _CHUNK_BYTES):
        yield bytes(whole[start : start + _CHUNK_BYTES])


def _limit_to_headers(timeout: Mapping[str, float | None]) -> float | None:
    """Return the seconds in which the response headers must be there, None for no limit.

    aiohttp has no write timeout and starts the read timeout when the body is sent, so that a server which
    accepts and never reads would hold a large request for ever. Nothing legal takes longer than the three
    limits one after the other.
    """
    pool, write, read = timeout.get("pool"), timeout.get("write"), timeout.get("read")
    if pool is None or write is None or read is None:
        return None
    return pool + write + read


def _translate(error: aiohttp.ClientError, *, reused: bool) -> httpx.TransportError:
    """Return the exception that httpcore would have raised in place of aiohttp's `error`."""
    match error:
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout(str(error))
        case aiohttp.ServerTimeoutError():
            return httpx.ReadTimeout(str(error))
        case aiohttp.ClientConnectorError():
            return httpx.ConnectError(error.os_error.strerror or str(error.os_error))
        case aiohttp.ServerDisconnectedError() if not isinstance(error.message, str):
            # aiohttp hands over the head it had begun to parse: the engine was already answering.
            return httpx.RemoteProtocolError("The connection closed inside the response head.")
        case aiohttp.ClientConnectionError():
            return StaleConnectionError(str(disconnected())) if reused else disconnected()
        case aiohttp.InvalidURL():
            return httpx.UnsupportedProtocol(str(error))
    return httpx.RemoteProtocolError("The server sent something that is not HTTP.")
