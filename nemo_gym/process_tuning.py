"""What a server process is told about itself once: threads, garbage, memory."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

SWITCH_SECONDS: Final = 0.002
GARBAGE_THRESHOLDS: Final = (1_500, 1, 1_000)
"""CPython's three: so many new objects start a collection, each third of which also walks what outlived the two before,
and each thousandth of these everything.

A collection holds the event loop, up to 1 µs per object: 1 to 3 ms the first two kinds, 0.1 s the last, which is rare
for that reason. Requests leave no cycles, failed ones neither, only connections do, so there is little to be found.
"""

MMAP_THRESHOLD: Final = 32 * 1024 * 1024
"""Bytes from which on glibc asks the system for each buffer; more than this it does not accept."""

TRIM_THRESHOLD: Final = 64 * 1024 * 1024
"""Freed bytes at the end of the heap that glibc keeps, and of each thread's: what a dozen requests of 5 MB leave."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_CHOSEN_BY_THE_USER: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
_TUNABLES: Final = "glibc.malloc."


def tune_process() -> None:
    """Call once, when everything is loaded and before the first request."""
    leave_startup_objects_alone()
    let_the_loop_have_its_turn()
    keep_freed_memory()


def let_the_loop_have_its_turn() -> None:
    """Make threads give way to the event loop after 2 ms instead of Python's 5.

    Rendering conversations of 200 messages in a thread made the loop wait up to 27 ms (p99), and 4 with this.
    """
    sys.setswitchinterval(SWITCH_SECONDS)


def leave_startup_objects_alone() -> None:
    """Take what exists now out of every later garbage collection, and collect less often.

    Modules, models and a tokenizer are 180,000 objects that live as long as the process; a full collection walks them
    all and holds the event loop for 100 ms and more, in the middle of some request. Python's own threshold of 700 new
    objects is reached several times in every request, whose objects go by reference count anyway: 0.08 of 1.46 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def keep_freed_memory() -> None:
    """Make the C library keep the memory of a large buffer for the next one.

    A request that echoes twenty turns has megabytes, which are copied four times between the socket and the decoder.
    glibc gives each of these buffers back at once, and the system zeroes every page of the next: reading 5 MB through
    uvicorn took 8.3 ms of CPU, and 2.8 with this. Other C libraries are left alone, and so is what the environment
    says.
    """
    if any(name in os.environ for name in _CHOSEN_BY_THE_USER) or _TUNABLES in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, AttributeError, OSError, TypeError):  # a Python without it, musl, macOS, Windows
        return
    mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD)
    mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD)
