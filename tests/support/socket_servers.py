"""Servers on real sockets that do exactly what a test tells them, down to the way a connection ends.

For what no in-process transport can show: refused, reset, half-answered and cancelled connections.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection:
    """One accepted connection; what it receives is also recorded in its server."""

    def __init__(
        self, server: SocketServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer

    async def read_request(self) -> ReceivedRequest:
        """Read one whole request; asyncio.IncompleteReadError when the client closes instead."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.split("\r\n")
        method, path, _ = start.split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
        }
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        request = ReceivedRequest(method, path, headers, body)
        self._server.requests.append(request)
        return request

    async def read_some(self) -> bytes:
        """Read whatever comes first, of any protocol."""
        return await self._reader.read(1 << 16)

    async def answer(
        self, body: bytes = b"{}", *, status: str = "200 OK", headers: tuple[str, ...] = ()
    ) -> None:
        """Send a complete response and keep the connection open."""
        lines = [
            f"HTTP/1.1 {status}",
            f"Content-Length: {len(body)}",
            "Content-Type: application/json",
            *headers,
        ]
        await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def until_client_closes(self) -> None:
        """Return once the client has closed its end, however it did."""
        try:
            await self._reader.read()
        except ConnectionError:
            return

    def reset(self) -> None:
        """End the connection with RST instead of FIN."""
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Script: TypeAlias = Callable[[Connection], Awaitable[None]]


@dataclass
class SocketServer:
    url: str
    requests: list[ReceivedRequest] = field(default_factory=list)
    connections: int = 0


@asynccontextmanager
async def socket_server(*scripts: Script) -> AsyncIterator[SocketServer]:
    """Serve connection n with `scripts[n]`, later ones with the last; a script's end closes its own."""
    state = SocketServer(url="")
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        task.add_done_callback(running.discard)
        script = scripts[min(state.connections, len(scripts) - 1)]
        state.connections += 1
        # The client may go first, and the test may end before the script does.
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await script(Connection(state, reader, writer))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 24)
    state.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield state
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def answering(connection: Connection) -> None:
    """Script: answer every request of the connection with an empty JSON object."""
    while True:
        await connection.read_request()
        await connection.answer()


def unused_url() -> str:
    """Return a URL on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
