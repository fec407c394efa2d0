"""The cheapest HTTP/1.1 client that asyncio allows, so that the load generator is not what is measured."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass

import httptools


@dataclass(frozen=True)
class Answer:
    """One answer; `seconds` is from the first byte sent to the last byte read, however busy the reader is then."""

    status: int
    body: bytes
    cookies: tuple[bytes, ...]
    seconds: float


class Connection(asyncio.Protocol):
    """One kept-alive connection with at most one request under way."""

    def __init__(self) -> None:
        self.closed = False
        self._waiting: asyncio.Future[Answer] | None = None
        self._started = 0.0
        self._start_message()

    def _start_message(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks: list[bytes] = []
        self._cookies: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        # uvloop keeps smaller writes back until everybody else who is ready has had a turn.
        self._transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._fail(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(error)
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"set-cookie":
            self._cookies.append(value.partition(b";")[0])

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        waiting, self._waiting = self._waiting, None
        if not self._parser.should_keep_alive():
            self.closed = True
        if waiting is not None and not waiting.done():
            seconds = time.perf_counter() - self._started
            status, body = self._parser.get_status_code(), b"".join(self._chunks)
            waiting.set_result(Answer(status, body, tuple(self._cookies), seconds))
        self._start_message()

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    async def send(self, head: bytes, body: bytes) -> Answer:
        self._waiting = asyncio.get_running_loop().create_future()
        self._started = time.perf_counter()
        self._transport.writelines([head, body])
        return await self._waiting

    def close(self) -> None:
        self.closed = True
        self._transport.abort()


class RawClient:
    """Keep-alive connections to one address, as many as requests are under way."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", timeout: float = 120.0) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout
        self._idle: list[Connection] = []

    async def post(self, path: str, body: bytes, cookie: bytes = b"") -> Answer:
        """Raises ConnectionError, httptools.HttpParserError or TimeoutError."""
        cookie_line = b"cookie: %s\r\n" % cookie if cookie else b""
        head = (
            b"POST %s HTTP/1.1\r\nhost: %s:%d\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"
            % (
                path.encode(),
                self._host.encode(),
                self._port,
                cookie_line,
                len(body),
            )
        )
        return await self._send(head, body)

    async def get(self, path: str) -> Answer:
        return await self._send(
            b"GET %s HTTP/1.1\r\nhost: %s:%d\r\n\r\n" % (path.encode(), self._host.encode(), self._port), b""
        )

    async def _send(self, head: bytes, body: bytes) -> Answer:
        connection = await self._connection()
        try:
            async with asyncio.timeout(self._timeout):
                answer = await connection.send(head, body)
        except BaseException:
            connection.close()
            raise
        if not connection.closed:
            self._idle.append(connection)
        return answer

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        _, connection = await asyncio.get_running_loop().create_connection(Connection, self._host, self._port)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
