"""`VLLMModel` over the Chat API: what goes out, what comes back, and what is refused."""

from __future__ import annotations

import httpx
import pytest

from tests.support.model_servers import agent, make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion, tool_call

USER = {"role": "user", "content": "x"}
PLAIN = {"messages": [USER]}
NO_IDS = {"return_token_id_information": False}


async def chat(
    engine: ScriptedEngine, body: dict[str, object] | None = None, **settings: object
) -> httpx.Response:
    async with agent(make_vllm(engine, **settings)) as client:
        return await client.post("/v1/chat/completions", json=PLAIN if body is None else body)


async def test_a_plain_turn_goes_out_under_the_configured_model_and_comes_back():
    engine = ScriptedEngine([completion("hello")])
    response = await chat(engine, {**PLAIN, "model": "callers", "temperature": 0.5}, **NO_IDS)
    assert engine.bodies() == [{**PLAIN, "model": "policy", "temperature": 0.5}]
    assert response.json()["choices"][0]["message"]["content"] == "hello"


async def test_capture_pins_logprobs_and_attaches_the_triple_with_the_tokenized_prompt():
    engine = ScriptedEngine([completion("hi", token_ids=[7, 8])], prompt_ids=[4, 5])
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    body = {**PLAIN, "tools": tools, "top_logprobs": 5, "logprobs": False, "chat_template_kwargs": {"a": 1}}
    choice = (await chat(engine, body)).json()["choices"][0]
    assert choice["message"]["prompt_token_ids"] == [4, 5]
    assert choice["message"]["generation_token_ids"] == [7, 8]
    assert choice["message"]["generation_log_probs"] == [-0.1, -0.2]
    assert choice["logprobs"] is None
    sent = engine.bodies()[0]
    assert (sent["logprobs"], sent["top_logprobs"], sent["return_tokens_as_token_ids"]) == (True, 0, True)
    asked = {"model": "policy", "messages": [USER], "tools": tools, "chat_template_kwargs": {"a": 1}}
    assert engine.bodies("/tokenize") == [asked]


async def test_an_inbound_null_top_logprobs_is_pinned_to_zero_with_ids():
    engine = ScriptedEngine([completion(token_ids=[7])])
    assert (await chat(engine, {**PLAIN, "top_logprobs": None})).status_code == 200
    assert engine.bodies()[0]["top_logprobs"] == 0


@pytest.mark.parametrize(
    ("given", "sent"), [({"top_logprobs": None}, {}), ({"top_logprobs": 3}, {"top_logprobs": 3}), ({}, {})]
)
async def test_without_ids_only_a_null_top_logprobs_is_removed(given, sent):
    engine = ScriptedEngine([completion()])
    await chat(engine, {**PLAIN, **given}, **NO_IDS)
    assert engine.bodies() == [{**PLAIN, "model": "policy", **sent}]


@pytest.mark.parametrize("experts", ["AAEC", [[[1, 2]], [[3, 4]]]])
async def test_routed_experts_of_the_engine_survive(experts):
    engine = ScriptedEngine([completion(token_ids=[7], routed_experts=experts)])
    assert (await chat(engine)).json()["choices"][0]["message"]["routed_experts"] == experts


async def test_an_empty_logprobs_list_is_a_generation_of_zero_tokens():
    message = (await chat(ScriptedEngine([completion("", token_ids=[])]))).json()["choices"][0]["message"]
    assert (message["generation_token_ids"], message["generation_log_probs"]) == ([], [])


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"content": {}}])
async def test_missing_logprobs_are_refused_and_nothing_is_tokenized(logprobs):
    engine = ScriptedEngine([completion(choice={"logprobs": logprobs})])
    response = await chat(engine)
    assert response.status_code == 500
    assert "Cannot extract token ids" in response.json()["error"]["message"]
    assert not engine.bodies("/tokenize")


@pytest.mark.parametrize(
    "entry",
    [
        {"token": "hello", "logprob": -1.0},
        {"token": "token_id:", "logprob": -1.0},
        {"token": "token_id:-3", "logprob": -1.0},
        {"token": "token_id:³", "logprob": -1.0},
        {"token": 7, "logprob": -1.0},
        {"token": "token_id:7", "logprob": None},
        {"token": "token_id:7", "logprob": True},
        {"token": "token_id:7"},
        "token_id:7",
    ],
)
async def test_an_entry_that_is_no_id_with_a_logprob_is_refused(entry):
    response = await chat(ScriptedEngine([completion(choice={"logprobs": {"content": [entry]}})]))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "upstream_contract"


@pytest.mark.parametrize("prompt_ids", [["1"], [-1], [True], [1.5]])
async def test_a_tokenized_prompt_that_is_no_ids_is_refused(prompt_ids):
    response = await chat(ScriptedEngine([completion(token_ids=[7])], prompt_ids=prompt_ids))
    assert response.status_code == 500
    assert "/tokenize" in response.json()["error"]["message"]


async def test_a_message_with_the_whole_triple_is_taken_as_it_is():
    triple = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]}
    engine = ScriptedEngine([completion(**triple)])
    message = (await chat(engine)).json()["choices"][0]["message"]
    assert {key: message[key] for key in triple} == triple
    assert not engine.bodies("/tokenize")


async def test_a_message_with_only_prompt_ids_is_completed_and_not_half_filled():
    engine = ScriptedEngine([completion(token_ids=[7], prompt_token_ids=[9])], prompt_ids=[4])
    message = (await chat(engine)).json()["choices"][0]["message"]
    assert (message["prompt_token_ids"], message["generation_token_ids"]) == ([4], [7])


async def test_more_than_one_choice_with_ids_is_refused_before_the_engine_is_asked():
    engine = ScriptedEngine()
    response = await chat(engine, {**PLAIN, "n": 2})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    assert engine.requests == []


async def test_without_ids_every_choice_of_several_is_read():
    answer = completion(reasoning_content="why")
    answer["choices"].append(
        {**answer["choices"][0], "index": 1, "message": dict(answer["choices"][0]["message"])}
    )
    choices = (await chat(ScriptedEngine([answer]), {**PLAIN, "n": 2}, **NO_IDS)).json()["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["<think>why</think>hi"] * 2


async def test_the_developer_role_is_sent_as_system_when_configured():
    engine = ScriptedEngine([completion(), completion()])
    body = {"messages": [{"role": "developer", "content": "d"}, USER]}
    await chat(engine, body, replace_developer_role_with_system=True, **NO_IDS)
    await chat(engine, body, **NO_IDS)
    assert [sent["messages"][0]["role"] for sent in engine.bodies()] == ["system", "developer"]


@pytest.mark.parametrize("choice", ["auto", "none", None])
async def test_a_tool_choice_without_tools_is_dropped(choice):
    engine = ScriptedEngine([completion()])
    body = {**PLAIN, "tool_choice": choice, "parallel_tool_calls": True, "tools": []}
    assert (await chat(engine, body, **NO_IDS)).status_code == 200
    assert engine.bodies() == [{**PLAIN, "model": "policy"}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
async def test_a_demanded_call_without_tools_is_refused(choice):
    response = await chat(ScriptedEngine(), {**PLAIN, "tool_choice": choice}, **NO_IDS)
    assert response.status_code == 400
    assert "requires at least one tool" in response.json()["error"]["message"]


async def test_tool_calls_and_unknown_keys_of_the_engine_come_through():
    call = tool_call("f", '{"a": 1}')
    answer = completion(None, finish_reason="tool_calls", tool_calls=[call], choice={"matched_stop": 5})
    choice = (await chat(ScriptedEngine([answer]), **NO_IDS)).json()["choices"][0]
    assert choice["message"]["tool_calls"] == [call]
    assert choice["matched_stop"] == 5


async def test_an_abort_is_a_503_and_no_turn():
    response = await chat(ScriptedEngine([completion(finish_reason="abort")]), **NO_IDS)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "generation_aborted"


async def test_an_unknown_finish_reason_is_a_contract_error_that_names_the_field():
    response = await chat(ScriptedEngine([completion(finish_reason="bored")]), **NO_IDS)
    assert response.status_code == 500
    assert "finish_reason" in response.json()["error"]["message"]


EMPTY_TURNS = [
    {"content": ""},
    {"content": None},
    {},
    {"content": None, "tool_calls": []},
    {"content": "<think>t</think>"},
]


@pytest.mark.parametrize("turn", EMPTY_TURNS)
async def test_an_empty_last_assistant_turn_is_answered_without_the_engine_when_configured(turn):
    engine = ScriptedEngine()
    body = {"messages": [USER, {"role": "assistant", **turn}]}
    choice = (await chat(engine, body, sequential_reasoning_allowed=False)).json()["choices"][0]
    assert choice["finish_reason"] == "content_filter"
    assert choice["message"]["content"] is None
    assert engine.requests == []


async def test_health_says_whether_an_engine_is_well():
    engine = ScriptedEngine([httpx.Response(200), httpx.Response(503, text="starting")])
    async with agent(make_vllm(engine)) as client:
        well, unwell = await client.get("/health"), await client.get("/health")
    assert (well.status_code, unwell.status_code) == (200, 503)
    assert "starting" in unwell.json()["error"]["message"]


async def test_metrics_count_the_tokens_of_answered_turns():
    async with agent(make_vllm(ScriptedEngine([completion(), completion()]), **NO_IDS)) as client:
        for _ in range(2):
            await client.post("/v1/chat/completions", json=PLAIN)
        text = (await client.get("/metrics")).text
    assert 'nemo_gym_tokens_total{kind="prompt",worker="main"} 6.0' in text
    assert 'nemo_gym_tokens_total{kind="generated",worker="main"} 4.0' in text


async def test_thinking_that_nobody_parsed_is_counted_and_warned_of_once(caplog):
    engine = ScriptedEngine([completion("step one</think>answer")] * 3 + [completion("<think>a</think>b")])
    async with agent(make_vllm(engine, **NO_IDS)) as client:
        for _ in range(4):
            response = await client.post("/v1/chat/completions", json=PLAIN)
            assert response.status_code == 200
        metrics = (await client.get("/metrics")).text
    assert 'nemo_gym_events_total{event="reasoning_not_parsed",worker="main"} 3.0' in metrics
    assert caplog.text.count("reasoning parser") == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "ftp://engine"},
        {"base_url": "http://user:secret@engine"},
        {"api_key": "a key"},
        {"default_headers": {"X": "a\nb"}},
        {"default_headers": {"X Y": "a"}},
        {"default_headers": {"X": "ü"}},
    ],
)
def test_connections_that_cannot_work_are_refused_with_the_configuration(settings):
    with pytest.raises(ValueError, match=r"base_url|api_key|default_headers"):
        make_vllm(**settings)
