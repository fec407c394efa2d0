"""The stub's JSON beside the embedded engine's, which is checked against captures of SGLang."""

from __future__ import annotations

import httpx
import orjson
import pytest

from benchmarks.stub_answers import CannedAnswers, Shape
from benchmarks.tokenizer import TOOL_CALL, Corpus
from sglang_model.testing import EngineSettings, create_engine_app

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "Say something."}],
    "logprobs": True,
    "return_meta_info": True,
    "return_prompt_token_ids": True,
    "max_tokens": 8,
}
GENERATE = {"input_ids": [300, 301, 302], "sampling_params": {"max_new_tokens": 8}, "return_logprob": True}


async def of_embedded_engine(path: str, body: dict) -> dict:
    transport = httpx.ASGITransport(app=create_engine_app(EngineSettings(version="0.5.13")))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        return (await client.post(path, json=body)).raise_for_status().json()


def keys(value: object) -> object:
    """The names in a JSON value; of a list, those of its first element."""
    if isinstance(value, dict):
        return {key: keys(one) for key, one in value.items()}
    return [keys(one) for one in value[:1]] if isinstance(value, list) else None


async def test_chat_answers_have_the_fields_of_sglang(corpus: Corpus):
    answer = orjson.loads(CannedAnswers(corpus, Shape(), "sglang").chat(orjson.dumps(CHAT)))
    theirs = await of_embedded_engine("/v1/chat/completions", CHAT)
    # The order too: a typed reader may rely on nothing else, and a fast one on this.
    assert orjson.dumps(keys(answer)) == orjson.dumps(keys(theirs))


async def test_generate_answers_have_the_fields_of_sglang(corpus: Corpus):
    answer = orjson.loads(CannedAnswers(corpus, Shape(), "sglang").generate(orjson.dumps(GENERATE)))
    theirs = await of_embedded_engine("/generate", GENERATE)
    assert orjson.dumps(keys(answer)) == orjson.dumps(keys(theirs))


def test_a_prompt_that_was_sent_is_echoed_byte_for_byte(corpus: Corpus):
    answer = CannedAnswers(corpus, Shape(), "sglang").chat(orjson.dumps({**CHAT, "input_ids": [7, 8, 9]}))
    choice = orjson.loads(answer)["choices"][0]
    assert choice["prompt_token_ids"] == [7, 8, 9]
    assert choice["meta_info"]["prompt_tokens"] == 3


@pytest.mark.parametrize("mode", ["sglang", "vllm"])
def test_made_up_prompts_begin_with_the_turn_before(corpus: Corpus, mode):
    answers = CannedAnswers(corpus, Shape(prompt_tokens=100, reply_tokens=10), mode)
    history = [*CHAT["messages"], {"role": "assistant", "content": "."}, {"role": "user", "content": "More."}]
    first, second = (
        orjson.loads(answers.tokenize(orjson.dumps({"messages": messages})))["tokens"]
        for messages in (CHAT["messages"], history)
    )
    assert len(first) == 100
    assert second[:110] == first + answers.reply_ids
    assert len(second) == 110 + 64


def test_a_reply_of_a_tool_call_decodes_to_it(corpus: Corpus):
    answers = CannedAnswers(corpus, Shape(reply="tool", reply_tokens=64), "sglang")
    body = orjson.loads(answers.generate(orjson.dumps(GENERATE)))
    assert body["text"].endswith(TOOL_CALL)
    assert body["output_ids"][-1] == corpus.end_id
    assert len(body["output_ids"]) == 64
    message = orjson.loads(answers.chat(orjson.dumps(CHAT)))["choices"][0]["message"]
    assert message["content"] == body["text"].removesuffix(TOOL_CALL)
    assert message["tool_calls"][0]["function"]["name"] == "look_up"
