"""The official `openai` client as the agent, over real sockets: agent, model server and embedded engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import openai
import pytest
from openai import AsyncOpenAI

from sglang_model.testing import Engine, EngineSettings, Misbehaviour, Rule, create_engine_app
from tests.support.model_servers import make_sglang
from tests.support.real_server import serving

FUNCTION = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<think>\nneed\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
RULES = (
    Rule(when="<tool_response>", reply="<think>\nk\n</think>Sunny."),
    Rule(when="Paris", reply=CALL),
    Rule(when="busy", misbehave=Misbehaviour(status=400, body={"message": "the engine says no"})),
)


@pytest.fixture
def engine() -> Engine:
    return create_engine_app(EngineSettings(rules=RULES))


@pytest.fixture
async def client(engine: Engine) -> AsyncIterator[AsyncOpenAI]:
    async with serving(engine) as engine_port:
        server = make_sglang(None, base_url=f"http://127.0.0.1:{engine_port}", real_sockets=True)
        async with (
            serving(server.setup_webserver()) as port,
            AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="any", max_retries=0) as made,
        ):
            yield made


async def test_a_tool_using_conversation_over_chat_completions(client, engine):
    tools = [{"type": "function", "function": FUNCTION}]
    messages: list = [{"role": "user", "content": "weather in Paris"}]
    first = await client.chat.completions.create(
        model="m", messages=messages, tools=tools, extra_body={"top_k": 20, "chat_template_kwargs": {"a": 1}}
    )
    assert engine.requests[-1].body["top_k"] == 20
    assert engine.requests[-1].body["chat_template_kwargs"] == {"a": 1}
    message = first.choices[0].message
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Paris"}
    assert message.generation_token_ids == list(engine.samples[-1].token_ids)
    messages += [
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"},
    ]
    second = await client.chat.completions.create(model="m", messages=messages, tools=tools)
    assert second.choices[0].message.content == "<think>\nk\n</think>Sunny."
    assert second.choices[0].message.prompt_token_ids == list(engine.samples[-1].prompt_token_ids)


async def test_a_tool_using_conversation_over_responses(client, engine):
    tools = [{"type": "function", **FUNCTION, "strict": True}]
    items: list = [{"role": "user", "content": "weather in Paris"}]
    first = await client.responses.create(model="m", input=items, tools=tools, extra_body={"top_k": 20})
    assert engine.requests[-1].body["top_k"] == 20
    call = first.output[-1]
    assert call.type == "function_call"
    assert call.generation_token_ids == list(engine.samples[-1].token_ids)
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny"})
    second = await client.responses.create(model="m", input=items, tools=tools)
    assert second.output_text == "Sunny."
    assert second.status == "completed"
    assert second.usage is not None
    assert second.usage.output_tokens == len(engine.samples[-1].token_ids)


async def test_a_string_input_and_a_seeded_sampler_give_the_same_answer_twice(client):
    answers = [
        await client.responses.create(model="m", input="anything", extra_body={"seed": 3}) for _ in range(2)
    ]
    assert answers[0].output[-1].generation_token_ids == answers[1].output[-1].generation_token_ids


async def test_the_clients_own_error_types_arise_from_our_errors(client):
    with pytest.raises(openai.BadRequestError, match="the engine says no"):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "busy"}])
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], n=2)
    assert caught.value.param == "n"


async def test_streaming_is_a_clear_400(client):
    with pytest.raises(openai.BadRequestError, match="stream"):
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
    with pytest.raises(openai.BadRequestError, match="stream"):
        await client.responses.create(model="m", input="x", stream=True)
