"""What the engine's chat endpoint answers; the captures test compares it with the real one where there is one."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from sglang_model.testing import Rule
from sglang_model.testing.tokenizer import builtin_tokenizer
from tests.support.engine_client import CALL, WEATHER, engine_client

NAMED = {"type": "function", "function": {"name": "other"}}
THINKING = "<think>\nshort\n</think>\n\nHello there!"
HELLO = (Rule(when="hello", reply=THINKING), Rule(when="weather", reply=f"</think>\n\n{CALL}"))


async def test_a_token_level_answer_holds_prompt_ids_sampled_ids_and_logprobs() -> None:
    async with engine_client(rules=HELLO) as client:
        choice = await client.choice("hello")
        sample = client.engine.samples[0]
    entries = choice["meta_info"]["output_token_logprobs"]
    assert choice["prompt_token_ids"] == sample.prompt_token_ids
    assert [entry[1] for entry in entries] == sample.token_ids
    assert [entry[0] for entry in entries] == sample.logprobs
    assert sample.token_ids[-1] == client.engine.tokenizer.eos_token_id
    assert choice["meta_info"]["completion_tokens"] == len(sample.token_ids)
    assert choice["meta_info"]["prompt_tokens"] == len(sample.prompt_token_ids)
    assert "output_ids" not in choice["meta_info"]
    assert [item["token"] for item in choice["logprobs"]["content"]] == [entry[2] for entry in entries]


async def test_0_5_12_drops_the_token_fields_and_the_input_ids_without_a_word() -> None:
    async with engine_client(rules=HELLO, version="0.5.12") as client:
        choice = await client.choice("hello", input_ids=["whatever"])
        sample = client.engine.samples[0]
    assert "prompt_token_ids" not in choice
    assert "meta_info" not in choice
    assert "hello" in client.engine.tokenizer.decode(sample.prompt_token_ids)


async def test_input_ids_are_the_prompt_and_are_echoed() -> None:
    async with engine_client(rules=HELLO) as client:
        ids = client.engine.tokenizer.encode("<|im_start|>user\nweather<|im_end|>\n<|im_start|>assistant\n")
        choice = await client.choice("ignored", input_ids=ids, tools=[WEATHER])
        assert client.engine.samples[0].prompt_token_ids == ids
    assert choice["prompt_token_ids"] == ids
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "get_weather"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"content": []}, "Messages cannot be empty."),
        ({"temperature": -1}, "temperature must be non-negative, got -1.0."),
        ({"max_tokens": -5}, "max_new_tokens must be at least 0, got -5."),
        ({"tool_choice": "required"}, "Tools cannot be empty if tool choice is set to required."),
        ({"tools": [WEATHER], "tool_choice": NAMED}, "Tool 'other' not found in tools list."),
        ({"tool_choice": NAMED}, "Tools cannot be empty if tool choice is set to a specific tool."),
        ({"model": "org:name"}, "LoRA adapter 'name' was requested"),
        ({"lora_path": ["name"]}, "LoRA adapter 'name' was requested"),
        ({"return_hidden_states": True}, "--enable-return-hidden-states"),
    ],
)
async def test_what_sglang_refuses_is_refused_in_its_words(fields: dict[str, object], message: str) -> None:
    async with engine_client() as client:
        response = await client.chat(**fields)
    assert response.status_code == 400
    assert response.json()["type"] == "BadRequestError"
    assert message in response.json()["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m"},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
        {"messages": [{"role": "user", "content": "x"}], "input_ids": ["a"]},
    ],
)
async def test_a_body_of_the_wrong_shape_is_a_bad_request(body: dict[str, object]) -> None:
    async with engine_client() as client:
        response = await client.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["type"] == "Bad Request"
    assert "1 validation error:" in response.json()["message"]


async def test_a_body_that_is_not_json_is_a_bad_request_and_a_list_is_a_fault() -> None:
    async with engine_client() as client:
        headers = {"content-type": "application/json"}
        broken = await client.http.post("/v1/chat/completions", content=b"{no", headers=headers)
        text = await client.http.post(
            "/v1/chat/completions", content=b"{}", headers={"content-type": "text/plain"}
        )
        listed = await client.http.post("/v1/chat/completions", json=[1])
    assert (broken.status_code, broken.json()["type"]) == (400, "Bad Request")
    assert "json_invalid" in broken.json()["message"]
    assert "Unsupported Media Type" in text.json()["message"]
    assert (listed.status_code, listed.text) == (500, "Internal Server Error")


@pytest.mark.parametrize(
    ("version", "content", "reasoning"),
    [("0.5.12", "Hello there!", "short\n"), ("0.5.13", "\n\nHello there!", "\nshort\n")],
)
async def test_only_0_5_12_strips_the_text(version: str, content: str, reasoning: str) -> None:
    async with engine_client(rules=HELLO, version=version) as client:
        message = await client.message("hello")
    assert message == {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": None,
    }


async def test_an_untagged_reply_is_reasoning_unless_thinking_is_off() -> None:
    async with engine_client(rules=(Rule(reply="plain"),)) as client:
        thinking = await client.message()
        direct = await client.message(chat_template_kwargs={"enable_thinking": False})
        raw = await client.message(separate_reasoning=False)
    assert (thinking["content"], thinking["reasoning_content"]) == ("", "plain")
    assert (direct["content"], direct["reasoning_content"]) == ("plain", None)
    assert (raw["content"], raw["reasoning_content"]) == ("plain", None)


@pytest.mark.parametrize(("version", "content"), [("0.5.12", None), ("0.5.13", ""), ("0.5.23", "")])
async def test_a_tool_call_is_parsed_and_rewrites_the_finish_reason(version: str, content: object) -> None:
    async with engine_client(rules=HELLO, version=version) as client:
        choice = await client.choice("weather", tools=[WEATHER])
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert call["id"].startswith("call_")
    assert choice["message"]["content"] == content
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", None)
    if version != "0.5.12":
        assert choice["meta_info"]["finish_reason"] == {"type": "tool_calls", "matched": None}


async def test_without_tools_the_markup_stays_in_the_content() -> None:
    async with engine_client(rules=HELLO) as client:
        choice = await client.choice("weather")
    assert choice["message"]["content"] == f"\n\n{CALL}"
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(("version", "indices"), [("0.5.13", [1, 1]), ("0.5.23", [0, 1])])
async def test_the_index_of_a_call_is_the_tools_place_or_the_calls(version: str, indices: list[int]) -> None:
    first = {"type": "function", "function": {"name": "first"}}
    rules = (Rule(reply=f"</think>{CALL}\n{CALL}"),)
    async with engine_client(rules=rules, version=version) as client:
        message = await client.message(tools=[first, WEATHER])
    assert [call["index"] for call in message["tool_calls"]] == indices


@pytest.mark.parametrize(
    ("version", "content", "calls", "finish"),
    [
        ("0.5.13", '<tool_call>\n{"name": \n</tool_call>', [], "tool_calls"),
        ("0.5.23", "", "absent", "stop"),
    ],
)
async def test_broken_markup_stays_or_vanishes(
    version: str, content: str, calls: object, finish: str
) -> None:
    rules = (Rule(reply='</think><tool_call>\n{"name": \n</tool_call>'),)
    async with engine_client(rules=rules, version=version) as client:
        choice = await client.choice(tools=[WEATHER])
    assert choice["message"]["content"] == content
    assert choice["message"].get("tool_calls", "absent") == calls
    assert choice["finish_reason"] == finish


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_a_tool_call_in_open_thinking_is_swallowed_before_0_5_23(version: str) -> None:
    rules = (Rule(reply=f"I think.\n{CALL}"),)
    async with engine_client(rules=rules, version=version) as client:
        message = await client.message(tools=[WEATHER])
    if version == "0.5.13":
        assert message["reasoning_content"] == f"I think.\n{CALL}"
        assert message["tool_calls"] is None
    else:
        assert message["reasoning_content"] == "I think.\n"
        assert len(message["tool_calls"]) == 1


async def test_a_call_of_a_tool_that_was_not_offered_is_dropped() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    rules = (Rule(reply=f'</think><tool_call>\n{{"name": "zz", "arguments": {{}}}}\n</tool_call>\n{CALL}'),)
    async with engine_client(rules=rules) as client:
        both = await client.message(tools=[WEATHER])
        neither = await client.message(tools=[other])
    assert [call["function"]["name"] for call in both["tool_calls"]] == ["get_weather"]
    assert neither["tool_calls"] == []


async def test_the_hermes_parser_needs_no_newlines_and_gives_up_at_a_broken_block() -> None:
    call = '<tool_call>{"name": "get_weather", "arguments": {}}</tool_call>'
    rules = (
        Rule(when="good", reply=f"</think>{call}"),
        Rule(when="bad", reply=f"</think>{call}<tool_call>{{</tool_call>"),
    )
    async with engine_client(rules=rules, tool_call_parser="hermes") as client:
        good = await client.message("good", tools=[WEATHER])
        bad = await client.message("bad", tools=[WEATHER])
    assert len(good["tool_calls"]) == 1
    assert bad["tool_calls"] == []
    assert bad["content"] == f"{call}<tool_call>{{</tool_call>"


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_return_token_ids_gives_both_id_lists_on_0_5_23_only(version: str) -> None:
    async with engine_client(rules=HELLO, version=version) as client:
        fields = {"logprobs": False, "return_meta_info": False, "return_prompt_token_ids": False}
        response = await client.chat(
            **fields, return_token_ids=True, return_input_ids_in_sglext=True, return_output_ids_in_sglext=True
        )
        sample = client.engine.samples[0]
    choice = response.json()["choices"][0]
    if version == "0.5.13":
        assert "response_token_ids" not in choice
        assert "sglext" not in response.json()
    else:
        assert choice["prompt_token_ids"] == sample.prompt_token_ids
        assert choice["response_token_ids"] == sample.token_ids
        assert response.json()["sglext"] == {
            "input_ids": sample.prompt_token_ids,
            "output_ids": [sample.token_ids],
        }


async def test_n_choices_each_carry_the_prompt_which_usage_counts_once() -> None:
    async with engine_client(rules=HELLO) as client:
        body = (await client.chat(n=2)).json()
    lengths = {len(choice["prompt_token_ids"]) for choice in body["choices"]}
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert lengths == {body["usage"]["prompt_tokens"]}
    assert body["usage"]["completion_tokens"] == sum(
        choice["meta_info"]["completion_tokens"] for choice in body["choices"]
    )


async def test_the_clients_rid_becomes_the_id() -> None:
    async with engine_client(rules=HELLO) as client:
        body = (await client.chat(rid="mine")).json()
    assert (body["id"], body["choices"][0]["meta_info"]["id"]) == ("mine", "mine")


async def test_streaming_with_token_fields_is_refused_as_sglang_does_and_otherwise_by_the_engine() -> None:
    async with engine_client() as client:
        with_fields = await client.chat(stream=True)
        without = await client.chat(stream=True, return_meta_info=False, return_prompt_token_ids=False)
    assert "return_prompt_token_ids is not supported with streaming" in with_fields.json()["message"]
    assert (without.status_code, "does not stream" in without.json()["message"]) == (400, True)


async def test_chat_fills_unset_sampling_fields_from_the_generation_config_and_generate_does_not() -> None:
    async with engine_client(reasoning_parser=None) as client:
        ids = client.engine.tokenizer.encode("tell me something")
        await client.chat(input_ids=ids)
        await client.generate(input_ids=ids)
        await client.chat(input_ids=ids, temperature=1.0, top_p=1.0, top_k=-1)
        defaulted, native, explicit = (sample.token_ids for sample in client.engine.samples)
    assert native == explicit
    assert defaulted != native


async def test_top_logprobs_begin_with_the_sampled_token() -> None:
    async with engine_client(rules=HELLO) as client:
        choice = await client.choice(top_logprobs=2)
    for item, top in zip(
        choice["logprobs"]["content"], choice["meta_info"]["output_top_logprobs"], strict=True
    ):
        assert item["top_logprobs"][0]["token"] == item["token"]
        assert len(item["top_logprobs"]) == len(top) == 2


async def test_the_model_name_is_echoed_and_never_checked() -> None:
    async with engine_client(rules=HELLO) as client:
        response: httpx.Response = await client.chat(model="any name")
    assert response.json()["model"] == "any name"


async def test_odd_values_of_n_and_rid_are_answered_as_sglang_does() -> None:
    async with engine_client(rules=HELLO) as client:
        none = await client.chat(n=0)
        negative = (await client.chat(n=-1)).json()
        rids = await client.chat(rid=["a"])
    assert (none.status_code, none.json()["type"]) == (400, "BadRequest")
    assert none.json()["message"] == "range() arg 3 must not be zero"
    assert (len(negative["choices"]), negative["usage"]["prompt_tokens"]) == (1, 0)
    assert (rids.status_code, rids.json()["type"]) == (500, "InternalServerError")


async def test_reasoning_effort_reaches_the_template_and_none_switches_thinking_off(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ reasoning_effort }} {{ enable_thinking }}")
    async with engine_client(rules=(Rule(reply="plain"),), chat_template_path=file) as client:
        low = await client.choice(reasoning_effort="low")
        off = await client.choice(reasoning_effort="none")
        prompts = [client.engine.tokenizer.decode(s.prompt_token_ids) for s in client.engine.samples]
    assert prompts == ["low ", "none False"]
    assert low["message"]["reasoning_content"] == "plain"
    assert off["message"]["content"] == "plain"


async def test_the_continued_text_tells_whether_thinking_is_open() -> None:
    rules = (Rule(reply="more</think>done"),)
    async with engine_client(rules=rules) as client:
        said = {}
        for start in ("<think>so", "<think>so</think>"):
            history = [{"role": "user", "content": "q"}, {"role": "assistant", "content": start}]
            said[start] = await client.message(history, continue_final_message=True)
    assert said["<think>so"]["reasoning_content"] == "more"
    assert said["<think>so</think>"] == {
        "role": "assistant",
        "content": "more</think>done",
        "reasoning_content": None,
        "tool_calls": None,
    }


async def test_repeated_opening_tags_are_all_dropped() -> None:
    async with engine_client(rules=(Rule(reply="<think><think>a</think>b"),)) as client:
        message = await client.message()
    assert (message["reasoning_content"], message["content"]) == ("a", "b")


async def test_a_block_with_several_calls_and_junk_gives_the_calls() -> None:
    block = '[{"name": "get_weather", "parameters": {"city": "é"}}, 5, {"name": "get_weather"}]'
    rules = (Rule(reply=f"</think><tool_call>\n{block}\n</tool_call>"),)
    async with engine_client(rules=rules) as client:
        message = await client.message(tools=[WEATHER])
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == ['{"city": "é"}', "{}"]


@pytest.mark.parametrize(("version", "octets"), [("0.5.13", [239, 191, 189]), ("0.5.23", [195])])
async def test_the_bytes_of_half_a_character_are_true_on_0_5_23_only(version: str, octets: list[int]) -> None:
    half = builtin_tokenizer().encode_bytewise("é")[0]
    async with engine_client(rules=(Rule(ids=(half,)),), version=version) as client:
        item = (await client.choice())["logprobs"]["content"][0]
    assert item["bytes"] == octets
    assert item["token"] == "\N{REPLACEMENT CHARACTER}"


async def test_stop_strings_work_on_chat_as_on_generate() -> None:
    async with engine_client(rules=HELLO, reasoning_parser=None) as client:
        one = await client.choice(stop="there", skip_special_tokens=False)
        many = await client.choice(stop=["zz", "there"])
    for choice in (one, many):
        assert choice["message"]["content"] == "<think>\nshort\n</think>\n\nHello "
        assert choice["matched_stop"] == "there"


async def test_hidden_states_are_refused_in_the_versions_words() -> None:
    async with engine_client(version="0.5.23") as client:
        response = await client.chat(return_hidden_states=True)
    assert "--return-hidden-states-mode last" in response.json()["message"]


async def test_without_parsers_the_text_is_the_content() -> None:
    async with engine_client(rules=HELLO, tool_call_parser=None, reasoning_parser=None) as client:
        message = await client.message("weather", tools=[WEATHER])
    assert message["content"] == f"</think>\n\n{CALL}"
    assert message["tool_calls"] is None


async def test_tools_make_special_tokens_visible() -> None:
    rules = (Rule(reply="a<|im_start|>b"),)
    async with engine_client(rules=rules, reasoning_parser=None) as client:
        assert (await client.message())["content"] == "ab"
        assert (await client.message(tools=[WEATHER]))["content"] == "a<|im_start|>b"
