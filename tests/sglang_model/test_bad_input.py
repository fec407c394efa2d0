"""What a caller can get wrong: each a 4xx that names the field, and no call of the engine."""

from __future__ import annotations

import json

import pytest

from tests.support.model_servers import agent, make_sglang

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "x"}


def chat(**fields: object) -> dict[str, object]:
    return {"messages": [USER], **fields}


def respond(**fields: object) -> dict[str, object]:
    return {"input": "x", **fields}


CASES: list[tuple[str, object, str]] = [
    (CHAT, {}, "messages"),
    (CHAT, chat(messages=[]), "messages"),
    (CHAT, chat(messages="x"), "messages"),
    (CHAT, chat(messages=[{"content": "x"}]), "messages.0"),
    (CHAT, chat(messages=[{"role": "robot", "content": "x"}]), "messages.0"),
    (CHAT, chat(messages=[USER, {"role": "user", "content": 3}]), "messages.1.content"),
    (CHAT, chat(messages=[{"role": "tool", "content": "x"}]), "messages.0.tool_call_id"),
    (CHAT, chat(messages=[{"role": "assistant", "content": "x", "prompt_token_ids": [1]}]), "messages.0"),
    (CHAT, chat(stream=True), "stream"),
    (CHAT, chat(n=2), "n"),
    (CHAT, chat(n=0), "n"),
    (CHAT, chat(max_tokens=-1), "max_tokens"),
    (CHAT, chat(max_completion_tokens=-1), "max_completion_tokens"),
    (CHAT, chat(max_tokens="many"), "max_tokens"),
    (CHAT, chat(temperature="hot"), "temperature"),
    (CHAT, chat(top_k=1.5), "top_k"),
    (CHAT, chat(metadata={"chat_template_kwargs": "{"}), "metadata.chat_template_kwargs"),
    (CHAT, chat(metadata={"extra_body": "[]"}), "metadata.extra_body"),
    (CHAT, chat(metadata="x"), "metadata"),
    (CHAT, chat(tools="x"), "tools"),
    (CHAT, chat(tools=[{"type": "function"}]), "tools.0.function"),
    (CHAT, chat(tool_choice="required"), "tool_choice"),
    (CHAT, chat(no_such_field=1), "no_such_field"),
    (RESPONSES, {}, "input"),
    (RESPONSES, respond(input=3), "input"),
    (RESPONSES, respond(input=[{"type": "no_such_item"}]), "input.0"),
    (RESPONSES, respond(input=[USER, {"foo": 1}]), "input.1"),
    (
        RESPONSES,
        respond(input=[USER, {"type": "function_call", "name": "f", "arguments": "{}"}]),
        "input.1.call_id",
    ),
    (
        RESPONSES,
        respond(input=[{"role": "user", "content": [{"type": "no_such_part"}]}]),
        "input.0.content.0",
    ),
    (RESPONSES, respond(stream=True), "stream"),
    (RESPONSES, respond(n=2), "n"),
    (RESPONSES, respond(max_output_tokens=-1), "max_output_tokens"),
    (RESPONSES, respond(metadata={"extra_body": "x"}), "metadata.extra_body"),
    (RESPONSES, respond(tool_choice="required"), "tool_choice"),
    (RESPONSES, respond(no_such_field=1), "no_such_field"),
    (MESSAGES, {"model": "m", "max_tokens": 5}, "messages"),
    (MESSAGES, {"model": "m", "max_tokens": 5, "messages": [USER], "stream": True}, "stream"),
]


@pytest.mark.parametrize(
    ("path", "body", "param"), CASES, ids=[f"{path} {param} {n}" for n, (path, _, param) in enumerate(CASES)]
)
async def test_bad_input_is_a_4xx_that_names_the_field(path, body, param):
    async with agent(make_sglang()) as client:
        response = await client.post(path, json=body)
    assert 400 <= response.status_code < 500, response.text
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param or (error["param"] or "").startswith(f"{param}."), error
    assert error["message"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"x"',
        b"null",
        b'{"input": NaN}',
        b"\xff\xfe",
        b'{"messages": [1,]}',
        b"[" * 100_000,
    ],
)
async def test_a_body_that_is_no_json_object_is_a_400(path, content):
    async with agent(make_sglang()) as client:
        response = await client.post(path, content=content)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_a_huge_body_is_a_413_that_names_the_setting(path):
    async with agent(make_sglang(max_request_bytes=1000)) as client:
        response = await client.post(
            path, content=json.dumps(chat(messages=[{**USER, "content": "x" * 1000}]))
        )
    assert response.status_code == 413
    assert "max_request_bytes" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_messages_never_repeat_what_was_sent(path):
    secret = "the-secret-prompt"
    body = chat(messages=[{"role": "user", "content": {"secret": secret}}], user=[secret])
    async with agent(make_sglang()) as client:
        response = await client.post(
            path, json=body if path == CHAT else {"input": {"x": secret}, "user": [secret]}
        )
    assert response.status_code == 400
    assert secret not in response.text


async def test_an_unknown_path_and_a_wrong_method_are_error_objects():
    async with agent(make_sglang()) as client:
        unknown, wrong = await client.post("/v1/nothing"), await client.get(CHAT)
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert unknown.json()["error"]["message"]
    assert wrong.json()["error"]["message"]
