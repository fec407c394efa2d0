"""`transport: generate` over HTTP, against the embedded engine: what goes out, and what becomes of what comes back."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from sglang_model.testing import Abort, Engine, Misbehaviour, Rule
from sglang_model.testing.chat_template import BUILTIN_TEMPLATE
from tests.support.conversations import Agent, events
from tests.support.local_tokenizer import (
    CONTEXT_LENGTH,
    RENDERERS,
    engine_with,
    make_server,
    post,
    served_by,
    tokenizer_folder,
)
from tests.support.model_servers import agent as agent_of
from tests.support.turns import system, user

FUNCTION = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THINKING_CALL = f"<think>\nneed\n</think>\n\n{CALL}"
PLAIN = {"messages": [{"role": "user", "content": "say plain"}]}
TRIPLE = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
OPENS_THINKING = BUILTIN_TEMPLATE.replace(
    "{{- '<|im_start|>assistant\\n' }}\n    {%- if enable_thinking",
    "{{- '<|im_start|>assistant\\n<think>\\n' }}\n    {%- if enable_thinking",
)
"""A template whose generation prompt opens the thinking, as those of DeepSeek-R1 and Qwen3-Thinking do."""


def saying(reply: str, **settings: object) -> Engine:
    return engine_with(Rule(reply=reply), **settings)


def body_for(path: str, text: str = "say plain", **fields: object) -> dict[str, object]:
    return {"messages": [user(text)], **fields} if path.endswith("completions") else {"input": text, **fields}


def generate_bodies(engine: Engine) -> list[dict[str, object]]:
    return [request.body for request in engine.requests if request.path == "/generate"]


async def choice_of(engine: Engine, **request: object) -> dict[str, object]:
    settings = request.pop("settings", {})
    response = await post(engine, {**PLAIN, **request}, **settings)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@RENDERERS
@PATHS
async def test_the_outgoing_call_has_the_ids_two_parameters_and_nothing_else(renderer, path):
    engine = saying("Hello there!")
    name = "max_tokens" if path.endswith("completions") else "max_output_tokens"
    async with served_by(engine, "generate", renderer) as client:
        assert (await client.post(path, json=body_for(path, **{name: 8}))).status_code == 200
        assert (await client.post(path, json=body_for(path))).status_code == 200
    prompt = engine.tokenizer.encode("<|im_start|>user\nsay plain<|im_end|>\n<|im_start|>assistant\n")
    for body, budget in zip(generate_bodies(engine), (8, CONTEXT_LENGTH - len(prompt) - 8), strict=True):
        assert body == {
            "input_ids": prompt,
            "sampling_params": {"spaces_between_special_tokens": False, "max_new_tokens": budget},
            "return_logprob": True,
        }


@RENDERERS
async def test_a_turn_has_reasoning_a_call_and_exactly_what_was_sampled(renderer):
    engine = saying(THINKING_CALL)
    async with served_by(engine, "generate", renderer) as client:
        answer = await Agent(client, engine, tools=TOOLS).ask("weather in Paris")
    assert answer.choice["finish_reason"] == "tool_calls"
    assert answer.message["content"] == "<think>\nneed\n</think>"
    (call,) = answer.calls
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert call["type"] == "function"
    assert answer.generation == [*engine.tokenizer.encode(THINKING_CALL), engine.tokenizer.eos_token_id]
    assert answer.choice["logprobs"] is None
    assert answer.body["model"] == "policy"
    assert answer.body["usage"]["prompt_tokens"] == len(answer.prompt)
    assert answer.body["usage"]["completion_tokens"] == len(answer.generation)
    assert answer.body["usage"]["total_tokens"] == len(answer.prompt) + len(answer.generation)


@RENDERERS
async def test_a_responses_turn_carries_the_triple_on_its_last_item_only(renderer):
    engine = saying(THINKING_CALL)
    body = {"input": "weather in Paris", "tools": [{"type": "function", **FUNCTION, "strict": True}]}
    response = await post(engine, body, "/v1/responses", renderer=renderer)
    output = response.json()["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call"]
    assert output[-1]["prompt_token_ids"] == engine.samples[-1].prompt_token_ids
    assert output[-1]["generation_token_ids"] == engine.samples[-1].token_ids
    assert not set(TRIPLE) & set(output[0])
    assert response.json()["sglang"]["history"] == "new"
    assert response.headers["x-sglang-history"] == "new"


@RENDERERS
async def test_without_token_ids_the_call_is_the_same_and_the_answer_has_none(renderer):
    engine = saying(THINKING_CALL)
    with_ids = await choice_of(engine, tools=TOOLS, settings={"renderer": renderer})
    settings = {"renderer": renderer, "return_token_id_information": False}
    without = await choice_of(engine, tools=TOOLS, settings=settings)
    assert generate_bodies(engine)[0] == generate_bodies(engine)[1]
    assert not set(TRIPLE) & set(without["message"])
    assert without["message"]["content"] == with_ids["message"]["content"]
    assert len(without["message"]["tool_calls"]) == 1


@RENDERERS
async def test_without_a_reasoning_parser_the_thinking_stays_text_and_is_still_not_executed(renderer):
    engine = saying(f"<think>\n{CALL}\n</think>\n\nNo.")
    settings = {"renderer": renderer, "uses_reasoning_parser": False}
    choice = await choice_of(engine, tools=TOOLS, settings=settings)
    assert choice["message"]["content"] == f"<think>\n{CALL}\n</think>\n\nNo."
    assert not choice["message"]["tool_calls"]


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("after_tokens", [None, 0, 2])
@PATHS
async def test_an_abort_never_becomes_a_turn(path, after_tokens, with_ids):
    engine = engine_with(
        Rule(reply="partial answer here", misbehave=Misbehaviour(abort=Abort(), after_tokens=after_tokens))
    )
    async with served_by(engine, return_token_id_information=with_ids) as client:
        response = await client.post(path, json=body_for(path))
        counted = events((await client.get("/metrics")).text)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "generation_aborted"
    assert response.headers["x-sglang-history"] == "new"
    assert counted["generation_aborted"] == 1
    assert "history_commit_committed" not in counted


BROKEN_ANSWERS = {
    "no meta_info": (Misbehaviour(delete=("meta_info",)), "output_token_logprobs"),
    "no logprobs": (Misbehaviour(delete=("meta_info.output_token_logprobs",)), "output_token_logprobs"),
    "one logprob too few": (Misbehaviour(logprob_entries=-1), "completion_tokens"),
    "more tokens counted than came": (
        Misbehaviour(replace={"meta_info.completion_tokens": 99}),
        "completion_tokens=99",
    ),
    "a negative count": (Misbehaviour(replace={"meta_info.completion_tokens": -1}), "completion_tokens"),
    "other ids at the top": (Misbehaviour(replace={"output_ids": [1, 2]}), "do not match output_ids"),
    "one id too many at the top": (
        Misbehaviour(replace={"output_ids": [945, 457, 0, 977, 977]}),
        "do not match output_ids",
    ),
    "ids at the top as text": (Misbehaviour(replace={"output_ids": "12"}), "to be a list"),
    "NaN logprob": (Misbehaviour(logprob=float("nan")), "not JSON"),
    "null logprob": (Misbehaviour(logprob=None), "no logprob"),
    "bool logprob": (Misbehaviour(logprob=True), "got bool"),
    "text logprob": (Misbehaviour(logprob="-0.5"), "got str"),
    "bool id": (Misbehaviour(sampled_id=True), "got bool"),
    "float id": (Misbehaviour(sampled_id=3.9), "got float"),
    "text id": (Misbehaviour(sampled_id="12"), "got str"),
    "null id": (Misbehaviour(sampled_id=None), "has no token id"),
    "negative id": (Misbehaviour(sampled_id=-1), ">= 0"),
    "entries as text": (
        Misbehaviour(replace={"meta_info.output_token_logprobs": "x"}),
        "output_token_logprobs to be a list",
    ),
    "short entries": (
        Misbehaviour(replace={"meta_info.output_token_logprobs": [[-0.5]]}),
        "output_token_logprobs[0]",
    ),
    "prompt of another length": (Misbehaviour(replace={"meta_info.prompt_tokens": 3}), "prompt_tokens=3"),
    "another prompt echoed": (Misbehaviour(replace={"prompt_token_ids": [1, 2, 3]}), "input_ids were sent"),
    "echo as text": (Misbehaviour(replace={"prompt_token_ids": "1"}), "to be a list"),
    "logits not finite": (
        Misbehaviour(replace={"meta_info.finish_reason": {"type": "stop", "matched": "NaN happened"}}),
        "NaN happened",
    ),
    "meta_info as list": (Misbehaviour(replace={"meta_info": []}), "meta_info"),
    "a list": (Misbehaviour(as_list=True), "list"),
    "HTML": (Misbehaviour(status=200, body="<html><body>gateway</body></html>"), "not JSON"),
    "cut body": (Misbehaviour(truncate_at=200), "not JSON"),
    "empty body": (Misbehaviour(status=200, body=""), "empty"),
}


@PATHS
@pytest.mark.parametrize("case", BROKEN_ANSWERS)
async def test_an_unusable_answer_is_a_typed_500_and_never_a_turn(case, path):
    misbehaviour, words = BROKEN_ANSWERS[case]
    misbehaviour = misbehaviour.model_copy(update={"path": "/generate"})
    engine = saying("Hello there!", misbehave=(misbehaviour,))
    async with served_by(engine) as client:
        response = await client.post(path, json=body_for(path))
        counted = events((await client.get("/metrics")).text)
    assert response.status_code == 500
    error = response.json()["error"]
    assert error["code"] == "upstream_contract"
    assert words in error["message"]
    assert response.headers["x-sglang-history-reason"] == "new_conversation"
    assert "history_commit_committed" not in counted


async def test_the_message_of_a_mismatch_names_counts_and_no_ids():
    engine = engine_with(
        Rule(ids=(300,) * 500), misbehave=(Misbehaviour(path="/generate", replace={"output_ids": [301]}),)
    )
    message = (await post(engine, PLAIN)).json()["error"]["message"]
    assert "501 against 1" in message
    assert len(message) < 300


async def test_the_entry_of_a_token_that_was_not_generated_is_no_token():
    engine = saying("Hello there!")
    choice = await choice_of(engine, max_tokens=0)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["generation_token_ids"] == []
    assert choice["message"]["generation_log_probs"] == []
    assert choice["message"]["prompt_token_ids"] == engine.samples[-1].prompt_token_ids
    assert generate_bodies(engine)[0]["sampling_params"]["max_new_tokens"] == 0


@pytest.mark.parametrize(
    ("status", "answered"), [(400, 400), (401, 401), (404, 404), (422, 422), (500, 500), (501, 500)]
)
async def test_an_engines_refusal_is_relayed_with_its_own_words(status, answered):
    refusal = Misbehaviour(path="/generate", status=status, body={"error": {"message": "the engine says no"}})
    engine = saying("Hello there!", misbehave=(refusal,))
    response = await post(engine, PLAIN)
    assert response.status_code == answered
    assert "the engine says no" in response.json()["error"]["message"]
    assert len(generate_bodies(engine)) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_busy_engine_is_a_503_after_bounded_attempts(status):
    busy = Misbehaviour(path="/generate", status=status, body={"message": "queue is full"}, retry_after=2)
    engine = saying("Hello there!", misbehave=(busy,))
    response = await post(engine, PLAIN)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"
    assert response.headers["x-sglang-history"] == "new"
    assert len(generate_bodies(engine)) == 3


async def test_a_busy_moment_passes_unseen():
    engine = saying(
        "Hello there!", misbehave=(Misbehaviour(path="/generate", status=503, body="later", times=2),)
    )
    assert (await post(engine, PLAIN)).status_code == 200
    assert len(generate_bodies(engine)) == 3


async def test_routed_experts_and_cached_tokens_travel_with_the_turn():
    extra = {"meta_info.routed_experts": "AAECAw==", "meta_info.cached_tokens": 7}
    engine = saying("Hello there!", misbehave=(Misbehaviour(path="/generate", replace=extra),))
    response = await post(engine, PLAIN)
    choice = response.json()["choices"][0]
    assert choice["message"]["routed_experts"] == "AAECAw=="
    assert choice["matched_stop"] == engine.tokenizer.eos_token_id
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 7


@PATHS
async def test_thinking_that_the_model_opened_itself_has_one_opening_tag(path):
    """W7: Qwen3 samples <think>, it is not in the prompt."""
    engine = saying("<think>\nso\n</think>\n\nHello.")
    response = (await post(engine, body_for(path), path)).json()
    if path.endswith("completions"):
        assert response["choices"][0]["message"]["content"] == "<think>\nso\n</think>\n\nHello."
    else:
        assert response["output"][0]["summary"][0]["text"] == "\nso\n"
        assert response["output"][1]["content"][0]["text"] == "\n\nHello."


@RENDERERS
@pytest.mark.parametrize("tool_format", ["hermes", "server"])
async def test_thinking_that_the_template_opened_ends_at_its_closing_tag(renderer, tool_format, tmp_path):
    (path := tmp_path / "t.jinja").write_text(OPENS_THINKING)
    engine = saying("so\n</think>\n\nHello.", chat_template_path=path)
    settings = {"renderer": renderer, "sglang_tool_format": tool_format}
    if renderer == "local":
        settings["sglang_tokenizer"] = str(tokenizer_folder(OPENS_THINKING))
    choice = await choice_of(engine, settings=settings)
    assert choice["message"]["content"] == "<think>so\n</think>\n\nHello."
    assert engine.tokenizer.decode(choice["message"]["prompt_token_ids"]).endswith("<think>\n")


@RENDERERS
@pytest.mark.parametrize("tool_format", ["hermes", "server"])
@pytest.mark.parametrize("opened_by", ["template", "model"])
async def test_thinking_cut_by_the_budget_is_thinking_and_no_call_in_it_is_made(
    renderer, tool_format, opened_by, tmp_path
):
    """W8: the whole chain of thought was the answer, and its calls were executed."""
    thought = f"maybe\n{CALL}\nor not"
    reply = thought if opened_by == "template" else f"<think>{thought}"
    template = OPENS_THINKING if opened_by == "template" else BUILTIN_TEMPLATE
    (path := tmp_path / "t.jinja").write_text(template)
    engine = engine_with(Rule(reply=reply, eos=False), chat_template_path=path)
    settings = {"renderer": renderer, "sglang_tool_format": tool_format}
    if renderer == "local":
        settings["sglang_tokenizer"] = str(tokenizer_folder(template))
    budget = len(engine.tokenizer.encode(reply))
    choice = await choice_of(engine, tools=TOOLS, max_tokens=budget, settings=settings)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == f"<think>{thought}</think>"
    assert not choice["message"]["tool_calls"]


@RENDERERS
@pytest.mark.parametrize("stop", ["Observation:", ["never", "Observation:"]])
async def test_a_matched_stop_string_leaves_the_text_and_not_the_ids(renderer, stop):
    """W17."""
    engine = saying("Thinking aloud. Observation: made up")
    choice = await choice_of(engine, stop=stop, settings={"renderer": renderer})
    assert choice["message"]["content"] == "Thinking aloud. "
    assert choice["finish_reason"] == "stop"
    assert choice["matched_stop"] == "Observation:"
    sampled = engine.samples[-1].token_ids
    assert choice["message"]["generation_token_ids"] == sampled
    assert engine.tokenizer.decode(sampled).endswith("Observation:")


@RENDERERS
async def test_an_untrimmed_stop_string_stays_in_the_text_and_the_end_token_does_not(renderer):
    engine = saying("Aloud. Observation: made up")
    settings = {"renderer": renderer}
    trimmed = await choice_of(engine, stop=["Observation:"], no_stop_trim=True, settings=settings)
    ended = await choice_of(engine, no_stop_trim=True, settings=settings)
    shown = await choice_of(engine, no_stop_trim=True, skip_special_tokens=False, settings=settings)
    assert trimmed["message"]["content"] == "Aloud. Observation:"
    assert ended["message"]["content"] == "Aloud. Observation: made up"
    assert shown["message"]["content"] == "Aloud. Observation: made up<|im_end|>"


@RENDERERS
async def test_a_stop_token_of_the_request_leaves_the_text_and_not_the_ids(renderer):
    engine = saying("one two three")
    (token,) = engine.tokenizer.encode(" three")
    choice = await choice_of(engine, stop_token_ids=[token], settings={"renderer": renderer})
    assert choice["message"]["content"] == "one two"
    assert choice["message"]["generation_token_ids"][-1] == token


@RENDERERS
async def test_a_stop_token_of_one_request_is_no_end_marker_of_the_next(renderer):
    engine = saying("one two three")
    (token,) = engine.tokenizer.encode(" three")
    async with served_by(engine, "generate", renderer) as client:
        await client.post("/v1/chat/completions", json={**PLAIN, "stop_token_ids": [token]})
        response = await client.post("/v1/chat/completions", json=PLAIN)
    assert response.json()["choices"][0]["message"]["content"] == "one two three"


@PATHS
async def test_the_reasoning_effort_is_an_argument_of_the_template(path):
    template = "{{ reasoning_effort }}: {% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"
    engine = saying("x")
    effort = (
        {"reasoning_effort": "high"} if path.endswith("completions") else {"reasoning": {"effort": "high"}}
    )
    settings = {"sglang_chat_template": template, "chat_template_kwargs": {"reasoning_effort": "low"}}
    async with served_by(engine, sglang_chat_template=template) as client:
        assert (await client.post(path, json=body_for(path, **effort))).status_code == 200
    async with served_by(engine, **settings) as client:
        assert (await client.post(path, json=body_for(path))).status_code == 200
    shown = [engine.tokenizer.decode(body["input_ids"]) for body in generate_bodies(engine)]
    assert shown == ["high: say plain<|im_end|>", "low: say plain<|im_end|>"]


BROKEN_CALLS = {
    "no JSON": ('<tool_call>\n{"name": "get_weather", \n</tool_call>', "invalid_json"),
    "no name": ('<tool_call>\n{"arguments": {"city": "Paris"}}\n</tool_call>', "missing_name"),
    "a list": ("<tool_call>\n[1]\n</tool_call>", "not_an_object"),
    "arguments that are none": (
        '<tool_call>\n{"name": "get_weather", "arguments": 3}\n</tool_call>',
        "invalid_arguments",
    ),
}


@PATHS
@pytest.mark.parametrize("case", BROKEN_CALLS)
async def test_a_call_that_cannot_be_read_stays_in_the_text_and_is_reported(case, path):
    """W43, W44: it vanished, or was a 500."""
    text, status = BROKEN_CALLS[case]
    engine = saying(f"Let me see.\n{text}")
    tools = TOOLS if path.endswith("completions") else [{"type": "function", **FUNCTION, "strict": True}]
    response = await post(engine, body_for(path, tools=tools), path)
    assert response.status_code == 200
    answer = response.json()
    if path.endswith("completions"):
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == f"Let me see.\n{text}"
        assert not choice["message"]["tool_calls"]
        field = choice["sglang"]
    else:
        assert answer["output"][0]["content"][0]["text"] == f"Let me see.\n{text}"
        field = answer["sglang"]
    assert [attempt["status"] for attempt in field["tool_call_report"]] == [status]
    assert field["tool_call_report"][0]["raw"] in text
    assert field["history"] == "new"


async def test_a_good_call_behind_a_broken_one_is_made_and_the_broken_one_stays():
    broken = BROKEN_CALLS["no JSON"][0]
    choice = await choice_of(saying(f"{broken}\n{CALL}"), tools=TOOLS)
    assert choice["finish_reason"] == "tool_calls"
    assert len(choice["message"]["tool_calls"]) == 1
    assert choice["message"]["content"].strip() == broken
    report = choice["sglang"]["tool_call_report"]
    assert [attempt["status"] for attempt in report] == ["invalid_json", "ok"]
    assert report[1]["call_id"] == choice["message"]["tool_calls"][0]["id"]


async def test_a_call_that_the_budget_cut_off_is_not_made_although_its_json_is_whole():
    engine = saying(CALL)
    budget = len(engine.tokenizer.encode(CALL.removesuffix("</tool_call>")))
    choice = await choice_of(engine, tools=TOOLS, max_tokens=budget)
    assert choice["finish_reason"] == "length"
    assert not choice["message"]["tool_calls"]
    assert choice["message"]["content"] == CALL.removesuffix("</tool_call>")
    assert [attempt["status"] for attempt in choice["sglang"]["tool_call_report"]] == ["unclosed_block"]


async def test_two_calls_in_one_block_are_two_calls():
    """W43: both disappeared."""
    both = '<tool_call>\n{"name": "get_weather"}{"name": "get_weather", "arguments": {"city": "x"}}\n</tool_call>'
    choice = await choice_of(saying(both), tools=TOOLS)
    arguments = [json.loads(call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    assert arguments == [{}, {"city": "x"}]


async def test_a_call_of_no_such_tool_reaches_the_agent_and_is_reported():
    choice = await choice_of(saying(CALL.replace("get_weather", "nope")), tools=TOOLS)
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "nope"
    assert [attempt["status"] for attempt in choice["sglang"]["tool_call_report"]] == ["unknown_tool"]


@pytest.mark.parametrize(
    "written",
    [
        '{"arguments": {"city": "Paris"}, "name": "get_weather"}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}',
        '{"name":"get_weather","arguments":{"city":"Paris"}}',
    ],
)
async def test_arguments_are_read_as_json_however_the_call_is_written(written):
    """W45: they were cut out by a pattern."""
    choice = await choice_of(saying(f"<tool_call>\n{written}\n</tool_call>"), tools=TOOLS)
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}


async def test_a_closing_tag_inside_an_argument_is_part_of_the_argument():
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "</tool_call>"}}\n</tool_call>'
    choice = await choice_of(saying(call), tools=TOOLS)
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"city": "</tool_call>"}
    assert not choice["message"]["content"]


async def test_qwen3_coder_markup_is_typed_by_the_tools():
    markup = (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    )
    choice = await choice_of(saying(markup), tools=TOOLS, settings={"sglang_tool_format": "qwen3_coder"})
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "days": 3}


async def test_without_tools_markup_is_text():
    choice = await choice_of(saying(CALL))
    assert choice["message"]["content"] == CALL
    assert not choice["message"]["tool_calls"]
    assert "tool_call_report" not in choice["sglang"]


@RENDERERS
async def test_the_engines_own_parsers_can_do_it(renderer):
    engine = saying(THINKING_CALL)
    settings = {"renderer": renderer, "sglang_tool_format": "server"}
    choice = await choice_of(engine, tools=TOOLS, settings=settings)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "<think>\nneed\n</think>"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"
    asked = [request.path for request in engine.requests]
    assert {"/server_info", "/separate_reasoning", "/parse_function_call"} <= set(asked)


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_text_that_the_engines_parser_would_drop_stays(version):
    """SGLang 0.5.23 drops markup in which it finds no call."""
    broken = BROKEN_CALLS["no JSON"][0]
    engine = saying(f"Let me see.\n{broken}", version=version)
    choice = await choice_of(engine, tools=TOOLS, settings={"sglang_tool_format": "server"})
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == f"Let me see.\n{broken}"


@pytest.mark.parametrize("transport", ["chat", "generate"])
async def test_an_id_that_no_tokenizer_has_is_refused_where_no_vocabulary_is_known(transport):
    engine = engine_with(Rule(reply="hi", misbehave=Misbehaviour(sampled_id=2**33)))
    folder = str(tokenizer_folder())
    async with served_by(engine, transport, "local", sglang_tokenizer=folder) as client:
        answer = await Agent(client, engine).ask("hi")
    assert answer.status == 500
    assert answer.body["error"]["code"] == "upstream_contract"


async def test_an_id_beyond_the_models_vocabulary_never_reaches_the_engine():
    """SGLang does not check ids; one too large breaks it for everybody."""
    folder = tokenizer_folder(vocabulary=900)
    engine = saying("Hello there!")
    response = await post(engine, PLAIN, sglang_tokenizer=str(folder))
    assert response.status_code == 500
    assert "vocabulary has 900" in response.json()["error"]["message"]
    assert "sglang_tokenizer" in response.json()["error"]["message"]
    assert generate_bodies(engine) == []


async def test_an_id_beyond_it_is_not_kept_for_the_next_prompt_on_chat_either():
    folder = tokenizer_folder(vocabulary=900)
    engine = saying("Hello there!")
    response = await post(
        engine, PLAIN, transport="chat", sglang_splice_history=True, sglang_tokenizer=str(folder)
    )
    assert response.status_code == 500
    assert "vocabulary has 900" in response.json()["error"]["message"]


@pytest.mark.parametrize("transport", ["generate", "chat"])
@pytest.mark.parametrize("difference", ["merges", "added token"])
async def test_another_tokenizer_than_the_engines_is_found_before_the_first_turn(
    transport, difference, tmp_path
):
    engine = saying("Hello there!", tokenizer_folder=_other_tokenizer(tmp_path, difference))
    response = await post(engine, PLAIN, transport=transport)
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert "sglang_tokenizer" in message
    assert "sglang_renderer: server" in message
    assert engine.samples == []


def _other_tokenizer(folder: Path, difference: str) -> Path:
    """The engine's tokenizer without its later merges, or without one of its added tokens."""
    source = json.loads((tokenizer_folder() / "tokenizer.json").read_text())
    if difference == "merges":
        source["model"]["merges"] = source["model"]["merges"][:100]
    else:
        source["added_tokens"] = source["added_tokens"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(source))
    (folder / "tokenizer_config.json").write_text((tokenizer_folder() / "tokenizer_config.json").read_text())
    return folder


async def test_an_engine_that_cannot_be_asked_for_its_tokenizer_is_used_with_a_warning(caplog):
    engine = saying(
        "Hello there!",
        misbehave=(Misbehaviour(path="/tokenize", status=404, body={"error": "no such path"}),),
    )
    async with served_by(engine) as client:
        for _ in range(3):
            assert (await client.post("/v1/chat/completions", json=PLAIN)).status_code == 200
    warnings = [record.getMessage() for record in caplog.records if "cannot be compared" in record.message]
    assert len(warnings) == 1
    assert [request.path for request in engine.requests].count("/tokenize") == 1


async def test_the_tokenizer_is_compared_once_per_engine():
    engine = saying("Hello there!")
    async with served_by(engine) as client:
        for _ in range(3):
            await client.post("/v1/chat/completions", json=PLAIN)
    assert [request.path for request in engine.requests].count("/tokenize") == 1


async def test_the_served_name_may_differ_from_the_tokenizers():
    """W28."""
    engine = saying("Hello there!")
    response = await post(engine, PLAIN, model="served-name")
    assert response.json()["model"] == "served-name"
    assert [request.body["model"] for request in engine.requests if request.path == "/tokenize"] == [
        "served-name"
    ]


IMAGE = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}


@RENDERERS
@pytest.mark.parametrize("part", [IMAGE, AUDIO], ids=["image", "audio"])
async def test_what_is_no_text_is_a_400_that_names_its_place(renderer, part):
    """W26."""
    engine = saying("Hello there!")
    messages = [system("x"), user([{"type": "text", "text": "look"}, part])]
    response = await post(engine, {"messages": messages}, renderer=renderer)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "messages[1].content[1]"
    assert error["code"] == "unsupported_content_part"
    assert engine.samples == []


@RENDERERS
async def test_an_image_over_the_responses_api_is_a_400_too(renderer):
    engine = saying("Hello there!")
    content = [{"type": "input_text", "text": "look"}, {"type": "input_image", "image_url": "http://x/y.png"}]
    body = {"input": [{"role": "user", "content": content}]}
    response = await post(engine, body, "/v1/responses", renderer=renderer)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[1]"


async def test_audio_of_the_metadata_is_a_400_too(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    engine = saying("Hello there!")
    body = {**PLAIN, "metadata": {"audio_path": str(tmp_path / "a.wav")}}
    response = await post(engine, body, audio_root=str(tmp_path))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unsupported_content_part"


RESERVED = ("add_generation_prompt", "tools", "chat_template", "tokenize", "messages", "return_dict")


@pytest.mark.parametrize(
    ("transport", "renderer"),
    [("generate", "local"), ("generate", "server"), ("chat", "local"), ("chat", "server")],
)
@pytest.mark.parametrize("name", RESERVED)
async def test_template_arguments_that_are_not_the_callers_are_a_400(name, transport, renderer):
    """W42: they were a TypeError, or silently changed the prompt."""
    engine = saying("Hello there!")
    async with served_by(engine, transport, renderer) as client:
        own = await client.post("/v1/chat/completions", json={**PLAIN, "chat_template_kwargs": {name: True}})
        metadata = {"chat_template_kwargs": json.dumps({name: None})}
        of_metadata = await client.post("/v1/chat/completions", json={**PLAIN, "metadata": metadata})
    for response in (own, of_metadata):
        assert response.status_code == 400
        assert response.json()["error"]["param"] == f"chat_template_kwargs.{name}"
    assert engine.samples == []


@pytest.mark.parametrize("value", ["", "{", "[]", "3"])
async def test_template_arguments_of_the_metadata_that_are_no_object_are_a_400(value):
    response = await post(saying("x"), {**PLAIN, "metadata": {"chat_template_kwargs": value}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "metadata.chat_template_kwargs"


async def test_a_template_argument_of_a_request_does_not_stay_for_the_next():
    engine = saying("Hello there!")
    async with served_by(engine, chat_template_kwargs={"a": {"b": 1}}) as client:
        changed = {"metadata": {"chat_template_kwargs": '{"enable_thinking": false}'}}
        await client.post("/v1/chat/completions", json={**PLAIN, **changed})
        await client.post("/v1/chat/completions", json=PLAIN)
    first, second = (engine.tokenizer.decode(body["input_ids"]) for body in generate_bodies(engine))
    assert first == f"{second}<think>\n\n</think>\n\n"


@pytest.mark.parametrize("with_ids", [True, False])
async def test_several_answers_are_a_400(with_ids):
    engine = saying("Hello there!")
    response = await post(engine, {**PLAIN, "n": 2}, return_token_id_information=with_ids)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
    assert engine.samples == []


async def test_a_conversation_that_the_template_rejects_is_a_400_with_its_words():
    template = "{{ raise_exception('No user query found.') if messages|length > 2 }}{{ messages[0].content }}"
    engine = saying("x")
    settings = {"sglang_tokenizer": str(tokenizer_folder(template)), "sglang_splice_history": False}
    response = await post(engine, {"messages": [user("a"), user("b"), user("c")]}, **settings)
    assert response.status_code == 400
    assert "No user query found." in response.json()["error"]["message"]
    assert response.json()["error"]["param"] == "messages"


async def test_the_inline_template_is_used_and_the_path_is_never_opened(tmp_path):
    engine = saying("Hello there!")
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|im_end|>\n{% endfor %}[assistant] "
    settings = {
        "sglang_chat_template": template,
        "sglang_chat_template_path": str(tmp_path / "does not exist.jinja"),
    }
    choice = await choice_of(engine, settings=settings)
    shown = engine.tokenizer.decode(choice["message"]["prompt_token_ids"])
    assert shown == "[user] say plain<|im_end|>\n[assistant] "


async def test_the_template_file_is_used_in_place_of_the_tokenizers(tmp_path):
    engine = saying("Hello there!")
    path = tmp_path / "t.jinja"
    path.write_text("{% for m in messages %}«{{ m.content }}»<|im_end|>\n{% endfor %}»", encoding="utf-8")
    choice = await choice_of(engine, settings={"sglang_chat_template_path": str(path)})
    assert engine.tokenizer.decode(choice["message"]["prompt_token_ids"]) == "«say plain»<|im_end|>\n»"


async def test_tokens_of_answered_turns_are_counted():
    engine = saying("Hello there!")
    async with served_by(engine) as client:
        await client.post("/v1/chat/completions", json=PLAIN)
        metrics = (await client.get("/metrics")).text
    sample = engine.samples[-1]
    assert f'kind="prompt",worker="main"}} {float(len(sample.prompt_token_ids))}' in metrics
    assert f'kind="generated",worker="main"}} {float(len(sample.token_ids))}' in metrics


async def test_another_replica_serves_a_session_whose_own_is_down_and_its_ids_go_with_it():
    engine = saying("Hello there!")
    inner = httpx.ASGITransport(app=engine)
    down: set[str] = set()
    seen: list[str] = []

    async def route(request: httpx.Request) -> httpx.Response:
        if request.url.host in down:
            raise httpx.ConnectError("refused", request=request)
        seen.append(request.url.host)
        return await inner.handle_async_request(request)

    class Replicas(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            return await route(request)

    server = make_server(Replicas(), base_url=["http://one/v1", "http://two/v1"])
    async with agent_of(server) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        down.add(seen[0])
        second = await agent.ask("b")
    assert second.history == ("spliced", "matched")
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert len(set(seen)) == 2


@pytest.mark.parametrize("answer", [{"text": 3}, {}, {"text": ["x"]}])
async def test_a_detokenize_answer_that_is_no_text_is_a_typed_500(answer):
    engine = saying(
        "Hello there!",
        misbehave=(Misbehaviour(path="/detokenize", status=200, body=answer),),
    )
    response = await post(engine, PLAIN, renderer="server")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "upstream_contract"
    assert "/detokenize" in response.json()["error"]["message"]


@pytest.mark.parametrize("tokens", [None, "12", [1, -1], [1, True], [1, 2.5]])
async def test_a_tokenize_answer_that_holds_no_ids_is_a_typed_500(tokens):
    wrong = Misbehaviour(path="/tokenize", replace={"tokens": tokens})
    response = await post(saying("Hello there!", misbehave=(wrong,)), PLAIN, renderer="server")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "upstream_contract"
    assert "/tokenize" in response.json()["error"]["message"]


async def test_a_failing_tokenizer_of_the_engine_is_the_engines_failure_and_not_the_callers():
    wrong = Misbehaviour(path="/tokenize", status=500, body="Internal Server Error")
    response = await post(saying("Hello there!", misbehave=(wrong,)), PLAIN, renderer="server")
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "upstream_status"
