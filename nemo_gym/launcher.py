"""Starts the servers of a launch plan as child processes and watches them: all of them run, or none does.

A server gets its configuration the way NeMo Gym hands it over: the merged YAML in NEMO_GYM_CONFIG_DICT and
its own name in NEMO_GYM_CONFIG_PATH. Command lines are `python <file>` and nothing else, because everyone on
the machine can read them and the configuration holds API keys.

There is no head server: NeMo Gym's answers anyone who asks with the whole configuration, keys included, and
nothing here needs it, since the servers know each other's addresses from their own copy. There is no Ray: no
server here is distributed, and starting it costs half a minute and a dozen processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from omegaconf import OmegaConf

from nemo_gym.child_process import ChildProcess, Sink
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME, NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME
from nemo_gym.launch_plan import LaunchPlan, PlannedServer
from nemo_gym.parent_death import ending_with_this_process
from nemo_gym.sessions import SESSION_SECRET_ENV_VAR_NAME

LOGGER = logging.getLogger(__name__)

SERVER_DIED_EXIT_CODE: Final = 1

# uvicorn gives requests half a second; a server with a slow shutdown gets some more.
GRACE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_PROBE_TIMEOUT_SECONDS: Final = 5.0
REMINDER_SECONDS: Final = 30.0


def child_environment(
    plan: LaunchPlan, server: PlannedServer, env: Mapping[str, str], secret: str
) -> dict[str, str]:
    """The environment of one server: ours, the configuration, and the secret that signs session cookies.

    The secret is one per launch, so that the workers of a server read each other's cookies, and random, so
    that nobody can make up a session and continue someone else's prompt. One that is set already stays.
    """
    environment = {
        SESSION_SECRET_ENV_VAR_NAME: secret,
        **env,
        NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME: OmegaConf.to_yaml(plan.config),
        NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME: server.name,
        "PYTHONUNBUFFERED": "1",
    }
    source_tree = Path(__file__).resolve().parents[1]
    if (source_tree / "pyproject.toml").is_file():
        # A checkout that is not installed: the child finds nemo_gym where this process did.
        paths = [str(source_tree), *filter(None, [env.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


class Launcher:
    """Runs the servers of one plan. When `run` returns or raises, no process that it started is left; on Linux
    none is when this process is killed, either (`parent_death`).
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: Sink,
        err: Sink,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._plan = plan
        self._cwd = cwd
        self._env = env
        self._out = out
        self._err = err
        self._grace_seconds = grace_seconds
        self._session_secret = secrets.token_urlsafe(32)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def request_stop(self) -> None:
        """Stop all servers; a second request kills them at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> int:
        """Start and watch everything. 0 after a requested stop, SERVER_DIED_EXIT_CODE if a server ended."""
        children: list[ChildProcess] = []
        with self._signals():
            try:
                for server in self._plan.servers:
                    children.append(await self._start(server))  # noqa: PERF401 - `finally` needs them
                return await self._watch(children)
            finally:
                await asyncio.gather(
                    *(child.stop(grace_seconds=self._grace_seconds, hurry=self._hurry) for child in children)
                )

    async def _start(self, server: PlannedServer) -> ChildProcess:
        environment = child_environment(self._plan, server, self._env, self._session_secret)
        command = ending_with_this_process([sys.executable, str(server.entrypoint)])
        try:
            return await ChildProcess.start(
                server.name, command, env=environment, cwd=self._cwd, out=self._out, err=self._err
            )
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            size = len(environment[NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME].encode())
            raise ConfigError(
                f"the merged configuration has {size} bytes, more than a process can be given; move long "
                "texts, such as chat templates, into files of their own"
            ) from error

    async def _watch(self, children: Iterable[ChildProcess]) -> int:
        exits = {asyncio.create_task(child.wait()): child.name for child in children}
        ready = asyncio.create_task(wait_until_ready(self._plan.servers))
        stop = asyncio.create_task(self._stop.wait())
        watched: set[asyncio.Task[Any]] = {*exits, ready, stop}
        try:
            while True:
                done, watched = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if stop in done:
                    LOGGER.info("Stopping %d servers", len(exits))
                    return 0
                for ended in done & exits.keys():
                    how = _ending(ended.result())
                    LOGGER.error("The server %s %s; its own output says why", exits[ended], how)
                    return SERVER_DIED_EXIT_CODE
                ready.result()
                self._report_ready()
        finally:
            for task in watched:
                task.cancel()
            await asyncio.gather(*watched, return_exceptions=True)

    def _report_ready(self) -> None:
        servers = self._plan.servers
        LOGGER.info("All %d / %d servers ready", len(servers), len(servers))
        for server in servers:
            LOGGER.info("  %s: %s", server.name, server.url)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop on the signals by which terminals, supervisors and schedulers ask for it."""
        loop = asyncio.get_running_loop()
        wanted = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            wanted.append(signal.SIGHUP)
        for number in wanted:
            loop.add_signal_handler(number, self.request_stop)
        try:
            yield
        finally:
            for number in wanted:
                loop.remove_signal_handler(number)


async def wait_until_ready(
    servers: Iterable[PlannedServer], *, reminder_seconds: float = REMINDER_SECONDS
) -> None:
    """Return when every server has answered GET /. There is no limit, but a reminder now and then."""
    async with httpx.AsyncClient(trust_env=False, timeout=_PROBE_TIMEOUT_SECONDS) as client:
        probes = {asyncio.create_task(_probe(client, server)): server.name for server in servers}
        try:
            while True:
                _, pending = await asyncio.wait(probes, timeout=reminder_seconds)
                if not pending:
                    return
                LOGGER.info("Still waiting for %s", ", ".join(sorted(probes[probe] for probe in pending)))
        finally:
            for probe in probes:
                probe.cancel()


async def _probe(client: httpx.AsyncClient, server: PlannedServer) -> None:
    while True:
        try:
            await client.get(server.url)
        except httpx.TransportError:
            await asyncio.sleep(_POLL_SECONDS)
        else:
            return


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by signal {-code} ({signal.Signals(-code).name})"
