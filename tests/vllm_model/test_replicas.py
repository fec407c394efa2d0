"""Sessions and replicas: sticky, the same in every worker, and moved while a replica is down."""

from __future__ import annotations

import copy

import httpx
import pytest

from tests.support.model_servers import agent, make_vllm
from tests.support.scripted_engine import completion
from vllm_model.replicas import COOLDOWN_SECONDS, Replicas

URLS = ["http://engine-0/v1", "http://engine-1/v1", "http://engine-2/v1"]
PLAIN = {"messages": [{"role": "user", "content": "x"}]}
RANKINGS = [[2, 0, 1, 3], [2, 0, 3, 1], [0, 3, 2, 1]]


class Engines(httpx.AsyncBaseTransport):
    """Three engines; those in `down` refuse the connection, those in `busy` answer 503."""

    def __init__(self) -> None:
        self.down: set[str] = set()
        self.busy: set[str] = set()
        self.served: list[str] = []
        self.refused: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.host in self.down:
            self.refused.append(request.url.host)
            raise httpx.ConnectError("refused", request=request)
        self.served.append(request.url.host)
        return (
            httpx.Response(503) if request.url.host in self.busy else httpx.Response(200, json=completion())
        )


def server_with(engines: Engines) -> httpx.AsyncClient:
    return agent(make_vllm(engines, base_url=URLS, return_token_id_information=False))


async def ask(client: httpx.AsyncClient, session: str) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=PLAIN, headers={"X-Session-Id": session})


async def test_a_session_stays_with_its_replica_and_sessions_spread():
    engines = Engines()
    async with server_with(engines) as client:
        homes = {}
        for turn in range(2):
            for number in range(30):
                assert (await ask(client, f"s{number}")).status_code == 200
                home = homes.setdefault(number, engines.served[-1])
                assert engines.served[-1] == home, f"turn {turn} of session {number} moved"
    assert set(homes.values()) == {"engine-0", "engine-1", "engine-2"}


async def test_a_cookie_keeps_a_session_with_its_replica():
    engines = Engines()
    async with server_with(engines) as client:
        for _ in range(6):
            await client.post("/v1/chat/completions", json=PLAIN)
    assert len(set(engines.served)) == 1


async def test_another_worker_with_another_past_chooses_the_same_replica():
    chosen = []
    for past in ([], ["a", "b", "c", "d"]):
        engines = Engines()
        async with server_with(engines) as client:
            for session in [*past, "mine"]:
                await ask(client, session)
        chosen.append(engines.served[-1])
    assert chosen[0] == chosen[1]


async def test_a_session_moves_while_its_replica_is_down_and_others_stay():
    engines = Engines()
    async with server_with(engines) as client:
        homes = {}
        for number in range(12):
            await ask(client, f"s{number}")
            homes[number] = engines.served[-1]
        engines.down = {homes[0]}
        for number, home in homes.items():
            assert (await ask(client, f"s{number}")).status_code == 200
            assert (engines.served[-1] == home) == (home not in engines.down)
        metrics = (await client.get("/metrics")).text
    assert 'event="replica_down"' in metrics


async def test_when_all_replicas_are_down_each_is_tried_once_and_the_answer_is_a_503():
    engines = Engines()
    engines.down = {"engine-0", "engine-1", "engine-2"}
    async with server_with(engines) as client:
        assert (await ask(client, "s")).status_code == 503
        assert sorted(set(engines.refused)) == ["engine-0", "engine-1", "engine-2"]
        assert len(engines.refused) == 3 * 3, "three attempts of each"
        assert (await ask(client, "s")).status_code == 503


async def test_a_replica_that_is_well_again_gets_its_sessions_back_with_the_next_health_check():
    engines = Engines()
    async with server_with(engines) as client:
        await ask(client, "s")
        home = engines.served[-1]
        engines.down = {home}
        await ask(client, "s")
        engines.down = set()
        assert (await client.get("/health")).status_code == 200
        client.cookies.clear()  # the probe's own session would go before the header
        await ask(client, "s")
    assert engines.served[-1] == home


async def test_a_busy_replica_keeps_its_sessions():
    engines = Engines()
    async with server_with(engines) as client:
        await ask(client, "s")
        engines.busy = {engines.served[-1]}
        engines.served.clear()
        assert (await ask(client, "s")).status_code == 503
    assert set(engines.served) == engines.busy


def test_a_replica_is_asked_again_after_the_cooldown_or_when_it_is_well():
    now = [0.0]
    replicas = Replicas(clock=lambda: now[0])
    first = replicas.ranking("s", 3)
    replicas.mark_down(first[0])
    assert replicas.ranking("s", 3) == [*first[1:], first[0]]
    now[0] = COOLDOWN_SECONDS
    assert replicas.ranking("s", 3) == first
    replicas.mark_down(first[0])
    replicas.mark_up(first[0])
    assert replicas.ranking("s", 3) == first


def test_a_ranking_depends_on_nothing_but_the_session_and_the_count():
    """The values of a process with another hash seed: a worker that ranked otherwise would move every session."""
    assert [Replicas().ranking(session, 4) for session in ("a", "b", "rollout:7")] == RANKINGS


def test_nothing_is_kept_of_a_session():
    replicas = Replicas()
    replicas.mark_down(2)
    before = copy.deepcopy(vars(replicas))
    for number in range(20):
        replicas.ranking(f"session {number}", 4)
    assert vars(replicas) == before


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_ranking_has_every_replica_once(count):
    assert sorted(Replicas().ranking("s", count)) == list(range(count))
