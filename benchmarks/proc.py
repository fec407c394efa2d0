"""What Linux says about processes: CPU time, memory, and how busy the machine is. /proc only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# A process or thread may end between listing and reading it.
_GONE = (FileNotFoundError, ProcessLookupError)


def family(pid: int) -> Iterator[int]:
    """The process and everything that it has started and that still lives."""
    yield pid
    children = ""
    with suppress(*_GONE):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    for child in children.split():
        yield from family(int(child))


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process and its descendants.

    From schedstat, in nanoseconds: a tick of /proc/PID/stat (10 ms) is longer than a request. Threads that have ended
    are no longer counted, so the servers measured must keep theirs.
    """
    nanoseconds = 0
    for member in family(pid):
        with suppress(*_GONE):
            for thread in os.listdir(f"/proc/{member}/task"):  # noqa: PTH208 - read around every turn
                with suppress(*_GONE), open(f"/proc/{member}/task/{thread}/schedstat", "rb") as file:  # noqa: PTH123
                    nanoseconds += int(file.read().split()[0])
    return nanoseconds / 1e9


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory of a process and its descendants: `VmRSS` now, `VmHWM` at its highest."""
    kilobytes = 0
    for member in family(pid):
        with suppress(*_GONE):
            for line in Path(f"/proc/{member}/status").read_text().splitlines():
                if line.startswith(f"{field}:"):
                    kilobytes += int(line.split()[1])
    return kilobytes / 1024


def machine_busy_seconds() -> float:
    """CPU time of everything on the machine since it was started, idle and waiting for disks left out."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    _user, _nice, _system, idle, waiting, *_ = fields
    return (sum(fields) - idle - waiting) / _TICKS_PER_SECOND
