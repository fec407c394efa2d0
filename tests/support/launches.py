"""A tiny server directory for launches, and the files of a configuration."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# Standard library only, so that a child starts in a tenth of a second. GET / tells what the process was given.
ECHO_APP = """
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import yaml

config = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])
name = os.environ["NEMO_GYM_CONFIG_PATH"]
block = config[name]["responses_api_models"]["echo_model"]
if block.get("ignore_term"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if block.get("exit_code") is not None:
    print("no more", file=sys.stderr)
    sys.exit(block["exit_code"])
if block.get("worker"):
    import subprocess

    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("worker", worker.pid)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/exit":
            os._exit(7)
        given = {"argv": sys.argv, "config": config, "name": name, "cwd": os.getcwd(),
                 "secret": os.environ["NEMO_GYM_SESSION_SECRET"], "pid": os.getpid()}
        body = json.dumps(given).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


print("listening on", block["port"])
HTTPServer((block["host"], block["port"]), Handler).serve_forever()
"""


def write_echo_server(root: Path) -> None:
    """Make `root` a place in which the implementation `echo_model` is found."""
    write(root / "responses_api_models/echo_model/app.py", ECHO_APP)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def echo_yaml(name: str = "policy_model", **settings: object) -> str:
    """A configuration with one echo server; settings are written as YAML scalars."""
    lines = [f"      {key}: {value}" for key, value in settings.items()]
    return "\n".join(
        [f"{name}:", "  responses_api_models:", "    echo_model:", "      entrypoint: app.py", *lines, ""]
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ng_run_command(*overrides: str) -> list[str]:
    return [sys.executable, "-m", "nemo_gym.cli", *overrides]


def ng_run_environment() -> dict[str, str]:
    """The environment of a shell from which nobody has configured anything, and in which nemo_gym is found."""
    unset = (
        "NEMO_GYM_CONFIG_DICT",
        "NEMO_GYM_CONFIG_PATH",
        "NEMO_GYM_EXTRA_ROOTS",
        "NEMO_GYM_SESSION_SECRET",
    )
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    return {**kept, "PYTHONPATH": str(REPOSITORY)}
