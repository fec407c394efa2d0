"""The smallest server there is, as an entry-point file: for tests that start processes.

It says on stderr when it is built, started and stopped, and in which process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.errors import ConfigError
from nemo_gym.json_response import json_response
from nemo_gym.server_utils import (
    SESSION_ID_KEY,
    SimpleServer,
    get_nemo_gym_fastapi_num_workers,
    is_nemo_gym_fastapi_entrypoint,
)


class TinyConfig(BaseRunServerInstanceConfig):
    fail_at: str = "never"


def note(what: str) -> None:
    sys.stderr.write(f"TINY {what} {os.getpid()}\n")
    sys.stderr.flush()


class TinyServer(SimpleServer):
    config: TinyConfig

    def model_post_init(self, context: object, /) -> None:
        note("built")
        if self.config.fail_at == "construction":
            raise ConfigError("fail_at: construction cannot be used", param="fail_at")

    async def on_startup(self) -> None:
        if self.config.fail_at == "startup":
            raise ConfigError("fail_at: startup cannot\nbe used", param="fail_at")
        if self.config.fail_at == "startup_bug":
            raise KeyError("a bug")
        note("started")

    async def on_shutdown(self) -> None:
        note("stopped")

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        self.setup_session_middleware(app)
        app.add_route("/who", self._who)
        app.add_route("/hang", self._hang)
        return app

    async def _who(self, request: Request) -> Response:
        return json_response(
            {
                "pid": os.getpid(),
                "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
                "session": request.session[SESSION_ID_KEY],
                "num_workers": get_nemo_gym_fastapi_num_workers(),
            }
        )

    async def _hang(self, _request: Request) -> Response:
        note("hanging")
        await asyncio.Event().wait()
        raise RuntimeError("nobody sets that event")


if __name__ == "__main__":
    TinyServer.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = TinyServer.run_webserver()
