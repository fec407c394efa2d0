"""What the transport does to its sockets; everything else about it is seen through the pool."""

from __future__ import annotations

import socket

import pytest

from nemo_gym.http_pool import HTTPPool
from tests.support.socket_servers import answering, socket_server

PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


async def test_peer_that_vanished_is_noticed_by_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[tuple[int, int], object] = {}
    original = socket.socket.setsockopt

    def recording(self: socket.socket, level: int, option: int, *value: int) -> None:
        original(self, level, option, *value)
        options[level, option] = value[0]

    monkeypatch.setattr(socket.socket, "setsockopt", recording)
    async with socket_server(answering) as server:
        pool = HTTPPool()
        await pool.send("GET", server.url)
        await pool.aclose()
    assert options[socket.SOL_SOCKET, socket.SO_KEEPALIVE]
    for name, seconds in PROBES.items():
        if hasattr(socket, name):
            assert options[socket.IPPROTO_TCP, getattr(socket, name)] == seconds
