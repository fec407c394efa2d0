"""`transport: chat` against SGLang's own HTTP server."""

from __future__ import annotations

import orjson
import pytest

from tests.live.rollout import CHAT_TOOLS, RESPONSES_TOOLS, TRIPLE
from tests.live.servers import window_of
from tests.support.model_servers import agent, make_sglang
from tests.support.recorder import Recorder

pytestmark = [pytest.mark.live]

QUESTION = "What is the weather in Rome?"
GREEDY = {"temperature": 0.0}


async def check_turn(turn: dict, recorder: Recorder) -> None:
    ours = {field: turn[field] for field in TRIPLE}
    assert ours == recorder.generations[-1].triple()
    assert ours == (await recorder.generations[-1].replayed()).triple()
    assert ours["generation_token_ids"]


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_a_tool_using_conversation_over_chat_carries_what_the_engine_reports(live_engine, recorder):
    server = make_sglang(recorder, base_url=live_engine)
    body: dict = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": CHAT_TOOLS,
        **GREEDY,
        "max_tokens": 40,
    }
    async with agent(server) as client:
        first = (await client.post("/v1/chat/completions", json=body, timeout=120)).json()["choices"][0]
        await check_turn(first["message"], recorder)
        assert first["finish_reason"] == "tool_calls"
        call = first["message"]["tool_calls"][0]
        assert (call["function"]["name"], orjson.loads(call["function"]["arguments"])) == (
            "get_weather",
            {"city": "Rome"},
        )
        result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny, 21 degrees"}
        body["messages"] += [first["message"], result]
        second = (await client.post("/v1/chat/completions", json=body, timeout=120)).json()["choices"][0]
        await check_turn(second["message"], recorder)


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_a_tool_using_conversation_over_responses_carries_what_the_engine_reports(
    live_engine, recorder
):
    server = make_sglang(recorder, base_url=f"{live_engine}/v1/")
    items: list = [{"role": "user", "content": QUESTION}]
    async with agent(server) as client:
        for turn in range(2):
            body = {"input": items, "tools": RESPONSES_TOOLS, **GREEDY, "max_output_tokens": 40}
            answer = (await client.post("/v1/responses", json=body, timeout=120)).json()
            await check_turn(answer["output"][-1], recorder)
            items += answer["output"]
            if turn == 0:
                call = answer["output"][-1]
                assert call["type"] == "function_call"
                items.append({"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"})


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_a_prompt_at_the_window_ends_with_length_and_its_ids(live_engine, recorder):
    server = make_sglang(recorder, base_url=live_engine)
    async with agent(server) as client:
        window = window_of(live_engine)
        for words in range(window - 24, window - 6):
            body = {"messages": [{"role": "user", "content": "a" + " b" * words}], **GREEDY, "max_tokens": 1}
            response = await client.post("/v1/chat/completions", json=body, timeout=120)
            assert response.status_code == 200
            choice = response.json()["choices"][0]
            prompt = choice["message"]["prompt_token_ids"]
            assert bool(choice["message"]["generation_token_ids"]) == (len(prompt) <= window - 7)
            assert choice["finish_reason"] == "length"


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_too_large_a_budget_is_cut_and_no_overflow(live_engine, recorder):
    async with agent(make_sglang(recorder, base_url=live_engine)) as client:
        body = {"messages": [{"role": "user", "content": "say hello"}], "max_tokens": 5000}
        response = await client.post("/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert len(recorder.calls) == 2


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_zero_new_tokens_are_zero_tokens(live_engine, recorder):
    async with agent(make_sglang(recorder, base_url=live_engine)) as client:
        body = {"messages": [{"role": "user", "content": "say hello"}], "max_tokens": 0}
        message = (await client.post("/v1/chat/completions", json=body, timeout=120)).json()["choices"][0][
            "message"
        ]
    assert (message["generation_token_ids"], message["generation_log_probs"]) == ([], [])


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_an_abort_is_a_503_with_and_without_token_ids(live_engine, recorder, with_ids):
    server = make_sglang(recorder, base_url=live_engine, return_token_id_information=with_ids)
    async with agent(server) as client:
        response = await client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "fail none"}]}
        )
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "generation_aborted"


@pytest.mark.sglang_versions("0.5.12")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_an_engine_before_0_5_13_is_named_with_the_remedy(live_engine, recorder, path):
    body = (
        {"input": "say hello"}
        if path.endswith("responses")
        else {"messages": [{"role": "user", "content": "say hello"}]}
    )
    async with agent(make_sglang(recorder, base_url=live_engine)) as client:
        response = await client.post(path, json=body, timeout=120)
    assert response.status_code == 500
    assert "0.5.13" in response.json()["error"]["message"]
    assert "transport: generate" in response.json()["error"]["message"]
