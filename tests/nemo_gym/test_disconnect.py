from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from nemo_gym.disconnect import cancelled_by_disconnect


class Connection:
    """An ASGI `receive` that says what it is told to."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(self) -> Message:
        return await self.messages.get()

    def close(self) -> None:
        self.messages.put_nowait({"type": "http.disconnect"})


async def test_a_body_that_ended_leaves_no_cycle() -> None:
    gc.disable()
    try:
        watched = cancelled_by_disconnect(Connection().receive)
        async with watched:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        left = weakref.ref(watched)
        del watched
        assert left() is None
    finally:
        gc.enable()


async def test_a_disconnect_cancels_the_body_and_is_named_for_what_it_is() -> None:
    connection = Connection()

    async def handler() -> None:
        async with cancelled_by_disconnect(connection.receive):
            connection.close()
            await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        await handler()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # would raise, were a cancellation still pending


async def test_outside_of_a_task_there_is_nothing_to_cancel() -> None:
    failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def enter() -> None:
        try:
            cancelled_by_disconnect(Connection().receive).__aenter__().send(None)
        except RuntimeError as error:
            failed.set_result(str(error))

    asyncio.get_running_loop().call_soon(enter)
    assert "needs a task" in await failed


async def test_other_messages_do_not_cancel() -> None:
    connection = Connection()
    async with cancelled_by_disconnect(connection.receive):
        connection.messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        await asyncio.sleep(0)  # the watcher starts
        await asyncio.sleep(0)  # the watcher has it
        assert connection.messages.empty()


async def test_a_finished_body_leaves_nobody_waiting() -> None:
    connection = Connection()
    before = asyncio.all_tasks()
    async with cancelled_by_disconnect(connection.receive):
        assert len(asyncio.all_tasks() - before) == 1
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_an_error_of_the_body_comes_out_as_it_is() -> None:
    with pytest.raises(KeyError):
        async with cancelled_by_disconnect(Connection().receive):
            raise KeyError("x")


async def test_an_error_made_of_the_cancellation_is_the_disconnect() -> None:
    connection = Connection()

    async def handler() -> None:
        async with cancelled_by_disconnect(connection.receive):
            connection.close()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ConnectionError("the engine's connection was closed") from None

    with pytest.raises(ClientDisconnect):
        await handler()


@pytest.mark.parametrize("disconnected_too", [False, True])
async def test_a_cancellation_from_elsewhere_stays_one(disconnected_too: bool) -> None:
    connection = Connection()
    entered = asyncio.Event()
    raised: list[BaseException] = []

    async def handler() -> None:
        try:
            async with cancelled_by_disconnect(connection.receive):
                entered.set()
                await asyncio.Event().wait()
        except BaseException as exc:
            raised.append(exc)
            raise

    task = asyncio.create_task(handler())
    await entered.wait()
    if disconnected_too:
        connection.close()
        await asyncio.sleep(0)  # the watcher wakes, the handler has not
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(exc) for exc in raised] == [asyncio.CancelledError]
