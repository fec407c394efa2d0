from __future__ import annotations

import threading

import pytest

from nemo_gym.loop_time import ELEMENTS_ON_THE_LOOP, off_the_loop_if_long


async def test_only_work_on_many_elements_is_done_in_another_thread() -> None:
    here = threading.get_ident()
    assert await off_the_loop_if_long(ELEMENTS_ON_THE_LOOP, threading.get_ident) == here
    assert await off_the_loop_if_long(ELEMENTS_ON_THE_LOOP + 1, threading.get_ident) != here


@pytest.mark.parametrize("elements", [1, ELEMENTS_ON_THE_LOOP + 1])
async def test_the_caller_gets_what_the_function_returns_or_raises(elements: int) -> None:
    assert await off_the_loop_if_long(elements, int, "7") == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await off_the_loop_if_long(elements, int, "seven")
