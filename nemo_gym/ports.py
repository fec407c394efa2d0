"""Ports for the servers of a launch: a free one for those that name none, a check for those that do."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from random import SystemRandom
from typing import Final

from nemo_gym.errors import ConfigError

# NeMo Gym's head server listens here by default, and a Gym run may be on the same machine.
GYM_HEAD_SERVER_PORT: Final = 11000


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen on the port now. Nothing is reserved: the caller must be quick."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return True
    except OSError:
        return False


def pick_free_port(host: str, low: int, high: int, *, taken: Iterable[int]) -> int:
    """A free port from `low` to `high`, both included, that is not among `taken`.

    At random, so that two launches on one machine seldom pick the same before they listen on it.
    """
    candidates = list(set(range(low, high + 1)) - set(taken) - {GYM_HEAD_SERVER_PORT})
    SystemRandom().shuffle(candidates)
    for port in candidates:
        if is_free(host, port):
            return port
    raise ConfigError(
        f"none of the ports {low} to {high} is free on {host}; "
        "set ++port_range_low=<port> ++port_range_high=<port>",
        param="port_range_low",
    )
