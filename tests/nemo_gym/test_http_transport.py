"""The parts of the transport that the pool's tests cannot see from outside."""

from __future__ import annotations

import socket

from nemo_gym.http_transport import open_socket


def test_peer_that_vanished_is_noticed_by_probes() -> None:
    with open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as opened:
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                assert opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == seconds
