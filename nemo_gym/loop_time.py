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


async def off_the_loop_if_long(
    elements: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Call a pure function of so many elements: at once, or in a thread where they are many."""
    if elements > ELEMENTS_ON_THE_LOOP:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)
