"""Every sampling control, over every API, reaches `/generate` under the engine's name for it, or is warned about."""

from __future__ import annotations

import json

import httpx
import orjson
import pytest
import respx

from sglang_model.testing import Rule
from tests.support.local_tokenizer import RENDERERS, engine_with, post, served_by
from tests.support.turns import user

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PATHS = pytest.mark.parametrize("path", [CHAT, RESPONSES])
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
WEATHER = {"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {}}}

PARAMETERS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "temperature": ({"temperature": 0.0}, {"temperature": 0.0}),
    "top_p": ({"top_p": 0.9}, {"top_p": 0.9}),
    "top_k": ({"top_k": 20}, {"top_k": 20}),
    "min_p": ({"min_p": 0.05}, {"min_p": 0.05}),
    "frequency_penalty": ({"frequency_penalty": 0.5}, {"frequency_penalty": 0.5}),
    "presence_penalty": ({"presence_penalty": -0.5}, {"presence_penalty": -0.5}),
    "repetition_penalty": ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    "stop": ({"stop": "x"}, {"stop": "x"}),
    "stops": ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
    "stop_token_ids": ({"stop_token_ids": [5]}, {"stop_token_ids": [5]}),
    "stop_regex": ({"stop_regex": "x+"}, {"stop_regex": "x+"}),
    "ignore_eos": ({"ignore_eos": False}, {"ignore_eos": False}),
    "no_stop_trim": ({"no_stop_trim": True}, {"no_stop_trim": True}),
    "skip_special_tokens": ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
    "min_tokens": ({"min_tokens": 2}, {"min_new_tokens": 2}),
    "seed": ({"seed": 7}, {"sampling_seed": 7}),
    "logit_bias": ({"logit_bias": {"5": -100}}, {"logit_bias": {"5": -100}}),
    "regex": ({"regex": "[a-z]+"}, {"regex": "[a-z]+"}),
    "ebnf": ({"ebnf": 'root ::= "x"'}, {"ebnf": 'root ::= "x"'}),
    "custom_params": ({"custom_params": {"a": 1}}, {"custom_params": {"a": 1}}),
    "any JSON object": (
        {"response_format": {"type": "json_object"}},
        {"json_schema": '{"type": "object"}'},
    ),
    "a JSON schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        {"json_schema": orjson.dumps(SCHEMA).decode()},
    ),
    "plain text": ({"response_format": {"type": "text"}}, {}),
}


def body_for(path: str, **fields: object) -> dict[str, object]:
    return {"messages": [user("a")], **fields} if path == CHAT else {"input": "a", **fields}


async def outgoing(body: dict[str, object], path: str = CHAT, **settings: object) -> dict[str, object]:
    """The whole `/generate` body that a request leads to."""
    engine = engine_with(Rule(reply="Hello there!"))
    response = await post(engine, body, path, **settings)
    assert response.status_code == 200, response.text
    (sent,) = [request.body for request in engine.requests if request.path == "/generate"]
    return sent


async def extra_params(body: dict[str, object], path: str = CHAT, **settings: object) -> dict[str, object]:
    """The sampling parameters that a request leads to, without the two that are always sent."""
    params = dict((await outgoing(body, path, **settings))["sampling_params"])
    assert params.pop("spaces_between_special_tokens") is False
    assert params.pop("max_new_tokens") > 0
    return params


@PATHS
@pytest.mark.parametrize("name", PARAMETERS)
async def test_a_parameter_reaches_the_engine_under_its_name_there(path, name):
    asked, expected = PARAMETERS[name]
    assert await extra_params(body_for(path, **asked), path) == expected


@PATHS
async def test_all_of_them_together_are_all_sent_and_nothing_else(path):
    chosen = [
        name for name in PARAMETERS if name not in ("stops", "regex", "ebnf", "plain text", "a JSON schema")
    ]
    asked = {key: value for name in chosen for key, value in PARAMETERS[name][0].items()}
    expected = {key: value for name in chosen for key, value in PARAMETERS[name][1].items()}
    assert await extra_params(body_for(path, **asked), path) == expected


async def test_the_responses_apis_own_format_is_a_schema_too():
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}
    sent = await extra_params({"input": "a", "text": text}, RESPONSES)
    assert json.loads(sent["json_schema"]) == SCHEMA


@RENDERERS
async def test_nothing_extra_is_sent_when_nothing_extra_is_asked(renderer):
    assert await extra_params(body_for(CHAT), renderer=renderer) == {}


@PATHS
@pytest.mark.parametrize("name", PARAMETERS)
async def test_a_parameter_of_the_configured_extra_body_reaches_the_engine(path, name):
    """W20: extra_body was never read on this transport."""
    asked, expected = PARAMETERS[name]
    assert await extra_params(body_for(path), path, extra_body=asked) == expected


@PATHS
@pytest.mark.parametrize("name", PARAMETERS)
async def test_a_parameter_of_the_metadata_reaches_the_engine(path, name):
    asked, expected = PARAMETERS[name]
    body = body_for(path, metadata={"extra_body": json.dumps(asked)})
    assert await extra_params(body, path) == expected


@PATHS
async def test_the_request_wins_over_the_metadata_and_that_over_the_configuration(path):
    configured = {"temperature": 0.1, "top_p": 0.1, "top_k": 1}
    metadata = {"extra_body": json.dumps({"temperature": 0.2, "top_p": 0.2})}
    body = body_for(path, temperature=0.3, metadata=metadata)
    sent = await extra_params(body, path, extra_body=configured)
    assert sent == {"temperature": 0.3, "top_p": 0.2, "top_k": 1}


@PATHS
@pytest.mark.parametrize(
    "name", sorted(set(PARAMETERS) - {"stops", "any JSON object", "a JSON schema", "plain text"})
)
async def test_a_null_of_the_request_does_not_switch_off_what_was_configured(path, name):
    asked, expected = PARAMETERS[name]
    (field,) = asked
    assert await extra_params(body_for(path, **{field: None}), path, extra_body=asked) == expected


async def test_a_null_that_nothing_stands_under_is_not_sent():
    nulls = {field: None for asked, _ in PARAMETERS.values() for field in asked}
    assert await extra_params(body_for(CHAT, **nulls)) == {}


@pytest.mark.parametrize(
    "response_format",
    [
        {"type": "grammar"},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "n"}},
        {"type": "json_schema", "json_schema": {"name": "n", "schema": "x"}},
        {"type": 3},
    ],
)
async def test_a_format_that_cannot_be_honoured_is_a_400_and_no_call(response_format):
    engine = engine_with(Rule(reply="x"))
    response = await post(engine, body_for(CHAT, response_format=response_format))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "response_format"
    assert engine.samples == []


async def test_a_structural_tag_is_sent_as_text():
    tag = {"type": "structural_tag", "structures": [], "triggers": ["<"]}
    sent = await extra_params(body_for(CHAT, response_format=tag))
    assert json.loads(sent["structural_tag"]) == tag


BESIDE = {
    "return_routed_experts": True,
    "routed_experts_start_len": 3,
    "extra_key": "team",
    "priority": 2,
    "routed_dp_rank": 1,
}


async def test_what_stands_beside_the_parameters_on_chat_stands_there_on_generate_too():
    """W27: without `return_routed_experts` there are none to pass on."""
    sent = await outgoing(body_for(CHAT), extra_body=BESIDE)
    assert {name: sent[name] for name in BESIDE} == BESIDE
    assert set(sent) == {*BESIDE, "input_ids", "sampling_params", "return_logprob"}


async def test_they_stay_when_a_budget_is_cut_and_the_call_repeated():
    engine = engine_with(Rule(reply="x"), context_length=64)
    response = await post(engine, body_for(CHAT, max_tokens=200), extra_body=BESIDE)
    assert response.status_code == 200
    bodies = [request.body for request in engine.requests if request.path == "/generate"]
    assert [body["priority"] for body in bodies] == [2, 2]


@pytest.mark.parametrize("taken", ["return_logprob", "sampling_params", "text", "stream", "n"])
async def test_an_extra_body_cannot_change_what_the_call_is_made_of(taken):
    metadata = {"extra_body": json.dumps({taken: False if taken == "stream" else 1})}
    engine = engine_with(Rule(reply="Hello there!"))
    response = await post(engine, body_for(CHAT, metadata=metadata))
    for request in engine.requests:
        if request.path == "/generate":
            assert set(request.body) == {"input_ids", "sampling_params", "return_logprob"}
            assert request.body["return_logprob"] is True
    assert response.status_code in (200, 400)


TOOLS = [{"type": "function", "function": WEATHER}]
UNHONOURED = {
    "user": {"user": "somebody"},
    "parallel_tool_calls": {"tools": TOOLS, "parallel_tool_calls": False},
    "prediction": {"prediction": {"type": "content", "content": "x"}},
    "modalities": {"modalities": ["text"]},
    "web_search_options": {"web_search_options": {}},
    "tool_choice": {"tools": TOOLS, "tool_choice": "required"},
    "separate_reasoning": {"metadata": {"extra_body": '{"separate_reasoning": false}'}},
}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "cannot honour" in record.getMessage()]


@pytest.mark.parametrize("name", UNHONOURED)
async def test_what_cannot_be_honoured_is_warned_about_once_per_name(name, caplog):
    """W21, W82."""
    engine = engine_with(Rule(reply="Hello there!"))
    async with served_by(engine) as client:
        for _ in range(3):
            response = await client.post(CHAT, json=body_for(CHAT, **UNHONOURED[name]))
            assert response.status_code == 200, response.text
        both = {**UNHONOURED[name], "metadata": {"extra_body": '{"another": 1}'}}
        await client.post(CHAT, json=body_for(CHAT, **both))
    first, second = warnings_of(caplog)
    assert f"cannot honour {name};" in first
    assert "cannot honour another;" in second


async def test_a_named_tool_is_not_enforced_and_warned_about(caplog):
    choice = {"type": "function", "function": {"name": "get_weather"}}
    await outgoing(body_for(CHAT, tools=TOOLS, tool_choice=choice))
    assert ["tool_choice" in warning for warning in warnings_of(caplog)] == [True]


async def test_logprobs_that_nobody_will_see_are_warned_about(caplog):
    await outgoing(body_for(CHAT, logprobs=True, top_logprobs=5), return_token_id_information=False)
    (warning,) = warnings_of(caplog)
    assert "logprobs, top_logprobs" in warning


@PATHS
async def test_an_ordinary_request_is_warned_about_nothing(path, caplog):
    tools = TOOLS if path == CHAT else [{"type": "function", **WEATHER, "strict": True}]
    fields: dict[str, object] = {"tools": tools, "tool_choice": "auto", "temperature": 1.0, "store": False}
    await outgoing(body_for(path, **fields), path, extra_body={"top_p": 1.0})
    assert warnings_of(caplog) == []


async def test_warnings_about_names_that_callers_make_up_come_to_an_end(caplog):
    engine = engine_with(Rule(reply="x"))
    async with served_by(engine) as client:
        for number in range(110):
            metadata = {"extra_body": json.dumps({f"made_up_{number}": 1})}
            await client.post(CHAT, json=body_for(CHAT, metadata=metadata))
    assert len(warnings_of(caplog)) == 100


async def test_the_key_is_sent_and_the_models_name_is_not():
    router = respx.MockRouter(assert_all_called=True)
    router.post("http://engine/tokenize").respond(404, json={"error": "none"})
    route = router.post("http://engine/generate").respond(400, json={"error": {"message": "stop here"}})
    async with served_by(httpx.MockTransport(router.async_handler)) as client:
        response = await client.post(CHAT, json=body_for(CHAT, model="mine", max_tokens=8))
    assert response.status_code == 400
    assert route.calls.last.request.headers["authorization"] == "Bearer engine-key"
    sent = orjson.loads(route.calls.last.request.content)
    assert sent["sampling_params"] == {"spaces_between_special_tokens": False, "max_new_tokens": 8}
    assert set(sent) == {"input_ids", "sampling_params", "return_logprob"}
