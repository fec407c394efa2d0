"""How many connections the pool opens, and what a call costs while thousands wait for one."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from tests.support.socket_servers import Connection, answering, socket_server


async def send_numbered(pool: HTTPPool, url: str, count: int) -> None:
    calls = (pool.send("POST", url, content=str(number).encode()) for number in range(count))
    for response in await asyncio.gather(*calls):
        assert response.status_code == 200


async def test_calls_one_after_another_share_one_connection() -> None:
    async with socket_server(answering) as server:
        pool = HTTPPool()
        for number in range(50):
            await pool.send("POST", server.url, content=str(number).encode())
        await pool.aclose()
    assert (server.connections, len(server.requests)) == (1, 50)


async def test_a_burst_opens_as_many_connections_as_it_has_calls_and_the_next_burst_none() -> None:
    everyone = asyncio.Barrier(32)

    async def answer_all_at_once(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await everyone.wait()
            await connection.answer()

    async with socket_server(answer_all_at_once) as server:
        pool = HTTPPool()
        for _ in range(3):
            await send_numbered(pool, server.url, 32)
        await pool.aclose()
    assert (server.connections, len(server.requests)) == (32, 96)


async def test_an_answer_with_a_large_body_leaves_its_connection_for_the_next_call() -> None:
    async def answer_large(connection: Connection) -> None:
        while True:
            await connection.read_request()
            await connection.answer(bytes(5 << 20))

    async with socket_server(answer_large) as server:
        pool = HTTPPool()
        sizes = [len((await pool.send("POST", server.url, content=bytes(5 << 20))).content) for _ in range(3)]
        await pool.aclose()
    assert (server.connections, sizes) == (1, [5 << 20] * 3)


@pytest.mark.skipif(sys.getprofile() is not None, reason="a profiler is at work already")
async def test_a_call_costs_the_same_whether_32_or_4096_wait_for_a_connection_and_each_gets_its_turn() -> (
    None
):
    """Counted in function calls, not in time. httpcore's pool walks through all waiting calls for each one."""

    async def count_work(waiting: int) -> tuple[float, list[int]]:
        work = 0

        def count(_frame: FrameType, _event: str, _argument: object) -> None:
            nonlocal work
            work += 1

        async with socket_server(answering) as server:
            pool = HTTPPool(HTTPClientConfig(max_connections=1))
            await pool.send("GET", server.url)
            sys.setprofile(count)
            try:
                await send_numbered(pool, server.url, waiting)
            finally:
                sys.setprofile(None)
            await pool.aclose()
        assert server.connections == 1
        return work / waiting, [int(request.body) for request in server.requests[1:]]

    few, _ = await count_work(32)
    many, order = await count_work(4096)
    assert order == list(range(4096))
    assert many < 1.2 * few
