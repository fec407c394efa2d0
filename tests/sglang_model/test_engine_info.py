"""The engine's small endpoints, its key, and what it remembers."""

from __future__ import annotations

import pytest

from tests.support.engine_client import CALL, WEATHER, engine_client

KEY = {"authorization": "Bearer sk-test"}


async def test_models_tell_the_context_length_and_the_served_name() -> None:
    async with engine_client(context_length=512, served_model_name="mine") as client:
        card = (await client.http.get("/v1/models")).json()["data"][0]
        one = await client.http.get("/v1/models/mine")
        none = await client.http.get("/v1/models/other")
    assert (card["id"], card["max_model_len"]) == ("mine", 512)
    assert one.json()["id"] == "mine"
    assert (none.status_code, none.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
async def test_server_info_tells_version_limits_and_parsers_under_both_names(version: str) -> None:
    async with engine_client(version=version, context_length=512, api_key=None) as client:
        info = (await client.http.get("/server_info")).json()
        old = (await client.http.get("/get_server_info")).json()
    assert info["version"] == version
    assert (info["max_req_input_len"], info["max_total_num_tokens"]) == (506, 2048)
    assert (info["tool_call_parser"], info["reasoning_parser"]) == ("qwen", "qwen3")
    assert info["context_length"] is None
    assert old == info


async def test_the_key_is_in_server_info_in_clear_text() -> None:
    async with engine_client(headers=KEY, api_key="sk-test") as client:
        assert (await client.http.get("/server_info")).json()["api_key"] == "sk-test"


async def test_model_info_grows_in_0_5_23() -> None:
    async with engine_client() as old, engine_client(version="0.5.23") as new:
        before = (await old.http.get("/model_info")).json()
        after = (await new.http.get("/get_model_info")).json()
    assert before["weight_version"] == "default"
    assert before.keys() < after.keys()
    assert after["tool_call_parser"] == "qwen"


@pytest.mark.parametrize("path", ["/health", "/health_generate", "/ping"])
async def test_liveness_is_an_empty_200(path: str) -> None:
    async with engine_client() as client:
        response = await client.http.get(path)
    assert (response.status_code, response.content) == (200, b"")


async def test_the_root_is_a_json_string() -> None:
    async with engine_client() as client:
        assert (await client.http.get("/")).text == '"SGLang is running"'


@pytest.mark.parametrize(
    ("version", "load", "weights"), [("0.5.13", 200, "object"), ("0.5.23", 404, "detail")]
)
async def test_endpoints_that_went_away(version: str, load: int, weights: str) -> None:
    async with engine_client(version=version) as client:
        loads = (await client.http.get("/v1/loads")).json()
        assert (await client.http.get("/get_load")).status_code == load
        gone = await client.http.get("/get_weight_version")
    assert loads["version"] == version
    assert gone.status_code == 404
    assert weights in gone.json()


async def test_unknown_paths_and_methods_are_fastapis_answers_and_are_recorded() -> None:
    async with engine_client() as client:
        path = await client.http.get("/version")
        method = await client.http.get("/generate")
        recorded = [request.path for request in client.engine.requests]
    assert (path.status_code, path.json()) == (404, {"detail": "Not Found"})
    assert (method.status_code, method.json()) == (405, {"detail": "Method Not Allowed"})
    assert recorded == ["/version", "/generate"]


@pytest.mark.parametrize(
    "headers",
    [{}, {"authorization": "Bearer nope"}, {"authorization": "sk-test"}, {"x-api-key": "sk-test"}],
)
@pytest.mark.parametrize("path", ["/v1/models", "/server_info", "/ping", "/", "/nowhere"])
async def test_without_the_key_everything_but_health_is_401(headers: dict[str, str], path: str) -> None:
    async with engine_client(headers=headers, api_key="sk-test") as client:
        refused = await client.http.get(path)
        generation = await client.generate()
        health = await client.http.get("/health")
    assert (refused.status_code, refused.json()) == (401, {"error": "Unauthorized"})
    assert generation.status_code == 401
    assert health.status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_the_key_opens_whatever_the_case_of_its_scheme(scheme: str) -> None:
    async with engine_client(headers={"authorization": f"{scheme} sk-test"}, api_key="sk-test") as client:
        assert (await client.http.get("/v1/models")).status_code == 200


async def test_requests_are_recorded_without_the_key() -> None:
    async with engine_client(headers=KEY, api_key="sk-test") as client:
        await client.generate("hello", rid="r")
        record = client.engine.requests[0]
    assert (record.method, record.path) == ("POST", "/generate")
    assert record.body == {"text": "hello", "return_logprob": True, "rid": "r"}
    assert "authorization" in record.headers
    assert "sk-test" not in repr(record)


async def test_samples_tell_what_was_seen_and_sampled() -> None:
    async with engine_client() as client:
        body = (await client.generate(input_ids=[300, 301], rid="r")).json()
        sample = client.engine.samples[0]
    assert (sample.rid, sample.prompt_token_ids) == ("r", [300, 301])
    assert sample.token_ids == body["output_ids"]


async def test_tokenize_takes_a_text_a_list_or_a_conversation() -> None:
    async with engine_client() as client:
        tokenizer = client.engine.tokenizer
        one = (await client.http.post("/tokenize", json={"prompt": "hello world"})).json()
        many = (await client.http.post("/v1/tokenize", json={"prompt": ["hello", "a b"]})).json()
        messages = [{"role": "user", "content": "hello"}]
        chat = (await client.http.post("/tokenize", json={"messages": messages})).json()
        echoed = (await client.choice("hello"))["prompt_token_ids"]
    assert one == {"tokens": tokenizer.encode("hello world"), "count": 2, "max_model_len": 131072}
    assert many["count"] == [len(tokenizer.encode("hello")), len(tokenizer.encode("a b"))]
    assert chat["tokens"] == echoed


@pytest.mark.parametrize(
    "body",
    [{}, {"prompt": "a", "messages": [{"role": "user", "content": "b"}]}, {"prompt": 5}, {"messages": [5]}],
)
async def test_tokenize_refuses_what_is_neither(body: dict[str, object]) -> None:
    async with engine_client() as client:
        response = await client.http.post("/tokenize", json=body)
    assert (response.status_code, response.json()["type"]) == (400, "Bad Request")


async def test_tokenize_refuses_an_empty_conversation_and_a_body_that_is_no_object() -> None:
    async with engine_client() as client:
        empty = await client.http.post("/tokenize", json={"messages": []})
        text = await client.http.post("/tokenize", content=b"x", headers={"content-type": "text/plain"})
    assert empty.json()["message"] == "Messages cannot be empty."
    assert text.status_code == 400


async def test_detokenize_hides_special_tokens_unless_asked_for() -> None:
    async with engine_client() as client:
        ids = client.engine.tokenizer.encode("Hello there<|im_end|>")
        plain = (await client.http.post("/detokenize", json={"tokens": ids})).json()
        body = {"tokens": [ids, ids[:1]], "skip_special_tokens": False}
        kept = (await client.http.post("/v1/detokenize", json=body)).json()
        none = (await client.http.post("/detokenize", json={"tokens": []})).json()
    assert plain == {"text": "Hello there"}
    assert kept == {"text": ["Hello there<|im_end|>", "Hello"]}
    assert none == {"text": ""}


@pytest.mark.parametrize("tokens", ["x", ["a"], None])
async def test_detokenize_refuses_what_is_no_id_list(tokens: object) -> None:
    async with engine_client() as client:
        response = await client.http.post("/detokenize", json={"tokens": tokens})
    assert (response.status_code, response.json()["type"]) == (400, "Bad Request")


async def test_the_tool_parser_is_offered_by_name() -> None:
    async with engine_client() as client:
        body = {"text": f"x {CALL}", "tools": [WEATHER], "tool_call_parser": "qwen25"}
        parsed = (await client.http.post("/parse_function_call", json=body)).json()
        no_tools = (await client.http.post("/parse_function_call", json={**body, "tools": []})).json()
        unknown = await client.http.post("/parse_function_call", json={**body, "tool_call_parser": "zz"})
    call = {"tool_index": 0, "name": "get_weather", "parameters": '{"city": "Paris"}'}
    assert parsed == {"normal_text": "x", "calls": [call]}
    assert no_tools == {"normal_text": f"x {CALL}", "calls": []}
    assert (unknown.status_code, unknown.text) == (500, "Internal Server Error")


@pytest.mark.parametrize(
    ("parser", "text", "reasoning", "rest"),
    [
        ("qwen3", "<think>a</think>b", "a", "b"),
        ("qwen3", "a</think>b", "", "a</think>b"),
        ("deepseek-r1", "a</think>b", "a", "b"),
        ("Qwen3-Thinking", "a", "a", ""),
    ],
)
async def test_the_reasoning_parser_is_offered_by_name(
    parser: str, text: str, reasoning: str, rest: str
) -> None:
    async with engine_client() as client:
        body = {"text": text, "reasoning_parser": parser}
        parsed = (await client.http.post("/separate_reasoning", json=body)).json()
    assert parsed == {"reasoning_text": reasoning, "text": rest}


async def test_an_unknown_reasoning_parser_is_a_fault() -> None:
    async with engine_client() as client:
        response = await client.http.post("/separate_reasoning", json={"text": "a", "reasoning_parser": "zz"})
    assert response.status_code == 500


async def test_preflight_requests_need_no_key() -> None:
    async with engine_client(api_key="sk-test") as client:
        assert (await client.http.options("/generate")).status_code == 405
