from __future__ import annotations

import asyncio
import threading

import pytest

from nemo_gym.loop_time import BYTES_ON_THE_LOOP, ELEMENTS_ON_THE_LOOP, give_way, off_the_loop_if_long


async def test_only_work_on_many_elements_is_done_in_another_thread() -> None:
    here = threading.get_ident()
    assert await off_the_loop_if_long(ELEMENTS_ON_THE_LOOP, threading.get_ident) == here
    assert await off_the_loop_if_long(ELEMENTS_ON_THE_LOOP + 1, threading.get_ident) != here


@pytest.mark.parametrize("elements", [1, ELEMENTS_ON_THE_LOOP + 1])
async def test_the_caller_gets_what_the_function_returns_or_raises(elements: int) -> None:
    assert await off_the_loop_if_long(elements, int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await off_the_loop_if_long(elements, int, "seven")


async def test_others_get_a_turn_before_a_large_step_and_not_before_a_small_one() -> None:
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "other")
    await give_way(BYTES_ON_THE_LOOP)
    assert turns == []
    await give_way(BYTES_ON_THE_LOOP + 1)
    assert turns == ["other"]
