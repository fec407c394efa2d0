"""Stop working for a caller who has gone away.

A generation that nobody waits for occupies the engine. ASGI tells of a lost client only to who asks
`receive`, and an endpoint that waits for the engine does not ask; so somebody has to ask beside it.
Cancelling the endpoint closes its connection to the engine, on which SGLang aborts the generation.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive


class cancelled_by_disconnect:  # noqa: N801 - reads as the statement it is used in
    """Async context manager: cancels its body when the client disconnects, and raises ClientDisconnect.

    To be entered after the request body is read, because it takes over `receive`. A cancellation from
    elsewhere (the server shuts down) passes through as CancelledError, also when both come at once; as
    `asyncio.timeout` does it.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._disconnected = False

    async def __aenter__(self) -> None:
        body = asyncio.current_task()
        if body is None:
            raise RuntimeError("cancelled_by_disconnect needs a task to cancel, and there is none")
        self._body = body
        self._pending_cancellations = body.cancelling()
        self._watcher = asyncio.create_task(self._watch())

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        del self._watcher  # the task's CancelledError has a frame that has `self`: a cycle with every request
        if not self._disconnected:
            return
        others = self._body.uncancel() > self._pending_cancellations
        if not others:
            raise ClientDisconnect from exc

    async def _watch(self) -> None:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        self._disconnected = True
        self._body.cancel()
