"""What refusals for length mean, and what they lead to."""

from __future__ import annotations

import httpx
import pytest

from nemo_gym.errors import UpstreamStatusError
from sglang_model.length_refusals import SGLANG_PATTERNS
from tests.support.model_servers import agent, make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion
from vllm_model.length_refusal import VLLM_PATTERNS, LengthRefusal, read_length_refusal

PLAIN = {"messages": [{"role": "user", "content": "x"}]}
PROMPT_TOO_LONG = LengthRefusal(None)

VLLM_TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: 900. This model's maximum context length is 100 tokens and "
    "your request has 30 input tokens (900 > 100 - 30)."
)
VLLM_PROMPT = "The decoder prompt (length 101) is longer than the maximum model length of 100."
OPENAI_BOTH = (
    "This model's maximum context length is 100 tokens. However, you requested 120 tokens (30 in the messages, 90 in "
    "the completion). Please reduce the length of the messages or completion."
)
SGLANG_REQUESTED = (
    "Requested token count exceeds the model's maximum context length of 512 tokens. You requested a total of 521 "
    "tokens: 10 tokens from the input messages and 511 tokens for the completion. Please reduce ..."
)

SENTENCES = [
    (VLLM_PATTERNS, VLLM_TOO_LARGE, LengthRefusal(70)),
    (VLLM_PATTERNS, VLLM_TOO_LARGE.replace("30 input", "100 input"), PROMPT_TOO_LONG),
    (VLLM_PATTERNS, VLLM_PROMPT, PROMPT_TOO_LONG),
    (VLLM_PATTERNS, OPENAI_BOTH, LengthRefusal(70)),
    (VLLM_PATTERNS, OPENAI_BOTH.replace("30 in", "130 in"), PROMPT_TOO_LONG),
    (VLLM_PATTERNS, "max_tokens must be at least 1, got -5.", None),
    (VLLM_PATTERNS, "the server took longer than 30 s", None),
    (
        SGLANG_PATTERNS,
        "The input (600 tokens) is longer than the model's context length (512 tokens).",
        PROMPT_TOO_LONG,
    ),
    (
        SGLANG_PATTERNS,
        "Input length (506 tokens) exceeds the maximum allowed length (506 tokens). Use a shorter input or enable ...",
        PROMPT_TOO_LONG,
    ),
    (SGLANG_PATTERNS, SGLANG_REQUESTED, LengthRefusal(502)),
    (
        SGLANG_PATTERNS,
        "max_completion_tokens is too large: 900.This model supports at most 512 completion tokens.",
        LengthRefusal(512),
    ),
    (SGLANG_PATTERNS, "Request prompt exceeds the KV memory budget: input_len=600.", PROMPT_TOO_LONG),
    (
        SGLANG_PATTERNS,
        "Multimodal prompt is too long after expanding multimodal tokens. Try ...",
        PROMPT_TOO_LONG,
    ),
    (SGLANG_PATTERNS, "max_new_tokens must be at least 0, got -5.", None),
]


@pytest.mark.parametrize(("patterns", "sentence", "meaning"), SENTENCES)
def test_a_sentence_means_one_thing_and_only_under_status_400(patterns, sentence, meaning):
    def refusal(status: int) -> LengthRefusal | None:
        error = UpstreamStatusError("x", status=status, response_content=b"", engine_message=sentence)
        return read_length_refusal(error, patterns)

    assert refusal(400) == meaning
    assert [refusal(status) for status in (401, 413, 500, 503)] == [None] * 4


@pytest.mark.parametrize(("patterns", "sentence", "meaning"), SENTENCES)
def test_a_sentence_inside_another_message_means_nothing(patterns, sentence, meaning):
    quoted = f"tools.0.function.name: expected a name, got {sentence}"
    error = UpstreamStatusError("x", status=400, response_content=quoted.encode(), engine_message=quoted)
    assert read_length_refusal(error, patterns) is None


def refused(sentence: str) -> httpx.Response:
    return httpx.Response(400, json={"error": {"message": sentence}})


async def chat(engine: ScriptedEngine, body: dict[str, object] = PLAIN, **settings: object) -> httpx.Response:
    async with agent(make_vllm(engine, **settings)) as client:
        return await client.post("/v1/chat/completions", json=body)


async def test_a_prompt_that_does_not_fit_ends_the_turn_with_length_and_its_ids():
    answer = (await chat(ScriptedEngine([refused(VLLM_PROMPT)], prompt_ids=range(5)))).json()
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] is None
    assert choice["message"]["prompt_token_ids"] == [0, 1, 2, 3, 4]
    assert choice["message"]["generation_token_ids"] == choice["message"]["generation_log_probs"] == []
    assert answer["usage"] == {
        **answer["usage"],
        "prompt_tokens": 5,
        "completion_tokens": 0,
        "total_tokens": 5,
    }


async def test_empty_completions_have_ids_of_their_own():
    ids = {(await chat(ScriptedEngine([refused(VLLM_PROMPT)]))).json()["id"] for _ in range(2)}
    assert len(ids) == 2


async def test_without_token_ids_an_overflow_has_no_ids_and_invents_no_usage():
    engine = ScriptedEngine([refused(VLLM_PROMPT)])
    answer = (await chat(engine, return_token_id_information=False)).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "prompt_token_ids" not in answer["choices"][0]["message"]
    assert answer["usage"] is None
    assert not engine.bodies("/tokenize")


async def test_an_overflow_is_an_error_when_configured():
    response = await chat(ScriptedEngine([refused(VLLM_PROMPT)]), on_context_overflow="error")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert VLLM_PROMPT in response.json()["error"]["message"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_too_large_a_budget_is_cut_under_the_name_it_came_with(name):
    engine = ScriptedEngine([refused(VLLM_TOO_LARGE), completion(token_ids=[7])])
    response = await chat(engine, {**PLAIN, name: 900})
    assert response.status_code == 200
    assert [body[name] for body in engine.bodies()] == [900, 70]


async def test_an_engine_that_refuses_every_budget_is_relayed_after_three_calls():
    engine = ScriptedEngine([refused(VLLM_TOO_LARGE)] * 3)
    response = await chat(engine, {**PLAIN, "max_tokens": 900})
    assert response.status_code == 400
    assert len(engine.bodies()) == 3


@pytest.mark.parametrize("sentence", ["max_tokens must be at least 1, got -5.", "unknown field max_tokens"])
async def test_another_400_about_max_tokens_is_relayed_and_no_length_finish(sentence):
    response = await chat(ScriptedEngine([refused(sentence)]))
    assert response.status_code == 400
    assert sentence in response.json()["error"]["message"]


async def test_an_overflow_over_responses_is_incomplete_with_the_ids_on_the_last_item():
    engine = ScriptedEngine([refused(VLLM_PROMPT)], prompt_ids=range(5))
    async with agent(make_vllm(engine)) as client:
        answer = (await client.post("/v1/responses", json={"input": "x"})).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][-1]["prompt_token_ids"] == [0, 1, 2, 3, 4]
