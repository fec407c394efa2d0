"""`transport: chat` against SGLang's own HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import orjson
import pytest

from tests.support.model_servers import agent, make_sglang

pytestmark = [pytest.mark.live]

FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CHAT_TOOLS = [{"type": "function", "function": FUNCTION}]
RESPONSES_TOOLS = [{"type": "function", **FUNCTION, "strict": False}]
QUESTION = "What is the weather in Rome?"
GREEDY = {"temperature": 0.0}
TRIPLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


class Recorder(httpx.AsyncBaseTransport):
    """Passes calls to the engine over a real socket and keeps what went each way."""

    def __init__(self) -> None:
        self.inner = httpx.AsyncHTTPTransport()
        self.calls: list[tuple[httpx.Request, bytes]] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self.inner.handle_async_request(request)
        body = await response.aread()
        self.calls.append((request, body))
        return httpx.Response(response.status_code, headers=response.headers, content=body, request=request)

    def engine_turn(self) -> dict[str, list[object]]:
        return triple_of(orjson.loads(self.calls[-1][1]))

    async def replayed_turn(self) -> dict[str, list[object]]:
        """What the engine reports when the very same request is sent to it once more, without this project."""
        request = self.calls[-1][0]
        async with httpx.AsyncClient(timeout=120) as client:
            answer = await client.post(
                request.url, content=request.content, headers={"content-type": "application/json"}
            )
        return triple_of(answer.json())


def triple_of(answer: dict) -> dict[str, list[object]]:
    choice = answer["choices"][0]
    entries = choice["meta_info"]["output_token_logprobs"]
    return {
        "prompt_token_ids": choice["prompt_token_ids"],
        "generation_token_ids": [entry[1] for entry in entries],
        "generation_log_probs": [entry[0] for entry in entries],
    }


@pytest.fixture
async def recorder() -> AsyncIterator[Recorder]:
    made = Recorder()
    yield made
    await made.inner.aclose()


async def check_turn(turn: dict, recorder: Recorder) -> None:
    ours = {field: turn[field] for field in TRIPLE}
    assert ours == recorder.engine_turn()
    assert ours == await recorder.replayed_turn()
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
        for words in range(488, 506):
            body = {"messages": [{"role": "user", "content": "a" + " b" * words}], **GREEDY, "max_tokens": 1}
            response = await client.post("/v1/chat/completions", json=body, timeout=120)
            assert response.status_code == 200
            choice = response.json()["choices"][0]
            prompt = choice["message"]["prompt_token_ids"]
            assert bool(choice["message"]["generation_token_ids"]) == (len(prompt) <= 512 - 7)
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
