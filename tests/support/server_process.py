"""A server in a process of its own, started as NeMo Gym starts one: configuration in the environment."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
NAME = "tiny_model"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


@dataclass
class ServerProcess:
    """`stderr` is what it has said so far."""

    process: subprocess.Popen[str]
    port: int
    stderr: str = field(default="")

    def wait_for(self, line: str, times: int = 1) -> None:
        """Read what the server says until it has said `line` so often."""
        stream = self.process.stderr
        if stream is None:
            raise RuntimeError("the process was started without a pipe for stderr")
        while self.stderr.count(line) < times:
            said = stream.readline()
            if not said:
                raise AssertionError(f"the server ended before it said {line!r}:\n{self.stderr}")
            self.stderr += said

    def end(self, with_signal: signal.Signals | None = signal.SIGINT) -> int:
        """Stop it as NeMo Gym does, or let it end; return its exit code."""
        if with_signal is not None:
            self.process.send_signal(with_signal)
        _, rest = self.process.communicate(timeout=30)
        self.stderr += rest
        return self.process.returncode


def environment(port: int, **fields: object) -> dict[str, str]:
    """The environment in which a launcher starts the server; `fields` go into its block, or `top` beside
    it."""
    top = fields.pop("top", {})
    block = {"entrypoint": "app.py", "host": "127.0.0.1", "port": port, **fields}
    config = {NAME: {"responses_api_models": {NAME: block}}, **top}  # type: ignore[dict-item]
    ours = {"NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config), "NEMO_GYM_CONFIG_PATH": NAME}
    inherited = {key: value for key, value in os.environ.items() if "NEMO_GYM" not in key}
    return inherited | ours | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@contextmanager
def server_process(command: Sequence[str], *, cwd: Path = ROOT, **fields: object) -> Iterator[ServerProcess]:
    """Run `command` with this Python; it is gone when the block is left."""
    port = free_port()
    process = subprocess.Popen(  # noqa: S603 - this Python, and a file of ours
        [sys.executable, *command],
        cwd=cwd,
        env=environment(port, **fields),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield ServerProcess(process, port)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
