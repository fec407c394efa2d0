"""A stand-in for an engine that costs next to nothing: asyncio, httptools, uvloop, and answers made beforehand.

    python -m benchmarks.engine_stub --port 30000 --corpus FILE --tokenizer FOLDER [--mode vllm]

It samples nothing. `/tokenize` and `/detokenize` are real in SGLang's mode, template included, because a server that
lets the engine render depends on them. `POST /config` changes the answers; loopback only.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httptools
import orjson
import uvloop

from benchmarks.stub_answers import CannedAnswers, Mode, Shape
from benchmarks.stub_tokenizer import StubTokenizer
from benchmarks.tokenizer import Corpus

HOST = "127.0.0.1"
VERSION = "0.5.13"
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found"}
_SERVER_INFO = {
    "version": VERSION,
    "status": "ready",
    "served_model_name": "bench",
    "tool_call_parser": "qwen",
    "reasoning_parser": "qwen3",
    "allow_auto_truncate": False,
    "skip_tokenizer_init": False,
    "dp_size": 1,
}
_MODELS = {"object": "list", "data": [{"id": "bench", "object": "model", "max_model_len": 1_000_000}]}
_INFORMATION = {
    "/server_info": orjson.dumps(_SERVER_INFO),
    "/get_server_info": orjson.dumps(_SERVER_INFO),
    "/model_info": orjson.dumps({"model_path": "bench", "tokenizer_path": "bench", "is_generation": True}),
    "/models": orjson.dumps(_MODELS),
    "/health": b"",
    "/": b'"SGLang is running"',
}


def http_message(body: bytes, status: int = 200) -> bytes:
    """One whole HTTP answer."""
    return b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        _REASONS[status],
        len(body),
        body,
    )


class EngineStub:
    """Answers requests from what `configure` was told last."""

    def __init__(self, corpus: Corpus, mode: Mode, tokenizer: StubTokenizer | None = None) -> None:
        self._corpus = corpus
        self._mode: Mode = mode
        self._tokenizer = tokenizer
        self._posts: dict[str, Callable[[bytes], bytes]] = {
            "/config": self._configure,
            "/chat/completions": self._chat,
            "/generate": self._generate,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        self.configure(Shape())

    def configure(self, shape: Shape) -> None:
        self._shape = shape
        self._answers = CannedAnswers(self._corpus, shape, self._mode)

    def answer(self, path: str, body: bytes) -> tuple[bytes, float]:
        """The HTTP answer, and after how many seconds it is due."""
        path = path.partition("?")[0].removeprefix("/v1")
        if not body and path in _INFORMATION:
            return http_message(_INFORMATION[path]), 0.0
        post = self._posts.get(path)
        if post is None:
            return http_message(b'{"detail":"Not Found"}', 404), 0.0
        generates = path in ("/chat/completions", "/generate")
        try:
            return http_message(post(body)), self._shape.latency_ms / 1000 if generates else 0.0
        except ValueError as error:
            refusal = {"object": "error", "message": str(error), "type": "BadRequestError", "code": 400}
            return http_message(orjson.dumps(refusal), 400), 0.0

    def _configure(self, body: bytes) -> bytes:
        self.configure(Shape(**orjson.loads(body)))
        return b'{"status":"ok"}'

    def _chat(self, body: bytes) -> bytes:
        return self._answers.chat(body)

    def _generate(self, body: bytes) -> bytes:
        return self._answers.generate(body)

    def _tokenize(self, body: bytes) -> bytes:
        if self._mode == "vllm" or self._tokenizer is None:
            return self._answers.tokenize(body)
        return orjson.dumps(self._tokenizer.tokenize(orjson.loads(body)))

    def _detokenize(self, body: bytes) -> bytes:
        if self._tokenizer is None:
            raise ValueError("this stub was started without a tokenizer")
        return orjson.dumps(self._tokenizer.detokenize(orjson.loads(body)))


class StubConnection(asyncio.Protocol):
    """One kept-alive connection; its client waits for each answer before it asks again."""

    def __init__(self, stub: EngineStub, connections: set[StubConnection]) -> None:
        self._stub = stub
        self._connections = connections
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._chunks: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - however it ended
        self._connections.discard(self)

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        url, body = self._url.decode(), b"".join(self._chunks)
        self._url, self._chunks = b"", []
        message, delay = self._stub.answer(url, body)
        if delay:
            asyncio.get_running_loop().call_later(delay, self._write, message)
        else:
            self._write(message)

    def _write(self, message: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(message)


@asynccontextmanager
async def listening(stub: EngineStub, port: int = 0) -> AsyncIterator[int]:
    """Serve on the port, any free one if it is 0, and yield it; connections end with the block."""
    connections: set[StubConnection] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: StubConnection(stub, connections), HOST, port, backlog=4096)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(connections):
            connection.close()
        # Transports are closed in the loop's next round.
        await asyncio.sleep(0)


async def serve(stub: EngineStub, port: int) -> None:
    async with listening(stub, port):
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--mode", choices=("sglang", "vllm"), default="sglang")
    arguments = parser.parse_args()
    stub = EngineStub(Corpus.load(arguments.corpus), arguments.mode, StubTokenizer(arguments.tokenizer))
    uvloop.run(serve(stub, arguments.port))


if __name__ == "__main__":
    main()
