"""`VLLMModel` over the Responses API, its conversion included, and the engine's own Responses API."""

from __future__ import annotations

import httpx
import orjson
import pytest

from nemo_gym.openai_utils import NeMoGymChatCompletion
from sglang_model.app import SGLangModel
from tests.support.model_servers import agent, make_sglang, make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion, tool_call
from vllm_model.app import VLLMModelConfig

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
CHAT_TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object"}},
}
NO_IDS = {"return_token_id_information": False}
TRIPLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


async def respond(engine: ScriptedEngine, body: dict[str, object], **settings: object) -> dict[str, object]:
    async with agent(make_vllm(engine, **settings)) as client:
        response = await client.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        return response.json()


async def test_a_turn_goes_out_as_chat_and_comes_back_as_items():
    engine = ScriptedEngine([completion("hello")])
    body = {
        "input": "hi",
        "instructions": "be brief",
        "model": "callers",
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_k": 20,
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
    }
    answer = await respond(engine, body, **NO_IDS)
    assert engine.bodies() == [
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
            "model": "policy",
            "max_tokens": 9,
            "temperature": 0.5,
            "top_k": 20,
            "tools": [CHAT_TOOL],
            "tool_choice": "auto",
            "parallel_tool_calls": False,
        }
    ]
    assert [item["content"][0]["text"] for item in answer["output"]] == ["hello"]
    assert (answer["model"], answer["status"]) == ("policy", "completed")
    assert answer["usage"]["total_tokens"] == 5


async def test_a_multi_turn_tool_conversation_keeps_order_and_each_turns_ids():
    call = tool_call("f", '{"a": 1}')
    engine = ScriptedEngine(
        [
            completion(
                "look", finish_reason="tool_calls", tool_calls=[call], token_ids=[7, 8], reasoning_content="r"
            ),
            completion("done", token_ids=[9]),
            completion("bye", token_ids=[10]),
        ]
    )
    items: list[dict[str, object]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    seen = []
    async with agent(make_vllm(engine)) as client:
        for new in (
            {"type": "function_call_output", "call_id": "call_1", "output": "3"},
            {"role": "user", "content": "v"},
            None,
        ):
            answer = (await client.post("/v1/responses", json={"input": items, "tools": [TOOL]})).json()
            seen.append(answer["output"])
            items += [*answer["output"], *([new] if new else [])]
    assert [[item["type"] for item in output] for output in seen] == [
        ["reasoning", "message", "function_call"],
        ["message"],
        ["message"],
    ]
    assert [output[-1]["generation_token_ids"] for output in seen] == [[7, 8], [9], [10]]
    assert all(not set(TRIPLE) & set(item) for output in seen for item in output[:-1])
    history = engine.bodies()[2]["messages"]
    assert [message["role"] for message in history] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert history[2]["tool_calls"] == [call]
    assert (history[2]["content"], history[2]["reasoning_content"]) == ("look", "r")
    assert history[2]["generation_token_ids"] == [7, 8]
    assert history[4]["generation_token_ids"] == [9]
    assert "tool_calls" not in history[4]


async def test_a_reasoning_only_turn_ends_the_sequence_when_configured():
    engine = ScriptedEngine()
    body = {
        "input": [
            {"role": "user", "content": "u"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}]},
        ]
    }
    answer = await respond(engine, body, sequential_reasoning_allowed=False, **NO_IDS)
    assert answer["incomplete_details"] == {"reason": "content_filter"}
    assert engine.requests == []


async def test_responses_calls_chat_completions_positionally_so_that_an_override_sees_both_arguments():
    class Overriding(SGLangModel):
        async def chat_completions(self, request, body):
            self.seen = (request.session["session_id"], body.model_dump(exclude_unset=True))
            return NeMoGymChatCompletion.model_validate(completion("overridden"))

        seen: tuple[str, dict[str, object]] | None = None

    plain = make_sglang()
    server = Overriding(config=plain.config, server_client=plain.server_client, http_pool=plain.http_pool)
    async with agent(server) as client:
        answer = (await client.post("/v1/responses", json={"input": "x"})).json()
    assert answer["output"][0]["content"][0]["text"] == "overridden"
    assert server.seen is not None
    assert server.seen[1]["messages"][0]["role"] == "user"


async def test_the_native_responses_api_is_forwarded_with_configured_fields_underneath():
    native = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    engine = ScriptedEngine([native])
    settings = {"is_responses_native": True, "extra_body": {"top_k": 5, "temperature": 0.1}, **NO_IDS}
    answer = await respond(
        engine, {"input": "x", "temperature": 0.9}, chat_template_kwargs={"a": 1}, **settings
    )
    assert engine.bodies("/v1/responses") == [
        {"input": "x", "temperature": 0.9, "top_k": 5, "model": "policy", "chat_template_kwargs": {"a": 1}}
    ]
    assert answer["id"] == "resp_1"


@pytest.mark.parametrize(
    "setting",
    [
        {"return_token_id_information": True},
        {"replace_developer_role_with_system": True, **NO_IDS},
        {"sequential_reasoning_allowed": False, **NO_IDS},
    ],
)
def test_native_responses_cannot_be_combined_with_what_needs_the_chat_flow(setting):
    with pytest.raises(ValueError, match="is_responses_native"):
        make_vllm(is_responses_native=True, **setting)


def test_one_url_becomes_a_list_and_an_unknown_setting_is_refused():
    assert make_vllm().config.base_url == ["http://engine/v1"]
    settings = make_vllm().config.model_dump() | {"sglang_tool_formt": "hermes"}
    with pytest.raises(ValueError, match="sglang_tool_formt"):
        VLLMModelConfig.model_validate(settings)


@pytest.mark.parametrize("path", ["responses", "messages"])
async def test_a_tool_call_without_an_id_is_the_engines_fault_and_not_the_callers(path: str):
    call = tool_call("f", "{}", call_id="")
    engine = ScriptedEngine([completion("hello", tool_calls=[call])])
    body = {"responses": {"input": "hi"}, "messages": {"messages": [{"role": "user", "content": "hi"}]}}[path]
    async with agent(make_vllm(engine, **NO_IDS)) as client:
        response = await client.post(f"/v1/{path}", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["code"]) == (
        500,
        "upstream_error",
        "upstream_contract",
    )
    assert "id (not empty)" in error["message"]
    assert error["param"] is None


async def test_an_answer_nested_too_deeply_to_be_written_breaks_the_contract():
    nested = b"[" * 600 + b"]" * 600
    raw = orjson.dumps(completion("hello") | {"unknown": 1}).replace(b'"unknown":1', b'"unknown":' + nested)
    engine = ScriptedEngine([httpx.Response(200, content=raw)])
    async with agent(make_vllm(engine, **NO_IDS)) as client:
        response = await client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
        )
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (500, "upstream_contract")
    assert "nesting" in error["message"]


async def test_a_request_nested_too_deeply_to_be_sent_on_is_the_callers_to_mend():
    nested = b"[" * 600 + b"]" * 600
    body = b'{"messages": [{"role": "user", "content": "hi", "unknown": ' + nested + b"}]}"
    async with agent(make_vllm(ScriptedEngine(), **NO_IDS)) as client:
        response = await client.post("/v1/chat/completions", content=body)
    assert response.status_code == 400
    assert "nesting depth" in response.json()["error"]["message"]
