"""Speaks to an engine in process, in the few ways that its tests need."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn

from sglang_model.testing import Engine, EngineSettings, create_engine_app

TOKEN_FIELDS = {"logprobs": True, "return_meta_info": True, "return_prompt_token_ids": True}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class EngineClient:
    """One engine and a client of it."""

    def __init__(self, engine: Engine, http: httpx.AsyncClient) -> None:
        self.engine = engine
        self.http = http

    async def chat(self, content: object = "hello", **fields: object) -> httpx.Response:
        """A chat completion with the token fields; `content` is the user's text, or the whole message list."""
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        body = {"model": "m", "messages": messages, **TOKEN_FIELDS, **fields}
        return await self.http.post("/v1/chat/completions", json=body)

    async def generate(self, text: object = "hello", **fields: object) -> httpx.Response:
        prompt = {} if "input_ids" in fields else {"text": text}
        return await self.http.post("/generate", json={**prompt, "return_logprob": True, **fields})

    async def choice(self, content: object = "hello", **fields: object) -> dict[str, object]:
        response = await self.chat(content, **fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    async def message(self, content: object = "hello", **fields: object) -> dict[str, object]:
        return (await self.choice(content, **fields))["message"]


@asynccontextmanager
async def engine_client(
    headers: dict[str, str] | None = None, **settings: object
) -> AsyncIterator[EngineClient]:
    engine = create_engine_app(EngineSettings(**settings))
    transport = httpx.ASGITransport(app=engine)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", headers=headers) as http:
        yield EngineClient(engine, http)


@asynccontextmanager
async def served_engine(**settings: object) -> AsyncIterator[EngineClient]:
    """The same over a real socket, for what happens to connections."""
    engine = create_engine_app(EngineSettings(**settings))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(engine, log_level="error", lifespan="off"))
    # The socket listens already, so a request that comes before the server is up waits for it.
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            yield EngineClient(engine, http)
    finally:
        server.should_exit = True
        await serving
