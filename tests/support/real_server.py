"""An application under a real uvicorn, on a real port, in the test's own loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from nemo_gym.webserver import uvicorn_options


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[int]:
    """Serve `app` and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        options = uvicorn_options(host="127.0.0.1", port=port, server_name="test", access_log=False)
        server = _Server(uvicorn.Config(app, **(options | {"log_config": None})))
        task = asyncio.create_task(server.serve([listener]))
        await server.is_up.wait()
        try:
            yield port
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()
