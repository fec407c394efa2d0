"""Asks one server for `GET /` every two milliseconds, in a process of its own, until its standard input is closed.

    python -m benchmarks.probe PORT

Prints [[when, seconds], ...] with the clock that all processes of the machine share. Plain sockets, because the timers
of an event loop are too coarse for this.
"""

from __future__ import annotations

import select
import socket
import sys
import time

import orjson

INTERVAL_SECONDS = 0.002
_TIMEOUT_SECONDS = 60.0
_QUESTION = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


def probe(port: int) -> list[tuple[float, float]]:
    """Ask until there is something to read on standard input: its end."""
    samples = []
    with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not select.select([sys.stdin], [], [], INTERVAL_SECONDS)[0]:
            asked = time.perf_counter()
            ask(connection)
            samples.append((asked, time.perf_counter() - asked))
    return samples


def ask(connection: socket.socket) -> None:
    """One question and its whole answer. Raises OSError when the server hangs up."""
    connection.sendall(_QUESTION)
    received = b""
    while not _is_whole(received):
        chunk = connection.recv(65_536)
        if not chunk:
            raise ConnectionError("the server closed the connection of the probe")
        received += chunk


def _is_whole(received: bytes) -> bool:
    head, end, body = received.partition(b"\r\n\r\n")
    if not end:
        return False
    length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
    return len(body) >= int(length)


def main() -> None:
    sys.stdout.buffer.write(orjson.dumps(probe(int(sys.argv[1]))))


if __name__ == "__main__":
    main()
