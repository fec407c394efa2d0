"""How long a server takes from the start of its process until it answers GET /."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from benchmarks.effort import Effort
from benchmarks.fleet import Fleet
from benchmarks.proc import cpu_seconds, memory_mb
from benchmarks.records import Reading

MEASUREMENT = "start-up"
SERVERS = ("chat", "chat-training", "generate", "nemo-gym", "floor-chat", "floor-generate")
"""Without a tokenizer: the chats; `generate` loads one."""


def start_up(fleet: Fleet, _seed: int, effort: Effort, without: Collection[str]) -> Iterator[Reading]:
    servers = [name for name in SERVERS if name not in without]
    for number in range(1 if effort is Effort.QUICK else 3):
        for server in servers:
            process = fleet.start(server)
            readings = {
                "seconds": process.start_seconds,
                "cpu_seconds": cpu_seconds(process.pid),
                "rss_mb": memory_mb(process.pid),
            }
            fleet.retire(process)
            for name, value in readings.items():
                yield Reading(MEASUREMENT, server, name, value, number)
