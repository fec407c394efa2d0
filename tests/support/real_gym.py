"""The real NeMo Gym, run from an environment of its own: servers started, rollouts collected, everything taken down.

NEMO_GYM_HOME names a virtual environment that has nemo-gym 0.4.0 (.ci/install_gym.sh makes one). Nothing is installed
or downloaded: the agent and the resources server run in that same environment, which a link makes Gym believe ready.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.support.launches import free_port

HOME_VARIABLE = "NEMO_GYM_HOME"

# Generous, because they only bound a failure: a machine with two busy cores needs a minute for Ray alone.
READY_SECONDS = 300
COLLECT_SECONDS = 180
STOP_SECONDS = 60
POLL_SECONDS = 0.2


@dataclass
class RealGym:
    """Gym's commands in one working directory. `exit_code` and `left_behind` are known when `servers` is left."""

    home: Path
    directory: Path
    head_port: int = field(default_factory=free_port)
    exit_code: int | None = None
    left_behind: list[str] = field(default_factory=list)

    def lend_environment_to(self, *servers: str) -> None:
        """Let these servers run in Gym's own environment, as with +skip_venv_if_present=true after a set-up."""
        for server in servers:
            (self.directory / server).mkdir(parents=True)
            (self.directory / server / ".venv").symlink_to(self.home)

    @asynccontextmanager
    async def servers(self, *arguments: str) -> AsyncIterator[dict[str, str]]:
        """`gym env start`; yields the URL of each server by its name. When it is left no process of it remains."""
        with tempfile.TemporaryDirectory(prefix="ray") as scratch:  # short: Ray puts sockets there
            log = self.directory / "env-start.log"
            process = await self._start(["env", "start", *arguments], Path(scratch), log)
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await _until_said(process, "servers ready!", log)
                yield await self._urls()
            finally:
                self.exit_code = await _stop(process)
                self.left_behind = await _end_session(process.pid)

    async def collect(self, output: Path, *arguments: str) -> None:
        """`gym eval run --no-serve`, against the servers that are running."""
        log = self.directory / "eval-run.log"
        command = ["eval", "run", "--no-serve", "--output", str(output), *arguments]
        process = await self._start(command, self.directory, log)
        try:
            async with asyncio.timeout(COLLECT_SECONDS):
                code = await process.wait()
        finally:
            await _end_session(process.pid)
            await process.wait()
        if code != 0:
            raise AssertionError(f"gym eval run ended with {code}:\n{_tail(log)}")

    async def _start(self, command: list[str], scratch: Path, log: Path) -> Process:
        head = [
            f"++head_server.{name}={value}"
            for name, value in (("host", "127.0.0.1"), ("port", self.head_port))
        ]
        with log.open("wb") as sink:
            return await asyncio.create_subprocess_exec(
                self.home / "bin/gym",
                *command,
                *head,
                cwd=self.directory,
                env=self._environment(scratch),
                stdin=DEVNULL,
                stdout=sink,
                stderr=STDOUT,
                start_new_session=True,  # so that all that it starts is found again
                # A test run in a shell's background ignores Ctrl-C, and so would what it starts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def _environment(self, scratch: Path) -> dict[str, str]:
        """Nothing of this project's environment: its PYTHONPATH would put our nemo_gym before the real one."""
        ours = ("NEMO_GYM", "RAY_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return kept | {
            "PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(scratch),  # Ray writes a token there
            "RAY_TMPDIR": str(scratch),
            "RAY_USAGE_STATS_ENABLED": "0",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    async def _urls(self) -> dict[str, str]:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"http://127.0.0.1:{self.head_port}/server_instances")
        return {instance["config_path"]: instance["url"] for instance in answer.json()}


async def _until_said(process: Process, line: str, log: Path) -> None:
    while line not in _read(log):
        if process.returncode is not None:
            raise AssertionError(
                f"gym ended with {process.returncode} before it said {line!r}:\n{_tail(log)}"
            )
        await asyncio.sleep(POLL_SECONDS)


async def _stop(process: Process) -> int | None:
    """Ctrl-C, as its user would; None when it does not end."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            return await process.wait()
    return None


async def _end_session(session: int) -> list[str]:
    """Wait for the processes of a session to end, Ray's take their time, and kill and return those that do not."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS / 2):
            while _processes(session):  # noqa: ASYNC110 - strangers' processes set no event
                await asyncio.sleep(POLL_SECONDS)
    remaining = _processes(session)
    for pid in remaining:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return list(remaining.values())


def _processes(session: int) -> dict[int, str]:
    """Live processes of a session with their names, from /proc."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            head, _, rest = stat.read_text(errors="replace").rpartition(")")
            state, _parent, _group, its_session = rest.split()[:4]
            if int(its_session) == session and state != "Z":
                found[int(stat.parent.name)] = head.partition("(")[2]
    return found


def _read(log: Path) -> str:
    return log.read_text(errors="replace")


def _tail(log: Path) -> str:
    return _read(log)[-6000:]
