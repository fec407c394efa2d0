"""Chat template arguments and extra body fields: configuration, metadata and request, in that order."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.support.model_servers import agent, make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion

PLAIN = {"messages": [{"role": "user", "content": "x"}]}


async def sent(bodies: list[dict[str, object]], **settings: object) -> list[dict[str, object]]:
    """What reaches the engine for each body, one server for all of them."""
    engine = ScriptedEngine([completion() for _ in bodies])
    async with agent(make_vllm(engine, return_token_id_information=False, **settings)) as client:
        for body in bodies:
            response = await client.post("/v1/chat/completions", json={**PLAIN, **body})
            assert response.status_code == 200, response.text
    return engine.bodies()


async def test_template_arguments_of_the_request_beat_metadata_which_beats_the_configuration():
    bodies = [
        {
            "metadata": {"chat_template_kwargs": json.dumps({"b": 2, "c": 2})},
            "chat_template_kwargs": {"c": 3},
        },
        {},
    ]
    first, second = await sent(bodies, chat_template_kwargs={"a": 1, "b": 1, "c": 1})
    assert first["chat_template_kwargs"] == {"a": 1, "b": 2, "c": 3}
    assert second["chat_template_kwargs"] == {"a": 1, "b": 1, "c": 1}


async def test_without_any_template_argument_none_is_sent():
    assert "chat_template_kwargs" not in (await sent([{"metadata": {"chat_template_kwargs": "{}"}}]))[0]


async def test_extra_fields_of_metadata_beat_the_configuration_and_stay_under_the_request():
    metadata = {"extra_body": json.dumps({"top_k": 2, "min_p": 0.2, "temperature": 0.2})}
    bodies = [{"metadata": metadata, "temperature": 0.9}, {}]
    first, second = await sent(bodies, extra_body={"top_k": 1, "seed": 1, "nested": {"x": 1}})
    assert {key: first[key] for key in ("top_k", "min_p", "temperature", "seed", "nested")} == {
        "top_k": 2,
        "min_p": 0.2,
        "temperature": 0.9,
        "seed": 1,
        "nested": {"x": 1},
    }
    assert (second["top_k"], second["seed"]) == (1, 1)


async def test_an_explicit_null_does_not_switch_off_what_is_configured():
    (body,) = await sent([{"temperature": None, "top_p": None}], extra_body={"temperature": 0.7})
    assert body["temperature"] == 0.7
    assert body["top_p"] is None


@pytest.mark.parametrize("metadata", [None, {}, {"chat_template_kwargs": None, "extra_body": None}])
async def test_missing_and_null_metadata_mean_nothing(metadata):
    (body,) = await sent([{"metadata": metadata}])
    assert {key: value for key, value in body.items() if key != "metadata"} == {**PLAIN, "model": "policy"}


@pytest.mark.parametrize("key", ["chat_template_kwargs", "extra_body"])
@pytest.mark.parametrize("value", ["", "{", "[]", "3", "null", '"x"'])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_metadata_that_is_no_json_object_is_a_400_that_names_it(path, key, value):
    body = {**PLAIN, "metadata": {key: value}} if "chat" in path else {"input": "x", "metadata": {key: value}}
    async with agent(make_vllm(httpx.MockTransport(lambda _: httpx.Response(500)))) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == f"metadata.{key}"


@pytest.mark.parametrize("own", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("configured", ["max_tokens", "max_completion_tokens"])
async def test_a_configured_budget_gives_way_to_the_requests_under_either_name(own, configured):
    first, second = await sent([{own: 99}, {}], extra_body={configured: 7})
    budgets = {name: first[name] for name in ("max_tokens", "max_completion_tokens") if name in first}
    assert budgets == {own: 99}
    assert second[configured] == 7


async def test_template_arguments_of_an_extra_body_are_merged_key_by_key():
    extra = {"chat_template_kwargs": {"enable_thinking": False, "a": 0}}
    (body,) = await sent([{"chat_template_kwargs": {"a": 1}}], extra_body=extra)
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "a": 1}
