from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

from nemo_gym.errors import UpstreamUnavailableError
from nemo_gym.metrics import Metrics
from tests.support.model_server import ScriptedModel, client_for, post_chat, scripted_model


def samples(exposition: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


def value(exposition: str, name: str, **labels: str) -> float | None:
    return samples(exposition).get((name, tuple(sorted({"worker": "main", **labels}.items()))))


async def scrape(model: ScriptedModel, *calls: str) -> str:
    async with client_for(model.setup_webserver()) as client:
        for path in calls:
            await post_chat(client, path)
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return response.text


async def test_requests_are_counted_by_route_and_status() -> None:
    text = await scrape(scripted_model(), "/v1/chat/completions", "/v1/chat/completions", "/v1/responses")
    assert value(text, "nemo_gym_requests_total", route="/v1/chat/completions", status="200") == 2
    assert value(text, "nemo_gym_requests_total", route="/v1/responses", status="400") == 1
    assert value(text, "nemo_gym_request_seconds_count", route="/v1/chat/completions") == 2


async def test_errors_are_counted_with_the_status_that_the_client_got() -> None:
    model = scripted_model().raising(UpstreamUnavailableError("down"))
    text = await scrape(model, "/v1/chat/completions")
    assert value(text, "nemo_gym_requests_total", route="/v1/chat/completions", status="503") == 1


async def test_rollouts_and_unknown_paths_make_no_series_of_their_own() -> None:
    rollouts = [f"/ng-rollout/r{index}/v1/chat/completions" for index in range(5)]
    text = await scrape(scripted_model(), *rollouts, *(f"/x{index}" for index in range(5)))
    assert value(text, "nemo_gym_requests_total", route="/v1/chat/completions", status="200") == 5
    assert value(text, "nemo_gym_requests_total", route="unmatched", status="404") == 5
    assert "/x1" not in text
    assert "r1" not in text


async def test_a_plugins_route_with_parameters_is_one_series() -> None:
    model = scripted_model()
    app = model.setup_webserver()

    async def item(item_id: str) -> str:
        return item_id

    app.get("/items/{item_id}")(item)
    async with client_for(app) as client:
        for item_id in "abc":
            assert (await client.get(f"/items/{item_id}")).json() == item_id
        text = (await client.get("/metrics")).text
    assert value(text, "nemo_gym_requests_total", route="/items/{item_id}", status="200") == 3


async def test_a_request_being_worked_on_is_seen() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def wait(_request: Request) -> None:
        entered.set()
        await leave.wait()

    model = scripted_model().behave(wait)
    async with client_for(model.setup_webserver()) as client:
        call = asyncio.create_task(post_chat(client))
        await entered.wait()
        during = (await client.get("/metrics")).text
        leave.set()
        await call
        after = (await client.get("/metrics")).text
    assert value(during, "nemo_gym_requests_in_progress") == 2
    assert value(after, "nemo_gym_requests_in_progress") == 1


async def test_events_tokens_and_gauges_of_other_modules_are_reported() -> None:
    model = scripted_model()
    model.metrics.count("generation_aborted")
    model.metrics.count("retries", 3)
    model.metrics.count_tokens(prompt=10, generated=4)
    stored = [1, 2]
    model.metrics.watch("stored_sessions", "Sessions kept", lambda: len(stored))
    stored.append(3)
    text = await scrape(model)
    assert value(text, "nemo_gym_events_total", event="generation_aborted") == 1
    assert value(text, "nemo_gym_events_total", event="retries") == 3
    assert value(text, "nemo_gym_tokens_total", kind="prompt") == 10
    assert value(text, "nemo_gym_tokens_total", kind="generated") == 4
    assert value(text, "nemo_gym_stored_sessions") == 3


async def test_two_servers_in_one_process_do_not_mix() -> None:
    one, other = scripted_model(name="one"), scripted_model(name="other")
    one.metrics.count("x")
    assert value(await scrape(other), "nemo_gym_events_total", event="x") is None


def test_the_worker_label_keeps_workers_apart() -> None:
    metrics = Metrics(worker="pid-7")
    metrics.count("x")
    assert 'nemo_gym_events_total{event="x",worker="pid-7"} 1.0' in metrics.exposition().decode()
