"""`transport: generate` and its prompts against SGLang's own HTTP server."""

from __future__ import annotations

import pytest

from tests.live.policy import asking_for
from tests.live.rollout import CHAT_TOOLS, aborted
from tests.live.servers import (
    LOCAL,
    RENDERERS,
    TRANSPORTS,
    settings_of,
    text_of,
    tokenized,
    version_of,
    window_of,
)
from tests.support.model_servers import agent, make_sglang

pytestmark = [pytest.mark.live]

GREEDY = {"temperature": 0.0}


def asking(text: str, **fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": text}], **GREEDY, **fields}


@pytest.mark.parametrize("beyond", [0, 64], ids=["exact", "too large"])
@RENDERERS
@pytest.mark.sglang_versions("0.5.12", "0.5.13", "0.5.23")
async def test_a_prompt_at_the_window_ends_with_length_and_its_ids(live_engine, recorder, renderer, beyond):
    """With context_length as it is nothing is asked that cannot fit; set too large, the engine's refusals are read."""
    window = window_of(live_engine)
    settings = settings_of("generate", renderer, live_engine, context_length=window + beyond)
    text = "a" + " b" * (window - 64)
    around = window - len(tokenized(live_engine, messages=asking(text)["messages"]))
    async with agent(make_sglang(recorder, **settings)) as client:
        for left in range(7, -2, -1):
            body = asking(text + " b" * (around - left), max_tokens=1)
            response = await client.post("/v1/chat/completions", json=body, timeout=120)
            assert response.status_code == 200, response.text
            choice = response.json()["choices"][0]
            assert len(choice["message"]["prompt_token_ids"]) == window - left
            assert bool(choice["message"]["generation_token_ids"]) == (left >= 7)
            assert choice["finish_reason"] == "length"


@pytest.mark.sglang_versions("0.5.12", "0.5.13", "0.5.23")
async def test_too_large_a_budget_is_cut_and_no_overflow(live_engine, recorder):
    settings = settings_of("generate", "server", live_engine, context_length=2 * window_of(live_engine))
    async with agent(make_sglang(recorder, **settings)) as client:
        body = asking("say hello", max_tokens=window_of(live_engine))
        response = await client.post("/v1/chat/completions", json=body, timeout=120)
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert [call.status for call in recorder.generations] == [400, 200]


@pytest.mark.sglang_versions("0.5.12", "0.5.13", "0.5.23")
async def test_zero_new_tokens_are_zero_tokens(live_engine, recorder):
    async with agent(make_sglang(recorder, **settings_of("generate", "server", live_engine))) as client:
        response = await client.post(
            "/v1/chat/completions", json=asking("say hello", max_tokens=0), timeout=120
        )
    message = response.json()["choices"][0]["message"]
    assert (message["generation_token_ids"], message["generation_log_probs"]) == ([], [])
    assert recorder.generations[-1].sampled["meta_info"]["output_token_logprobs"], (
        "no phantom entry to refuse"
    )


@TRANSPORTS
@RENDERERS
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_thinking_that_is_switched_off_is_switched_off_in_the_prompt(
    live_engine, recorder, transport, renderer
):
    kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
    body = asking(asking_for("text"), **kwargs)
    async with agent(make_sglang(recorder, **settings_of(transport, renderer, live_engine))) as client:
        response = await client.post("/v1/chat/completions", json=body, timeout=120)
    message = response.json()["choices"][0]["message"]
    assert message["content"] == "Hello there!"
    assert message["prompt_token_ids"] == tokenized(live_engine, messages=body["messages"], **kwargs)
    assert text_of(live_engine, message["prompt_token_ids"]).endswith("<think>\n\n</think>\n\n")


@TRANSPORTS
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_an_abort_in_the_queue_is_a_503_too(live_engine, recorder, transport):
    """SGLang answers it with no ids and no counts, and 0.5.13's chat without a prompt."""
    async with agent(make_sglang(recorder, **settings_of(transport, "server", live_engine))) as client:
        response = await aborted(
            lambda: client.post("/v1/chat/completions", json=asking("hold me"), timeout=120), live_engine
        )
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "generation_aborted"
    assert (
        recorder.generations[-1].sampled["meta_info"]["finish_reason"]["message"] == "Abort in waiting queue"
    )


@pytest.mark.parametrize("renderer", [LOCAL])
@pytest.mark.sglang_versions("0.5.12", "0.5.13", "0.5.23")
async def test_a_tokenizer_here_renders_what_the_engine_renders_but_for_the_tools(
    live_engine, recorder, renderer
):
    """SGLang reads tools into a model of its own and writes out what that has: keys of its own, 10 or 5 tokens."""
    prompts = []
    async with agent(make_sglang(recorder, **settings_of("generate", renderer, live_engine))) as client:
        for tools in (None, CHAT_TOOLS):
            body = {**asking("say hello"), **({"tools": tools} if tools else {})}
            response = await client.post("/v1/chat/completions", json=body, timeout=120)
            here = response.json()["choices"][0]["message"]["prompt_token_ids"]
            prompts.append((here, tokenized(live_engine, **{k: body[k] for k in body if k != "temperature"})))
    (here, there), (tools_here, tools_there) = prompts
    assert here == there
    added = {"0.5.12": 10, "0.5.13": 10, "0.5.23": 5}[version_of(live_engine)]
    assert len(tools_there) == len(tools_here) + added
    heads, tails = zip(
        *(around_tools(text_of(live_engine, ids)) for ids in (tools_here, tools_there)), strict=True
    )
    assert heads[0] == heads[1]
    assert tails[0] == tails[1]


def around_tools(text: str) -> tuple[str, str]:
    head, _, rest = text.partition("<tools>\n")
    return head, rest.partition("\n</tools>")[2]
