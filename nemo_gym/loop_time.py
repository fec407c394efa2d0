"""How much work may hold the event loop, which serves every session, in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ELEMENTS_ON_THE_LOOP: Final = 300
"""Items of a request, or messages, up to which a step over all of them is shorter than 2 ms (5 microseconds each to
validate); a thread costs 0.1 ms by itself, and gives way to the loop."""

BYTES_ON_THE_LOOP: Final = 262_144
"""Bytes of a body, or of a prompt's ids, from which on others get a turn between the steps over all of them: each takes
half a millisecond per megabyte, and a turn has a dozen."""


async def give_way(size: int) -> None:
    """Let the loop serve others before the next step over so many bytes."""
    if size > BYTES_ON_THE_LOOP:
        await asyncio.sleep(0)


async def off_the_loop_if_long(
    elements: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a pure function of so many elements: at once, or in a thread where they are many."""
    if elements > ELEMENTS_ON_THE_LOOP:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
