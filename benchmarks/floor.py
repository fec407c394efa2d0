"""The floor: the least work on the web stack that a Gym server stands on, in a process of its own.

    python -m benchmarks.floor --port 8000 --engine http://127.0.0.1:30000 --transport chat --tokenizer FOLDER

uvicorn with httptools and uvloop, Starlette with its signed session cookie, aiohttp to the engine. What is under it is
done by leaving that stack.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tokenizers import Tokenizer

from benchmarks.floor_turns import ChatFloor, Floor, GenerateFloor


class Engine:
    """Calls of the engine, over as many kept-alive connections as are needed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: bytes) -> bytes:
        """Raises aiohttp.ClientError."""
        if self._session is None:
            raise RuntimeError("the engine is called before the application has started")
        headers = {"content-type": "application/json"}
        async with self._session.post(self._url + path, data=body, headers=headers) as response:
            response.raise_for_status()
            return await response.read()

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            read_bufsize=1 << 20,
        ) as self._session:
            yield


def make_app(floor: Floor, engine_url: str) -> Starlette:
    engine = Engine(engine_url)

    async def responses(request: Request) -> Response:
        session = request.session.setdefault("session_id", uuid4().hex)
        answer = await floor.turn(session, await request.body(), engine.post)
        return Response(answer, media_type="application/json")

    async def alive(_request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    return Starlette(
        routes=[Route("/v1/responses", responses, methods=["POST"]), Route("/", alive)],
        middleware=[Middleware(SessionMiddleware, secret_key=uuid4().hex, session_cookie="floor")],
        lifespan=engine.lifespan,
    )


def make_floor(transport: str, folder: Path) -> Floor:
    if transport == "chat":
        return ChatFloor()
    return GenerateFloor(Tokenizer.from_file(str(folder / "tokenizer.json")))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--transport", choices=("chat", "generate"), required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    arguments = parser.parse_args()
    app = make_app(make_floor(arguments.transport, arguments.tokenizer), arguments.engine)
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=arguments.port,
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
