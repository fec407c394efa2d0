"""One server's process: started with its output marked, stopped together with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeAlias

from nemo_gym.line_prefix import LinePrefixer

Sink: TypeAlias = Callable[[bytes], None]

_CHUNK: Final = 1 << 16
# The output of a killed process is read to its end, unless a stranger keeps the pipe open.
_DRAIN_SECONDS: Final = 1.0


class ChildProcess:
    """A running server. After `stop` it has ended, and so has every process of its group."""

    def __init__(self, name: str, process: Process, pumps: Sequence[asyncio.Task[None]]) -> None:
        self.name = name
        self._process = process
        self._pumps = pumps

    @classmethod
    async def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        out: Sink,
        err: Sink,
    ) -> Self:
        """Start `command` in a session of its own: Ctrl-C in the terminal reaches the launcher only.

        The pipes are ours and not asyncio's, whose `wait()` ends only when every process that inherited them
        has closed them: a worker that outlives its server would hide the death of the server. Raises OSError.
        """
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out_write,
                stderr=err_write,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError:
            os.close(out_read)
            os.close(err_read)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        pumps = [
            asyncio.create_task(_pump(name, out_read, out)),
            asyncio.create_task(_pump(name, err_read, err)),
        ]
        return cls(name, process, pumps)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the end of the process; a negative number is the signal that ended it."""
        return await self._process.wait()

    async def stop(self, *, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Ask the process to end, and kill its group when the grace is over or `hurry` is set."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            waits = [asyncio.create_task(self.wait()), asyncio.create_task(hurry.wait())]
            await asyncio.wait(waits, timeout=grace_seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        # The group outlives its leader when a worker does.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.wait()
        await asyncio.wait(self._pumps, timeout=_DRAIN_SECONDS)
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)


def sink_to(stream: BinaryIO) -> Sink:
    """Write to a stream while somebody reads it: `ng_run | head` must not end or block the servers."""

    def write(data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            stream.write(data)
            stream.flush()

    return write


async def _pump(name: str, descriptor: int, sink: Sink) -> None:
    """Pass a process's output on, marked with its name, until it closes the pipe."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", buffering=0)
    )
    prefixer = LinePrefixer(name)
    try:
        while chunk := await reader.read(_CHUNK):
            sink(prefixer.feed(chunk))
    finally:
        sink(prefixer.flush())
        transport.close()
