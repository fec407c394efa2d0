"""Prompts around the window on `transport: generate`, and how many tokens may be sampled: nothing cut, no 500."""

from __future__ import annotations

import json

import pytest

from sglang_model.testing import Engine, Misbehaviour, Rule
from tests.support.conversations import Agent, events
from tests.support.local_tokenizer import RENDERERS, engine_with, post, served_by
from tests.support.turns import user

CONTEXT = 64
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PATHS = pytest.mark.parametrize("path", [CHAT, RESPONSES])
PLAIN = {"messages": [user("say plain")]}


def body_of_length(engine: Engine, length: int, path: str = CHAT) -> dict[str, object]:
    """A request whose rendered prompt has so many tokens."""
    overhead = len(engine.tokenizer.encode("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"))
    text = "a" + " b" * (length - overhead - 1)
    messages = [user(text)]
    return {"messages": messages} if path == CHAT else {"input": messages}


def generate_bodies(engine: Engine) -> list[dict[str, object]]:
    return [request.body for request in engine.requests if request.path == "/generate"]


def budgets(engine: Engine) -> list[object]:
    return [body["sampling_params"]["max_new_tokens"] for body in generate_bodies(engine)]


@RENDERERS
@PATHS
@pytest.mark.parametrize("missing", range(-7, 2))
async def test_a_prompt_around_the_window_is_served_or_ends_with_length_and_its_ids(path, renderer, missing):
    """context-7 is the last length that SGLang serves; up to context+1 nothing is cut and nothing is a 500."""
    engine = engine_with(Rule(ids=(5, 6)), context_length=CONTEXT)
    body = body_of_length(engine, CONTEXT + missing, path)
    async with served_by(engine, "generate", renderer, context_length=CONTEXT) as client:
        response = await client.post(path, json=body)
        counted = events((await client.get("/metrics")).text)
    assert response.status_code == 200
    assert response.headers["x-sglang-history"] == "new"
    answer = response.json()
    holder = answer["choices"][0]["message"] if path == CHAT else answer["output"][-1]
    assert len(holder["prompt_token_ids"]) == CONTEXT + missing
    if missing == -7:
        assert holder["generation_token_ids"] == engine.samples[-1].token_ids
        return
    assert holder["generation_token_ids"] == []
    assert holder["generation_log_probs"] == []
    assert counted["context_overflow"] == 1
    assert len(generate_bodies(engine)) == (1 if missing < 0 else 0)
    if path == CHAT:
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"] | {"prompt_tokens_details": None, "completion_tokens_details": None} == {
            "prompt_tokens": CONTEXT + missing,
            "completion_tokens": 0,
            "total_tokens": CONTEXT + missing,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
    else:
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_a_prompt_as_long_as_the_window_terminates_without_a_call_of_the_engine():
    engine = engine_with(Rule(ids=(5, 6)), context_length=4096)
    response = await post(engine, body_of_length(engine, CONTEXT), context_length=CONTEXT)
    choice = response.json()["choices"][0]
    assert generate_bodies(engine) == []
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["prompt_token_ids"]) == CONTEXT
    assert choice["message"]["content"] is None
    assert not choice["message"]["tool_calls"]


async def test_the_overflow_of_a_caller_without_ids_has_none():
    engine = engine_with(context_length=CONTEXT)
    settings = {"context_length": CONTEXT, "return_token_id_information": False}
    response = await post(engine, body_of_length(engine, CONTEXT), **settings)
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert "prompt_token_ids" not in choice["message"]


@PATHS
@pytest.mark.parametrize("missing", [-6, -1, 0, 1])
async def test_overflow_can_be_an_error_instead(path, missing):
    engine = engine_with(context_length=CONTEXT)
    body = body_of_length(engine, CONTEXT + missing, path)
    response = await post(engine, body, path, context_length=CONTEXT, on_context_overflow="error")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert response.headers["x-sglang-history"] == "new"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_an_explicit_budget_is_cut_to_what_the_window_leaves(name):
    engine = engine_with(Rule(ids=(5, 6)), context_length=CONTEXT)
    body = {**body_of_length(engine, 50), name: 10_000}
    response = await post(engine, body, context_length=CONTEXT)
    assert response.status_code == 200
    assert budgets(engine) == [CONTEXT - 50]
    assert response.json()["choices"][0]["message"]["generation_token_ids"] == engine.samples[-1].token_ids


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("asked", [0, 1, 14])
async def test_a_budget_that_fits_is_sent_as_it_is(name, asked):
    engine = engine_with(Rule(ids=(5,) * 20), context_length=CONTEXT)
    body = {**body_of_length(engine, 50), name: asked}
    response = await post(engine, body, context_length=CONTEXT)
    assert budgets(engine) == [asked]
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_the_newer_of_the_two_names_wins_also_when_it_is_zero():
    engine = engine_with(Rule(ids=(5,) * 20))
    await post(engine, {**PLAIN, "max_tokens": 9, "max_completion_tokens": 0})
    assert budgets(engine) == [0]


async def test_a_responses_budget_is_a_budget():
    engine = engine_with(Rule(ids=(5,) * 20))
    response = await post(engine, {"input": "a", "max_output_tokens": 3}, RESPONSES)
    assert budgets(engine) == [3]
    assert response.json()["status"] == "incomplete"


@pytest.mark.parametrize(
    ("extra", "where"), [({"max_tokens": -1}, "max_tokens"), ({"max_tokens": "5"}, "max_tokens")]
)
async def test_a_budget_that_is_none_is_a_400_wherever_it_comes_from(extra, where):
    engine = engine_with(Rule(ids=(5, 6)))
    metadata = {"extra_body": json.dumps(extra)}
    for settings, body in (
        ({"extra_body": extra}, PLAIN),
        ({}, {**PLAIN, "metadata": metadata}),
        ({}, {**PLAIN, **extra}),
    ):
        response = await post(engine, body, **settings)
        assert response.status_code == 400
        assert where in response.json()["error"]["param"]
    assert engine.samples == []


@pytest.mark.parametrize("length", [20, 55, 57])
async def test_without_a_budget_the_window_is_used_up_to_a_margin(length):
    engine = engine_with(Rule(ids=(5, 6)), context_length=CONTEXT)
    response = await post(engine, body_of_length(engine, length), context_length=CONTEXT)
    assert response.status_code == 200
    assert budgets(engine) == [max(1, CONTEXT - length - 8)]
    assert response.json()["choices"][0]["message"]["generation_token_ids"] == engine.samples[-1].token_ids


async def test_a_default_budget_can_be_configured():
    engine = engine_with(Rule(ids=(5,) * 20))
    await post(engine, PLAIN, extra_body={"max_tokens": 6})
    assert budgets(engine) == [6]


@pytest.mark.parametrize("length", [20, 57])
async def test_an_engine_with_a_smaller_window_gets_the_budget_that_fits_it(length):
    engine = engine_with(Rule(ids=(5, 6)), context_length=CONTEXT)
    response = await post(engine, {**body_of_length(engine, length), "max_tokens": 1000}, context_length=4096)
    assert response.status_code == 200
    assert budgets(engine) == [1000, CONTEXT - length]
    assert response.json()["choices"][0]["message"]["generation_token_ids"] == engine.samples[-1].token_ids


@pytest.mark.parametrize("budget", [None, 10, 1000])
@pytest.mark.parametrize("missing", [-6, -1, 0, 1, 100])
async def test_a_prompt_too_long_for_the_engines_smaller_window_ends_with_length_and_its_ids(missing, budget):
    engine = engine_with(Rule(ids=(5, 6)), context_length=CONTEXT)
    body = {**body_of_length(engine, CONTEXT + missing), "max_tokens": budget}
    response = await post(engine, body, context_length=4096)
    assert response.status_code == 200
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["prompt_token_ids"]) == CONTEXT + missing
    assert choice["message"]["generation_token_ids"] == []
    assert engine.samples == []


async def test_a_prompt_that_an_engine_with_a_smaller_window_cut_is_refused():
    engine = engine_with(Rule(ids=(5, 6)), context_length=CONTEXT, allow_auto_truncate=True)
    response = await post(engine, body_of_length(engine, CONTEXT + 10), context_length=4096)
    assert response.status_code == 500
    assert "--allow-auto-truncate" in response.json()["error"]["message"]


SENTENCES = {
    "tokenizer": "The input (600 tokens) is longer than the model's context length (512 tokens).",
    "scheduler": "Input length (506 tokens) exceeds the maximum allowed length (506 tokens). Use a shorter input "
    "or enable --allow-auto-truncate.",
    "memory": "Request prompt exceeds the KV memory budget: input_len=600.",
}


def refusing(status: int, message: str) -> Engine:
    wrong = Misbehaviour(path="/generate", status=status, body={"error": {"message": message}})
    return engine_with(Rule(ids=(5, 6)), misbehave=(wrong,))


@pytest.mark.parametrize("sentence", SENTENCES)
async def test_every_wording_of_an_overflow_ends_with_length(sentence):
    """W31: the scheduler's and the memory's were a 500."""
    engine = refusing(400, SENTENCES[sentence])
    choice = (await post(engine, PLAIN)).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["prompt_token_ids"] == generate_bodies(engine)[0]["input_ids"]


@pytest.mark.parametrize("status", [401, 403, 404, 422, 500])
@pytest.mark.parametrize("sentence", SENTENCES)
async def test_an_overflow_sentence_under_another_status_is_not_an_overflow(status, sentence):
    """W30."""
    response = await post(refusing(status, SENTENCES[sentence]), PLAIN)
    assert response.status_code == status
    assert SENTENCES[sentence] in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "words",
    ["it took longer than 30s", "max_total is out of range", "the context length of your patience is longer"],
)
async def test_words_that_only_resemble_an_overflow_are_an_ordinary_refusal(words):
    response = await post(refusing(400, words), PLAIN)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]


async def test_an_engine_that_refuses_its_own_number_of_tokens_is_relayed_after_one_more_try():
    words = (
        "Requested token count exceeds the model's maximum context length of 512 tokens. You requested a total of 600 "
        "tokens: 100 tokens from the input messages and 500 tokens for the completion. Please reduce"
    )
    engine = refusing(400, words)
    response = await post(engine, {**PLAIN, "max_tokens": 500})
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert budgets(engine) == [500, 412]


@RENDERERS
async def test_an_overflow_in_the_middle_of_a_rollout_leaves_what_was_sampled_to_go_on_from(renderer):
    engine = engine_with(Rule(reply="Hello there!"), context_length=CONTEXT)
    async with served_by(engine, "generate", renderer, context_length=CONTEXT) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        overflow = await agent.send([*agent.messages, user("word " * 60)])
        second = await agent.ask("b")
    seen = [*first.prompt, *first.generation]
    for answer in (overflow, second):
        assert answer.history == ("spliced", "matched")
        assert answer.prompt[: len(seen)] == seen
