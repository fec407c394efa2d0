"""Requests in flight: held, aborted, disconnected, colliding."""

from __future__ import annotations

import asyncio

import pytest

from sglang_model.testing import Misbehaviour, Rule
from tests.support.engine_client import engine_client, served_engine

REPLY = "one two three four five"
QUEUED = Rule(when="queued", reply=REPLY, misbehave=Misbehaviour(gate="door"))
RUNNING = Rule(when="running", reply=REPLY, misbehave=Misbehaviour(gate="door", after_tokens=2))
RULES = (QUEUED, RUNNING, Rule(reply=REPLY))


async def test_a_held_request_waits_for_its_gate_while_others_pass() -> None:
    async with engine_client(rules=RULES) as client:
        held = asyncio.ensure_future(client.generate("queued"))
        await client.engine.gate("door").until_waiting()
        assert (await client.generate("free")).status_code == 200
        assert not held.done()
        client.engine.gate("door").open()
        assert (await held).json()["text"] == REPLY
        order = [sample.prompt_token_ids for sample in client.engine.samples]
    assert order == [client.engine.tokenizer.encode("free"), client.engine.tokenizer.encode("queued")]


async def test_several_requests_stand_at_one_gate() -> None:
    async with engine_client(rules=RULES) as client:
        held = [asyncio.ensure_future(client.generate("queued")) for _ in range(3)]
        gate = client.engine.gate("door")
        await gate.until_waiting(3)
        gate.open()
        assert [(await one).status_code for one in held] == [200, 200, 200]
        assert gate.waiting == 0


@pytest.mark.parametrize("prompt", ["queued", "running"])
async def test_a_held_request_is_aborted_by_the_prefix_of_its_rid(prompt: str) -> None:
    async with engine_client(rules=RULES) as client:
        held = asyncio.ensure_future(client.generate(prompt, rid="session-1-turn-2"))
        await client.engine.gate("door").until_waiting()
        own = await client.http.post("/abort_request", json={"rid": "session-1"})
        item = (await held).json()
    assert (own.status_code, own.content) == (200, b"")
    assert item["meta_info"]["finish_reason"]["type"] == "abort"
    expected = [] if prompt == "queued" else client.engine.tokenizer.encode(REPLY)[:2]
    assert item["output_ids"] == expected
    assert ("prompt_tokens" in item["meta_info"]) == (prompt == "running")


async def test_abort_all_reaches_every_request_in_flight() -> None:
    async with engine_client(rules=RULES) as client:
        held = [asyncio.ensure_future(client.chat(text)) for text in ("queued", "running")]
        await client.engine.gate("door").until_waiting(2)
        await client.http.post("/abort_request", json={"abort_all": True})
        reasons = [(await one).json()["choices"][0]["finish_reason"] for one in held]
    assert reasons == ["abort", "abort"]


@pytest.mark.parametrize("body", [{"rid": "never-seen"}, {"rid": "ine"}, {}, {"rid": ""}])
async def test_aborting_nothing_is_no_error(body: dict[str, str]) -> None:
    async with engine_client(rules=RULES) as client:
        held = asyncio.ensure_future(client.generate("queued", rid="mine"))
        await client.engine.gate("door").until_waiting()
        assert (await client.http.post("/abort_request", json=body)).status_code == 200
        client.engine.gate("door").open()
        assert (await held).json()["text"] == REPLY


async def test_a_rid_that_is_in_flight_is_refused_and_free_again_afterwards() -> None:
    async with engine_client(rules=RULES) as client:
        held = asyncio.ensure_future(client.generate("queued", rid="q1"))
        await client.engine.gate("door").until_waiting()
        native = await client.generate("free", rid="q1")
        chat = await client.chat("free", rid="q1")
        client.engine.gate("door").open()
        await held
        again = await client.generate("free", rid="q1")
    assert native.json() == {"error": {"message": "Duplicate request ID detected: q1"}}
    assert chat.json()["message"] == "Duplicate request ID detected: q1"
    assert again.status_code == 200


async def test_a_delay_holds_any_endpoint() -> None:
    async with engine_client(misbehave=(Misbehaviour(path="/health", gate="door", delay=0.001),)) as client:
        held = asyncio.ensure_future(client.http.get("/health"))
        await client.engine.gate("door").until_waiting()
        assert not held.done()
        client.engine.gate("door").open()
        assert (await held).status_code == 200


async def test_a_held_request_that_is_answered_with_an_error_waits_first() -> None:
    wrong = Misbehaviour(status=503, gate="door")
    async with engine_client(misbehave=(wrong,)) as client:
        held = asyncio.ensure_future(client.chat())
        await client.engine.gate("door").until_waiting()
        client.engine.gate("door").open()
        assert (await held).status_code == 503


async def test_a_client_that_goes_away_aborts_its_request() -> None:
    async with served_engine(rules=RULES) as client:
        held = asyncio.ensure_future(client.generate("running", rid="left"))
        gate = client.engine.gate("door")
        await gate.until_waiting()
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await client.engine.until_sampled(1)
        sample = client.engine.samples[0]
    assert sample.rid == "left"
    assert sample.finish_reason["type"] == "abort"


async def test_a_rule_that_answers_an_error_is_held_at_its_gate_first() -> None:
    rules = (Rule(misbehave=Misbehaviour(status=503, gate="door")),)
    async with engine_client(rules=rules) as client:
        held = asyncio.ensure_future(client.generate())
        await client.engine.gate("door").until_waiting()
        client.engine.gate("door").open()
        assert (await held).status_code == 503
