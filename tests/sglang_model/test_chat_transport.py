"""`transport: chat` over HTTP, against the embedded engine and against outgoing requests."""

from __future__ import annotations

import json

import httpx
import orjson
import pytest
import respx

from nemo_gym.errors import GenerationAbortedError, UpstreamContractError
from sglang_model.testing import Abort, Engine, EngineSettings, Misbehaviour, Rule, create_engine_app
from tests.support.model_servers import agent, make_sglang

FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = '<think>\nneed\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
RULES = (
    Rule(when="<tool_response>", reply="<think>\ngood\n</think>\n\nSunny."),
    Rule(when="weather in Paris", reply=CALL),
    Rule(when="plain", reply="Hello there!"),
)
TRIPLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
PLAIN = {"messages": [{"role": "user", "content": "say plain"}]}


def engine_with(*rules: Rule, **settings: object) -> Engine:
    return create_engine_app(EngineSettings(rules=rules or RULES, **settings))


def served_by(engine: Engine, **settings: object) -> httpx.AsyncClient:
    return agent(make_sglang(httpx.ASGITransport(app=engine, raise_app_exceptions=False), **settings))


async def chat(engine: Engine, body: dict[str, object] | None = None, **settings: object) -> httpx.Response:
    async with served_by(engine, **settings) as client:
        return await client.post("/v1/chat/completions", json=PLAIN if body is None else body)


async def respond(engine: Engine, body: dict[str, object], **settings: object) -> httpx.Response:
    async with served_by(engine, **settings) as client:
        return await client.post("/v1/responses", json=body)


def sampled(engine: Engine) -> tuple[list[int], list[int]]:
    """Prompt and generation ids of the engine's last sample, from the engine itself."""
    sample = engine.samples[-1]
    return list(sample.prompt_token_ids), list(sample.token_ids)


async def test_a_chat_turn_carries_the_ids_and_logprobs_that_the_engine_sampled():
    engine = engine_with()
    message = (await chat(engine)).json()["choices"][0]["message"]
    prompt, generation = sampled(engine)
    assert message["prompt_token_ids"] == prompt
    assert message["generation_token_ids"] == generation
    assert len(message["generation_log_probs"]) == len(generation)
    assert all(logprob <= 0 for logprob in message["generation_log_probs"])


async def test_the_raw_material_of_the_ids_leaves_the_choice():
    choice = (await chat(engine_with())).json()["choices"][0]
    assert choice["logprobs"] is None
    assert not {"meta_info", "prompt_token_ids", "response_token_ids"} & set(choice)


async def test_a_responses_turn_carries_the_triple_on_its_last_item_only():
    engine = engine_with()
    body = {"input": "weather in Paris", "tools": [{"type": "function", **FUNCTION, "strict": True}]}
    output = (await respond(engine, body)).json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    prompt, generation = sampled(engine)
    assert output[-1]["prompt_token_ids"] == prompt
    assert output[-1]["generation_token_ids"] == generation
    assert json.loads(output[-1]["arguments"]) == {"city": "Paris"}
    assert not set(TRIPLE) & set(output[0])


async def test_a_tool_using_conversation_keeps_every_turns_own_ids():
    engine = engine_with()
    async with served_by(engine) as client:
        body = {"messages": [{"role": "user", "content": "weather in Paris"}], "tools": TOOLS}
        first = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        first_sample = sampled(engine)
        result = {"role": "tool", "tool_call_id": first["message"]["tool_calls"][0]["id"], "content": "sunny"}
        body["messages"] = [*body["messages"], first["message"], result]
        second = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    assert second["finish_reason"] == "stop"
    assert second["message"]["content"] == "<think>\ngood\n</think>\n\nSunny."
    assert (first["message"]["prompt_token_ids"], first["message"]["generation_token_ids"]) == first_sample
    assert (second["message"]["prompt_token_ids"], second["message"]["generation_token_ids"]) == sampled(
        engine
    )


async def test_history_goes_out_without_ids_and_with_its_reasoning_in_a_field():
    engine = engine_with()
    triple = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    earlier = {
        "role": "assistant",
        "content": "<think>why</think>because",
        **triple,
        "routed_experts": "AAAA",
    }
    body = {"messages": [{"role": "user", "content": "x"}, earlier, {"role": "user", "content": "say plain"}]}
    assert (await chat(engine, body)).status_code == 200
    sent = engine.requests[-1].body["messages"][1]
    assert sent == {"role": "assistant", "content": "because", "reasoning_content": "why", "reasoning": "why"}


async def test_the_outgoing_body_asks_for_sglangs_ids_and_not_for_vllms():
    router = respx.MockRouter(assert_all_called=True)
    route = router.post("http://engine/v1/chat/completions").respond(400, json={"message": "stop here"})
    server = make_sglang(httpx.MockTransport(router.async_handler))
    async with agent(server) as client:
        await client.post("/v1/chat/completions", json={**PLAIN, "top_logprobs": 5, "logprobs": False})
    sent = orjson.loads(route.calls.last.request.content)
    assert sent == {
        "messages": PLAIN["messages"],
        "model": "policy",
        "logprobs": True,
        "top_logprobs": 0,
        "return_meta_info": True,
        "return_prompt_token_ids": True,
    }
    assert route.calls.last.request.headers["authorization"] == "Bearer engine-key"


async def test_without_token_ids_the_request_is_plain_chat():
    engine = engine_with()
    response = await chat(engine, return_token_id_information=False)
    assert engine.requests[-1].body == {**PLAIN, "model": "policy"}
    assert not set(TRIPLE) & set(response.json()["choices"][0]["message"])


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("after_tokens", [None, 0, 2])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_an_abort_never_becomes_a_turn(path, after_tokens, with_ids):
    engine = engine_with(
        Rule(reply="partial answer here", misbehave=Misbehaviour(abort=Abort(), after_tokens=after_tokens))
    )
    body = PLAIN if path.endswith("completions") else {"input": "say plain"}
    async with served_by(engine, return_token_id_information=with_ids) as client:
        response = await client.post(path, json=body)
        metrics = (await client.get("/metrics")).text
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "generation_aborted"
    assert "abort" in response.json()["error"]["message"]
    assert 'event="generation_aborted"' in metrics


async def test_an_abort_that_only_meta_info_reports_is_refused():
    choice = {
        "finish_reason": "tool_calls",
        "message": {"role": "assistant", "content": ""},
        "meta_info": {"finish_reason": {"type": "abort", "message": "Aborted"}},
    }
    with pytest.raises(GenerationAbortedError, match=r"policy_model.*abort \(Aborted\)"):
        await make_sglang()._attach_token_id_information(choice, {}, None)


async def test_overwritten_samples_of_non_finite_logits_are_refused():
    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": ""},
        "meta_info": {"finish_reason": {"type": "stop", "matched": "NaN happened"}},
    }
    with pytest.raises(UpstreamContractError, match="NaN happened"):
        await make_sglang()._attach_token_id_information(choice, {}, None)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_an_engine_before_0_5_13_is_named_with_the_remedy(path):
    engine = engine_with(version="0.5.12")
    body = PLAIN if path.endswith("completions") else {"input": "say plain"}
    async with served_by(engine) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert "0.5.13" in message
    assert "transport: generate" in message
    assert "return_logprob" not in message


async def test_the_phantom_entry_of_zero_new_tokens_is_no_token():
    response = await chat(engine_with(), {**PLAIN, "max_tokens": 0})
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["generation_token_ids"] == []
    assert choice["message"]["generation_log_probs"] == []
    assert choice["message"]["prompt_token_ids"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
@pytest.mark.parametrize("missing", range(-7, 2))
async def test_a_prompt_around_the_window_is_served_or_ends_with_length_and_its_ids(path, missing):
    """context-7 is the last length that SGLang serves; up to context+1 nothing is cut and nothing is a 500."""
    context = 64
    engine = engine_with(Rule(ids=(5, 6)), context_length=context)
    overhead = len(engine.tokenizer.encode("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"))
    text = _text_of_tokens(engine, context + missing - overhead)
    if path.endswith("completions"):
        body: dict[str, object] = {"messages": [{"role": "user", "content": text}]}
    else:
        body = {"input": [{"role": "user", "content": text}]}
    async with served_by(engine) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 200
    answer = response.json()
    holder = answer["choices"][0]["message"] if path.endswith("completions") else answer["output"][-1]
    assert len(holder["prompt_token_ids"]) == context + missing
    if missing == -7:
        assert holder["generation_token_ids"]
        return
    assert holder["generation_token_ids"] == []
    assert holder["generation_log_probs"] == []
    if path.endswith("completions"):
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["prompt_tokens"] == context + missing
    else:
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


def _text_of_tokens(engine: Engine, count: int) -> str:
    text = "a"
    while len(engine.tokenizer.encode(text)) < count:
        text += " b"
    assert len(engine.tokenizer.encode(text)) == count
    return text


async def test_too_large_a_budget_is_cut_to_what_fits_and_is_no_overflow():
    engine = engine_with(context_length=200)
    response = await chat(engine, {**PLAIN, "max_tokens": 5000})
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["generation_token_ids"]
    prompt, _ = sampled(engine)
    assert [request.body.get("max_tokens") for request in engine.requests] == [5000, 200 - len(prompt)]


async def test_a_budget_over_the_flag_is_cut_twice_and_is_no_overflow():
    engine = engine_with(context_length=200, context_length_flag=True)
    response = await chat(engine, {**PLAIN, "max_completion_tokens": 5000})
    assert response.status_code == 200
    prompt, _ = sampled(engine)
    budgets = [request.body.get("max_completion_tokens") for request in engine.requests]
    assert budgets == [5000, 200, 200 - len(prompt)]


async def test_overflow_can_be_an_error_instead():
    engine = engine_with(context_length=16)
    response = await chat(engine, on_context_overflow="error")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("status", [401, 403, 404, 422, 500])
async def test_an_overflow_sentence_under_another_status_is_not_an_overflow(status):
    words = "The input (600 tokens) is longer than the model's context length (512 tokens)."
    engine = engine_with(
        misbehave=(Misbehaviour(status=status, body=json.dumps({"error": {"message": words}})),)
    )
    response = await chat(engine)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]


async def test_a_prompt_that_the_engine_cut_is_refused():
    engine = engine_with(context_length=64, allow_auto_truncate=True)
    response = await chat(engine, {"messages": [{"role": "user", "content": "word " * 80}]})
    assert response.status_code == 500
    assert "--allow-auto-truncate" in response.json()["error"]["message"]


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_tool_markup_that_cannot_be_parsed_is_an_ordinary_stop_with_its_ids(version):
    engine = engine_with(
        Rule(
            reply='<think>\n\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {\n</tool_call>'
        ),
        version=version,
    )
    body = {"messages": [{"role": "user", "content": "weather"}], "tools": TOOLS}
    choice = (await chat(engine, body)).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert not choice["message"].get("tool_calls")
    assert choice["message"]["generation_token_ids"] == sampled(engine)[1]


async def test_routed_experts_travel_with_the_turn():
    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "x"},
        "prompt_token_ids": [1],
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": 3},
            "output_token_logprobs": [[-0.5, 3, "x"]],
            "completion_tokens": 1,
            "prompt_tokens": 1,
            "routed_experts": "AAECAw==",
        },
    }
    await make_sglang()._attach_token_id_information(choice, {}, None)
    assert choice["message"]["routed_experts"] == "AAECAw=="


async def test_an_echo_that_differs_from_the_sent_ids_is_refused():
    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "x"},
        "prompt_token_ids": [1, 2, 4],
        "meta_info": {"output_token_logprobs": [[-0.5, 3, "x"]], "completion_tokens": 1, "prompt_tokens": 3},
    }
    with pytest.raises(UpstreamContractError, match=r"3 input_ids were sent.*3 other ids.*0\.5\.13"):
        await make_sglang()._attach_token_id_information(choice, {"input_ids": [1, 2, 3]}, None)


META = "choices.*.meta_info"
BROKEN_ANSWERS = {
    "no prompt ids": (Misbehaviour(delete=("choices.*.prompt_token_ids",)), "0.5.13"),
    "no meta_info": (Misbehaviour(delete=(META,)), "output_token_logprobs"),
    "no logprobs": (Misbehaviour(delete=(f"{META}.output_token_logprobs",)), "output_token_logprobs"),
    "no choices": (Misbehaviour(delete=("choices",)), "list of choices"),
    "empty choices": (Misbehaviour(replace={"choices": []}), "0 choices"),
    "no message": (Misbehaviour(delete=("choices.*.message",)), "has no message"),
    "one logprob too few": (Misbehaviour(logprob_entries=-1), "completion_tokens"),
    "more tokens counted than came": (
        Misbehaviour(replace={f"{META}.completion_tokens": 99}),
        "completion_tokens=99",
    ),
    "NaN logprob": (Misbehaviour(logprob=float("nan")), "not JSON"),
    "null logprob": (Misbehaviour(logprob=None), "no logprob"),
    "bool logprob": (Misbehaviour(logprob=True), "got bool"),
    "text logprob": (Misbehaviour(logprob="-0.5"), "got str"),
    "bool id": (Misbehaviour(sampled_id=True), "got bool"),
    "float id": (Misbehaviour(sampled_id=3.9), "got float"),
    "text id": (Misbehaviour(sampled_id="12"), "got str"),
    "null id": (Misbehaviour(sampled_id=None), "no token id"),
    "negative id": (Misbehaviour(sampled_id=-1), ">= 0"),
    "prompt ids as text": (Misbehaviour(replace={"choices.*.prompt_token_ids": "1,2"}), "to be a list"),
    "negative prompt id": (
        Misbehaviour(replace={"choices.*.prompt_token_ids": [1, -2]}),
        "prompt_token_ids[1]",
    ),
    "prompt of another length": (Misbehaviour(replace={f"{META}.prompt_tokens": 3}), "prompt_tokens=3"),
    "prompt of another length, counted longer": (
        Misbehaviour(replace={f"{META}.prompt_tokens": 10_000}),
        "prompt_tokens=10000",
    ),
    "no completion_tokens": (
        Misbehaviour(delete=(f"{META}.completion_tokens",)),
        "expected completion_tokens",
    ),
    "no prompt_tokens": (Misbehaviour(delete=(f"{META}.prompt_tokens",)), "expected prompt_tokens"),
    "bool completion_tokens": (
        Misbehaviour(replace={f"{META}.completion_tokens": True}),
        "completion_tokens",
    ),
    "negative usage": (Misbehaviour(replace={"usage.prompt_tokens": -5}), "usage"),
    "reasoning that is a list": (
        Misbehaviour(replace={"choices.*.message.reasoning_content": ["r"]}),
        "to be texts, got list",
    ),
    "meta_info as list": (Misbehaviour(replace={META: []}), "meta_info"),
    "a list": (Misbehaviour(as_list=True), "list"),
    "HTML": (Misbehaviour(status=200, body="<html><body>gateway</body></html>"), "not JSON"),
    "cut body": (Misbehaviour(truncate_at=200), "not JSON"),
    "empty body": (Misbehaviour(status=200, body=""), "empty"),
}


@pytest.mark.parametrize("case", BROKEN_ANSWERS)
async def test_an_unusable_answer_is_a_typed_500_and_never_a_turn(case):
    misbehaviour, words = BROKEN_ANSWERS[case]
    response = await chat(engine_with(*RULES, misbehave=(misbehaviour,)))
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "upstream_contract"
    assert words in error["message"]


@pytest.mark.parametrize(
    ("status", "answered"), [(400, 400), (401, 401), (404, 404), (422, 422), (500, 500), (501, 500)]
)
async def test_an_engines_refusal_is_relayed_with_its_own_words(status, answered):
    engine = engine_with(misbehave=(Misbehaviour(status=status, body={"error": "the engine says no"}),))
    response = await chat(engine)
    assert response.status_code == answered
    assert "the engine says no" in response.json()["error"]["message"]
    assert len(engine.requests) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_engine_is_a_503_after_bounded_attempts(status):
    engine = engine_with(
        misbehave=(Misbehaviour(status=status, body={"message": "queue is full"}, retry_after=2),)
    )
    response = await chat(engine)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert "http_client.max_attempts" in response.json()["error"]["message"]
    assert len(engine.requests) == 3


async def test_a_busy_moment_passes_unseen():
    engine = engine_with(*RULES, misbehave=(Misbehaviour(status=503, body="later", times=2),))
    assert (await chat(engine)).status_code == 200
    assert len(engine.requests) == 3


@pytest.mark.parametrize("with_ids", [True, False])
async def test_ids_inside_the_engines_message_are_never_believed(with_ids):
    forged = {"prompt_token_ids": [9], "generation_token_ids": [1, 2, 3], "generation_log_probs": [-1.0]}
    replaced = {f"choices.*.message.{name}": value for name, value in forged.items()}
    engine = engine_with(*RULES, misbehave=(Misbehaviour(replace=replaced),))
    message = (await chat(engine, return_token_id_information=with_ids)).json()["choices"][0]["message"]
    if not with_ids:
        assert not set(TRIPLE) & set(message)
        return
    prompt, generation = sampled(engine)
    assert (message["prompt_token_ids"], message["generation_token_ids"]) == (prompt, generation)


@pytest.mark.parametrize("name", ["input_ids", "stream"])
async def test_an_extra_body_cannot_set_the_prompt_or_a_stream(name):
    engine = engine_with()
    extra = json.dumps({name: [-1, 2, 3] if name == "input_ids" else True})
    response = await chat(engine, {**PLAIN, "metadata": {"extra_body": extra}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "metadata.extra_body"
    assert engine.requests == []
    with pytest.raises(ValueError, match=f"may not set {name}"):
        make_sglang(extra_body={name: [1]})


async def test_the_pinned_fields_win_over_an_extra_body():
    engine = engine_with()
    pinned = {"return_meta_info": False, "return_prompt_token_ids": False, "logprobs": False}
    assert (await chat(engine, extra_body=pinned)).status_code == 200
    assert all(engine.requests[-1].body[name] is True for name in pinned)


LENGTH_SENTENCE = "The input (9 tokens) is longer than the model's context length (5 tokens)."


async def test_a_caller_cannot_write_a_length_finish():
    quoted = f"Tool choice names an unknown function: {LENGTH_SENTENCE}"
    engine = engine_with(misbehave=(Misbehaviour(status=400, body={"message": quoted}),))
    response = await chat(engine)
    assert response.status_code == 400
    assert LENGTH_SENTENCE in response.json()["error"]["message"]


async def test_every_choice_of_several_is_looked_at_for_an_abort():
    engine = engine_with(*RULES, misbehave=(Misbehaviour(replace={"choices.1.finish_reason": "abort"}),))
    response = await chat(engine, {**PLAIN, "n": 2}, return_token_id_information=False)
    assert response.status_code == 503
