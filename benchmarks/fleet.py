"""Starts servers and engine stubs as child processes when they are first needed, and stops every one of them.

A `with` block around it ends them all, also on errors and Ctrl-C; they are in sessions of their own, so that Ctrl-C
reaches this process only, and Linux ends them if this process is killed.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from benchmarks.servers import SERVERS, Server, Setting, Start, engine_start, profiled
from benchmarks.stub_answers import Mode, Shape

START_SECONDS = 90.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.01


class BenchmarkError(RuntimeError):
    """A server did not start or a measurement failed. The run ends with it."""


@dataclass
class Process:
    """A child that listens on `port`. `start_seconds` is how long it took until GET / was answered."""

    name: str
    port: int
    popen: subprocess.Popen[bytes]
    log: Path
    start_seconds: float = 0.0

    @property
    def pid(self) -> int:
        return self.popen.pid

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.popen.wait(STOP_SECONDS)
        if self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait()

    def last_words(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]


@dataclass(frozen=True)
class Target:
    """A server that is up, with the engine behind it."""

    server: Server
    process: Process
    engine: Process


class Fleet:
    """Invariant: whatever was started here has ended when the `with` block is left."""

    def __init__(self, *, tokenizer: Path, corpus: Path, logs: Path) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._logs = logs
        self._processes: list[Process] = []
        self._engines: dict[Mode, Process] = {}
        self._servers: dict[str, Process] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.stop()

    @property
    def corpus(self) -> Path:
        return self._corpus

    def target(self, name: str) -> Target:
        """The server of that name, started at its first use and kept."""
        server = SERVERS[name]
        engine = self._engine(server.engine)
        if server.start is None:
            return Target(server, engine, engine)
        if name not in self._servers:
            self._servers[name] = self.start(name)
        return Target(server, self._servers[name], engine)

    def fresh(self, name: str) -> Target:
        """A new process of that server, beside the one that is kept; to be ended with `retire`."""
        server = SERVERS[name]
        return Target(server, self.start(name), self._engine(server.engine))

    def profiled(self, name: str, out: Path) -> Target:
        """As `fresh`, counting where its CPU goes; see `profiled_server`."""
        server = SERVERS[name]
        return Target(server, self.start(name, profile=out), self._engine(server.engine))

    def start(self, name: str, *, profile: Path | None = None) -> Process:
        server = SERVERS[name]
        if server.start is None:
            raise ValueError(f"{name} is no server of its own")
        port = _free_port()
        engine = self._engine(server.engine)
        start = server.start(Setting(port, engine.port, self._tokenizer, self._corpus))
        return self._spawn(name, port, start if profile is None else profiled(start, profile))

    def retire(self, process: Process) -> None:
        process.stop()
        self._processes.remove(process)

    def configure(self, mode: Mode, shape: Shape) -> None:
        """Tell an engine stub how big its answers are from now on."""
        connection = http.client.HTTPConnection("127.0.0.1", self._engine(mode).port, timeout=30)
        connection.request("POST", "/config", orjson.dumps(shape))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        if answer.status != 200:
            raise BenchmarkError(f"the {mode} engine stub refused its configuration: {content.decode()}")

    def _engine(self, mode: Mode) -> Process:
        if mode not in self._engines:
            port = _free_port()
            setting = Setting(port, port, self._tokenizer, self._corpus)
            self._engines[mode] = self._spawn(f"engine-{mode}", port, engine_start(mode, setting))
        return self._engines[mode]

    def _spawn(self, name: str, port: int, start: Start) -> Process:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("NEMO_GYM_CONFIG")}
        log = self._logs / f"{name}-{port}.log"
        started = time.perf_counter()
        with log.open("wb") as output:
            popen = subprocess.Popen(
                start.command,
                env={**inherited, **start.environment},
                cwd=start.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process(name, port, popen, log)
        self._processes.append(process)
        _wait_until_up(process)
        process.start_seconds = time.perf_counter() - started
        return process


def _wait_until_up(process: Process) -> None:
    deadline = time.perf_counter() + START_SECONDS
    while time.perf_counter() < deadline:
        if process.popen.poll() is not None:
            raise BenchmarkError(f"{process.name} ended while it started:\n{process.last_words()}")
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=5)
            connection.request("GET", "/")
            connection.getresponse().read()
            connection.close()
            return
        time.sleep(_POLL_SECONDS)
    raise BenchmarkError(
        f"{process.name} did not answer within {START_SECONDS:.0f} s:\n{process.last_words()}"
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
