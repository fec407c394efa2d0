"""Whole rollouts against SGLang's own HTTP server: the promise of this project, checked on what the engine received."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import httpx
import orjson
import pytest

from tests.live.policy import STEPS, Step
from tests.live.rollout import AGENTS, CHAT_TOOLS, Turn, Visible, run_rollout
from tests.live.servers import LOCAL, RENDERERS, TRANSPORTS, settings_of, tokenized
from tests.support.model_servers import agent, make_sglang
from tests.support.recorder import Recorder

pytestmark = [pytest.mark.live]

RULES = {rule["when"]: rule for rule in orjson.loads(Path(__file__).with_name("rules.json").read_bytes())}
SCRIPT = [RULES[f"step {number}:"]["ids"] for number in range(1, len(STEPS) + 1)]
APIS = pytest.mark.parametrize("api", ["chat", "responses"])


class DroppingRouter(Recorder):
    """A router that knows the answers' token fields and not `input_ids`, as a typed gateway of another age would be."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = orjson.loads(await request.aread() or b"{}")
        body.pop("input_ids", None)
        headers = {"content-type": "application/json"}
        request = httpx.Request(request.method, request.url, headers=headers, content=orjson.dumps(body))
        return await super().handle_async_request(request)


async def rollout_of(recorder: Recorder, engine: str, api: str, settings: dict[str, object]) -> list[Turn]:
    async with agent(make_sglang(recorder, **settings)) as client:
        return await run_rollout(AGENTS[api](client), engine)


def check_rollout(turns: list[Turn], recorder: Recorder) -> None:
    """What the engine received and sampled is what the turns carry, what the script says, and one growing prompt."""
    calls = recorder.generations
    finished = [call for call in calls if call.finish != "abort"]
    assert len(calls) == len(finished) + 1 == len(STEPS) + 1
    for turn, call, step, script in zip(turns, finished, STEPS, SCRIPT, strict=True):
        assert turn.triple == call.triple()
        assert turn.triple["generation_token_ids"] == script[: step.max_tokens]
    assert turns[0].history == "new"
    for before, turn in pairwise(turns):
        seen = before.triple["prompt_token_ids"] + before.triple["generation_token_ids"]
        assert turn.triple["prompt_token_ids"][: len(seen)] == seen
        assert (turn.history, turn.reason, turn.report["kept_tokens"]) == ("spliced", "matched", len(seen))
    [number] = [number for number, call in enumerate(calls) if call.finish == "abort"]
    assert calls[number].sent["input_ids"] == calls[number + 1].sent["input_ids"]


@APIS
@RENDERERS
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_every_prompt_of_a_rollout_over_chat_extends_what_was_seen_and_sampled(
    live_engine, recorder, renderer, api
):
    turns = await rollout_of(recorder, live_engine, api, settings_of("chat", renderer, live_engine))
    check_rollout(turns, recorder)
    last = recorder.generations[-1]
    rendered = tokenized(live_engine, messages=last.sent["messages"], tools=CHAT_TOOLS)
    seen = turns[0].triple["prompt_token_ids"] + turns[0].triple["generation_token_ids"]
    assert rendered[: len(seen)] != seen, (
        "the engine's own rendering of this history would not have broken it"
    )


@APIS
@RENDERERS
@pytest.mark.sglang_versions("0.5.12", "0.5.13", "0.5.23")
async def test_every_prompt_of_a_rollout_over_generate_extends_what_was_seen_and_sampled(
    live_engine, recorder, renderer, api
):
    turns = await rollout_of(recorder, live_engine, api, settings_of("generate", renderer, live_engine))
    check_rollout(turns, recorder)


@RENDERERS
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_generate_echoes_the_prompts_that_were_sent_when_it_is_asked(live_engine, recorder, renderer):
    """This project does not ask; the same requests are sent once more with the question in them."""
    await rollout_of(recorder, live_engine, "chat", settings_of("generate", renderer, live_engine))
    for call in recorder.generations:
        again = await call.replayed(return_prompt_token_ids=True)
        assert again.answer["prompt_token_ids"] == call.sent["input_ids"]
        if call.finish != "abort":
            assert again.triple() == call.triple()


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_both_transports_and_the_engines_own_parsers_show_the_same_answers(live_engine):
    shown: list[list[Visible]] = []
    for transport, settings in (
        ("chat", {}),
        ("generate", {}),
        ("generate", {"sglang_tool_format": "server"}),
    ):
        recorder = Recorder()
        turns = await rollout_of(
            recorder, live_engine, "responses", settings_of(transport, "server", live_engine, **settings)
        )
        await recorder.inner.aclose()
        shown.append([turn.visible for turn in turns])
    over_chat, over_generate, by_the_engine = shown
    assert over_generate == over_chat
    assert by_the_engine == over_chat
    assert [len(visible.calls) for visible in over_chat] == [1, 0, 2, 0, 0, 1, 0, 0, 1, 0]
    assert all(visible.reasoning for visible in over_chat)


@APIS
@TRANSPORTS
@RENDERERS
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_prompts_grow_by_whatever_a_random_model_samples(
    live_engine, recorder, transport, renderer, api
):
    """No rule of the script matches, so the tiny model samples hot: control tokens, half letters, early ends."""
    settings = settings_of(transport, renderer, live_engine)
    for conversation in range(2):
        async with agent(make_sglang(recorder, **settings)) as client:
            speaker, seen = AGENTS[api](client, extra={"temperature": 2.0, "top_k": -1}), []
            for turn in range(4):
                step = Step(user=f"go on <|im_end|> {turn}", says="", max_tokens=3 + 2 * conversation + turn)
                speaker.open_calls.clear()
                speaker.hears(step)
                response = await speaker.post(step)
                assert response.status_code == 200, response.text
                triple = speaker.takes(response).triple
                assert triple == recorder.generations[-1].triple()
                assert triple["prompt_token_ids"][: len(seen)] == seen
                assert response.headers["x-sglang-history"] == ("spliced" if turn else "new")
                seen = triple["prompt_token_ids"] + triple["generation_token_ids"]


@TRANSPORTS
@RENDERERS
@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_a_call_cut_off_by_the_budget_is_closed_and_kept(live_engine, recorder, transport, renderer):
    """The first of two calls is whole. The close of the turn is prompt, behind all that was sampled."""
    body: dict = {
        "messages": [{"role": "user", "content": "say hello"}],
        "tools": CHAT_TOOLS,
        "chat_template_kwargs": {"enable_thinking": False},
        "temperature": 0.0,
    }
    async with agent(make_sglang(recorder, **settings_of(transport, renderer, live_engine))) as client:

        async def ask(*new: dict, **fields: object) -> tuple[httpx.Response, dict]:
            body["messages"] += new
            response = await client.post("/v1/chat/completions", json={**body, **fields}, timeout=120)
            body["messages"].append(response.json()["choices"][0]["message"])
            return response, body["messages"][-1]

        await ask()
        response, cut = await ask({"role": "user", "content": "call twice"}, max_tokens=30)
        assert response.json()["choices"][0]["finish_reason"] == "length"
        [call] = cut["tool_calls"]
        response, last = await ask({"role": "tool", "tool_call_id": call["id"], "content": "sunny"})
    seen = cut["prompt_token_ids"] + cut["generation_token_ids"]
    assert last["prompt_token_ids"][: len(seen)] == seen
    assert response.headers["x-sglang-history"] == "spliced"
    assert response.json()["choices"][0]["sglang"]["flags"] == ["unterminated_generation"]


@pytest.mark.parametrize("renderer", [LOCAL, "server"])
@pytest.mark.sglang_versions("0.5.12")
async def test_an_engine_before_0_5_13_is_refused_when_chat_should_splice(live_engine, recorder, renderer):
    async with agent(make_sglang(recorder, **settings_of("chat", renderer, live_engine))) as client:
        body = {"messages": [{"role": "user", "content": "say hello"}]}
        response = await client.post("/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 500
    assert "0.5.13" in response.json()["error"]["message"]
    assert "transport: generate" in response.json()["error"]["message"]


@pytest.mark.sglang_versions("0.5.13", "0.5.23")
async def test_a_router_that_drops_the_prompt_ids_is_refused_with_the_remedy(live_engine):
    recorder = DroppingRouter()
    body: dict = {"messages": [{"role": "user", "content": "say hello"}]}
    async with agent(make_sglang(recorder, **settings_of("chat", "server", live_engine))) as client:
        first = await client.post("/v1/chat/completions", json=body, timeout=120)
        message = first.json()["choices"][0]["message"]
        body["messages"] += [message, {"role": "user", "content": "say hello again"}]
        second = await client.post("/v1/chat/completions", json=body, timeout=120)
    await recorder.inner.aclose()
    assert second.status_code == 500
    assert second.json()["error"]["code"] == "upstream_contract"
    assert "transport: generate" in second.json()["error"]["message"]
