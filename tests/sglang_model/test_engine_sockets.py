"""What only a real connection shows."""

from __future__ import annotations

import httpx
import pytest

from sglang_model.testing import Misbehaviour, Rule
from tests.support.engine_client import served_engine

RULES = (Rule(reply="one two three"),)


async def test_the_engine_answers_over_a_socket() -> None:
    async with served_engine(rules=RULES) as client:
        assert (await client.generate("x")).json()["text"] == "one two three"
        assert client.engine.requests[0].path == "/generate"


async def test_a_connection_is_cut_in_the_middle_of_the_body() -> None:
    async with served_engine(rules=RULES, misbehave=(Misbehaviour(cut_at=40, times=1),)) as client:
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed"):
            await client.generate("x")
        assert (await client.generate("x")).status_code == 200


async def test_a_connection_is_dropped_before_any_answer() -> None:
    async with served_engine(rules=RULES, misbehave=(Misbehaviour(cut_at=0, times=1),)) as client:
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await client.generate("x")
        assert (await client.generate("x")).status_code == 200


async def test_a_negative_prompt_id_drops_the_connection() -> None:
    async with served_engine(rules=RULES) as client:
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await client.generate(input_ids=[-5])
