"""Started in place of a server: asks Linux to end this process with its launcher, then becomes the server.

A launcher that is killed with SIGKILL (an out-of-memory killer, a scheduler's last word) cannot stop anything any
more, and its servers would go on and hold their ports. The kernel's request survives the change of program, so the
process that goes on is `python <file>` with the same id. Only Linux has it: elsewhere a launcher that was killed
leaves its servers behind. A program of its own rather than a `preexec_fn`, which runs Python in a fork of a process
that may have threads. Standard library only, because it runs in isolated mode.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def ending_with_this_process(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` and gets SIGTERM when the thread that starts it ends.

    SIGTERM, so that a server with several workers stops them; one that ignores it stays. The command itself where
    the platform has no such request.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(arguments: Sequence[str]) -> None:
    """Become the command behind the launcher's process id; end if the launcher has gone already."""
    launcher, *command = arguments
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(launcher):
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell, and that is the purpose of this file


if __name__ == "__main__":
    main(sys.argv[1:])
