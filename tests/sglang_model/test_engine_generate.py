"""/generate, stopping, and the limits that both endpoints share."""

from __future__ import annotations

import pytest

from sglang_model.testing import Rule
from tests.support.engine_client import engine_client

PLAIN = (Rule(when="plain", reply="one two three"),)


async def test_an_answer_holds_text_ids_and_the_same_ids_with_logprobs() -> None:
    async with engine_client(rules=PLAIN) as client:
        item = (await client.generate("plain", return_prompt_token_ids=True)).json()
        sample = client.engine.samples[0]
    assert item["text"] == "one two three"
    assert item["output_ids"] == sample.token_ids
    assert item["meta_info"]["output_token_logprobs"] == [
        [logprob, token_id, None] for logprob, token_id in zip(sample.logprobs, sample.token_ids, strict=True)
    ]
    assert item["prompt_token_ids"] == sample.prompt_token_ids


async def test_text_in_logprobs_comes_only_when_asked_for() -> None:
    async with engine_client(rules=PLAIN) as client:
        item = (await client.generate("plain", return_text_in_logprobs=True)).json()
    texts = [entry[2] for entry in item["meta_info"]["output_token_logprobs"]]
    assert texts == ["one", " two", " three", "<|im_end|>"]


async def test_ids_win_over_text_and_unknown_top_level_fields_are_ignored() -> None:
    async with engine_client() as client:
        body = {"text": "plain", "input_ids": [300, 301], "nonsense": 1}
        response = await client.http.post("/generate", json=body)
        assert client.engine.samples[0].prompt_token_ids == [300, 301]
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"text": ["plain", "other"]}, 2),
        ({"input_ids": [[300, 301]]}, 1),
        ({"text": "plain", "sampling_params": {"n": 3}}, 3),
        ({"text": ["plain", "other"], "sampling_params": {"n": 2}}, 4),
    ],
)
async def test_a_batch_or_n_makes_a_list(fields: dict[str, object], count: int) -> None:
    async with engine_client(rules=PLAIN) as client:
        body = (await client.generate(**fields)).json()
    assert isinstance(body, list)
    assert len(body) == count


async def test_one_bad_prompt_refuses_the_batch() -> None:
    async with engine_client(context_length=32) as client:
        params = {"max_new_tokens": 1}
        response = await client.generate(["plain", "word " * 50], sampling_params=params)
    assert response.status_code == 400
    assert "longer than the model's context length (32 tokens)" in response.json()["error"]["message"]


async def test_max_new_tokens_defaults_to_128_and_null_means_what_fits() -> None:
    async with engine_client(rules=(Rule(reply="", eos=False),), context_length=400) as client:
        default = (await client.generate(input_ids=[300])).json()
        fits = (await client.generate(input_ids=[300], sampling_params={"max_new_tokens": None})).json()
    assert default["meta_info"]["completion_tokens"] == 128
    assert fits["meta_info"]["completion_tokens"] == 400 - 1 - 1 - 1


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
@pytest.mark.parametrize("params", [{"seed": 1}, {"max_new_tokens": "5"}, {"stop": 5}, {"n": None}])
async def test_a_bad_sampling_parameter_is_a_plain_fault_on_the_older_versions(
    version: str, params: dict[str, object]
) -> None:
    async with engine_client(version=version) as client:
        response = await client.generate("plain", sampling_params=params)
    assert (response.status_code, response.text) == (500, "Internal Server Error")
    assert response.headers["content-type"] == "text/plain; charset=utf-8"


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"seed": 1}, "unknown field `seed`, expected one of `max_new_tokens`, `stop`, "),
        ({"max_new_tokens": "5"}, 'invalid type: string "5", expected i64'),
        ({"temperature": "hot"}, 'invalid type: string "hot", expected f64'),
        ({"stop": 5}, "invalid type: integer `5`, expected a value or an array of values for StringOrList"),
        ({"stop_token_ids": ["a"]}, 'invalid type: string "a", expected i64'),
        ({"stop_token_ids": 5}, "invalid type: integer `5`, expected a sequence"),
        ({"ignore_eos": 1.5}, "invalid type: floating point `1.5`, expected a boolean"),
        ({"regex": True}, "invalid type: boolean `true`, expected a string"),
        ({"top_k": [1]}, "invalid type: sequence, expected i64"),
        ({"top_k": {}}, "invalid type: map, expected i64"),
        ({"logit_bias": 5}, "invalid type: integer `5`, expected a map"),
    ],
)
async def test_a_bad_sampling_parameter_is_a_400_with_a_string_error_on_0_5_23(
    params: dict[str, object], error: str
) -> None:
    async with engine_client(version="0.5.23") as client:
        response = await client.generate("plain", sampling_params=params)
    assert response.status_code == 400
    assert response.json()["error"].startswith(error)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
        ({"min_p": 2}, "min_p must be in [0, 1], got 2."),
        ({"top_k": 0}, "top_k must be -1 (disable) or at least 1, got 0."),
        ({"frequency_penalty": 3}, "frequency_penalty must be in [-2, 2], got 3."),
        ({"presence_penalty": -3}, "presence_penalty must be in [-2, 2], got -3."),
        ({"repetition_penalty": 0}, "repetition_penalty must be in (0, 2] (1.0 = no penalty), got 0."),
        ({"min_new_tokens": -1}, "min_new_tokens must be in [0, max_new_tokens], got -1."),
        ({"min_new_tokens": 200}, "min_new_tokens must be in [0, max_new_tokens(128)], got 200."),
        ({"logit_bias": {"99999999": 1}}, "logit_bias must has keys in [0, "),
        ({"logit_bias": {"a": 1}}, "invalid literal for int() with base 10: 'a'"),
        ({"stop_token_ids": ["a"]}, "invalid literal for int() with base 10: 'a'"),
        ({"temperature": -1}, "temperature must be non-negative, got -1."),
        ({"regex": "a", "json_schema": "{}"}, "Only one of regex, json_schema, or ebnf can be set."),
    ],
)
async def test_a_sampling_parameter_out_of_bounds_is_refused(params: dict[str, object], message: str) -> None:
    async with engine_client() as client:
        response = await client.generate("plain", sampling_params=params)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input_ids": []}, "input_ids cannot be empty."),
        ({"text": None}, "Either text, input_ids or input_embeds should be provided."),
        ({"session_params": {"id": "nope"}}, "Invalid request: session id nope does not exist"),
        ({"lora_path": "nope"}, "LoRA adapter 'nope' was requested, but LoRA is not enabled."),
        ({"return_hidden_states": True}, "The server is not configured to return the hidden states."),
        ({"logprob_start_len": 500}, "req.logprob_start_len=500 is higher than"),
        ({"stream": True}, "The embedded engine does not stream"),
    ],
)
async def test_what_sglang_refuses_is_refused(fields: dict[str, object], message: str) -> None:
    async with engine_client() as client:
        response = await client.generate(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(message)


@pytest.mark.parametrize("fields", [{"input_ids": "12"}, {"input_ids": [1.5]}, {"sampling_params": "x"}])
async def test_a_body_of_the_wrong_shape_is_a_bad_request(fields: dict[str, object]) -> None:
    async with engine_client() as client:
        response = await client.generate(**fields)
    assert (response.status_code, response.json()["type"]) == (400, "Bad Request")


async def test_a_body_that_is_not_json_is_a_bad_request() -> None:
    async with engine_client() as client:
        headers = {"content-type": "text/plain"}
        response = await client.http.post("/generate", content=b'{"text": "x"}', headers=headers)
        empty = await client.http.post("/generate", headers={"content-type": "application/json"})
    assert "dataclass_type" in response.json()["message"]
    assert "'missing'" in empty.json()["message"]


@pytest.mark.parametrize(
    ("params", "text", "ids", "matched"),
    [
        ({"stop": ["two"]}, "one ", 2, "two"),
        ({"stop": "e t"}, "on", 2, "e t"),
        ({"stop": ["two"], "no_stop_trim": True}, "one two", 2, "two"),
        ({"stop_regex": "t.o"}, "one two", 2, "t.o"),
        ({"stop": ["nowhere"]}, "one two three", 4, None),
    ],
)
async def test_a_stop_string_trims_the_text_and_never_the_ids(
    params: dict[str, object], text: str, ids: int, matched: str | None
) -> None:
    async with engine_client(rules=PLAIN) as client:
        item = (await client.generate("plain", sampling_params=params)).json()
        expected = matched or client.engine.tokenizer.eos_token_id
    assert item["text"] == text
    assert len(item["output_ids"]) == ids
    assert item["meta_info"]["finish_reason"] == {"type": "stop", "matched": expected}


async def test_a_stop_id_is_the_last_sampled_id_and_hidden_from_the_text() -> None:
    async with engine_client(rules=PLAIN) as client:
        two = client.engine.tokenizer.encode(" two")[0]
        cut = (await client.generate("plain", sampling_params={"stop_token_ids": [two]})).json()
        kept = (
            await client.generate("plain", sampling_params={"stop_token_ids": [two], "no_stop_trim": True})
        ).json()
    assert cut["output_ids"][-1] == two
    assert (cut["text"], kept["text"]) == ("one", "one two")
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": two}


async def test_special_tokens_and_the_eos_show_when_asked_for() -> None:
    params = {"skip_special_tokens": False, "no_stop_trim": True}
    async with engine_client(rules=PLAIN) as client:
        assert (await client.generate("plain", sampling_params=params)).json()[
            "text"
        ] == "one two three<|im_end|>"


async def test_ignored_eos_goes_on_to_the_budget() -> None:
    async with engine_client(rules=PLAIN) as client:
        params = {"ignore_eos": True, "max_new_tokens": 6}
        item = (await client.generate("plain", sampling_params=params)).json()
    assert item["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert client.engine.tokenizer.eos_token_id in item["output_ids"][:-1]


@pytest.mark.parametrize(
    ("version", "kind"), [("0.5.12", "length"), ("0.5.13", "length"), ("0.5.23", "stop")]
)
async def test_eos_on_the_last_allowed_token_is_length_before_0_5_23(version: str, kind: str) -> None:
    async with engine_client(rules=PLAIN, version=version) as client:
        item = (await client.generate("plain", sampling_params={"max_new_tokens": 4})).json()
    assert item["meta_info"]["finish_reason"]["type"] == kind
    assert item["output_ids"][-1] == client.engine.tokenizer.eos_token_id


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
async def test_without_room_there_is_a_phantom_entry_and_no_token(version: str) -> None:
    async with engine_client(rules=PLAIN, version=version) as client:
        item = (await client.generate("plain", sampling_params={"max_new_tokens": 0})).json()
    assert (item["text"], item["output_ids"]) == ("", [])
    assert item["meta_info"]["completion_tokens"] == 0
    assert len(item["meta_info"]["output_token_logprobs"]) == 1


CONTEXT = 64


@pytest.mark.parametrize(
    ("length", "new", "message"),
    [
        (CONTEXT - 7, None, None),
        (
            CONTEXT - 6,
            None,
            f"Input length ({CONTEXT - 6} tokens) exceeds the maximum allowed length (58 tokens).",
        ),
        (
            CONTEXT - 1,
            1,
            f"Input length ({CONTEXT - 1} tokens) exceeds the maximum allowed length (58 tokens).",
        ),
        (CONTEXT, 1, f"The input ({CONTEXT} tokens) is longer than the model's context length (64 tokens)."),
        (10, CONTEXT - 10, None),
        (10, CONTEXT - 9, "Requested token count exceeds the model's maximum context length of 64 tokens. "),
    ],
)
async def test_the_three_overflow_wordings_and_the_limit_at_context_minus_six(
    length: int, new: int | None, message: str | None
) -> None:
    async with engine_client(context_length=CONTEXT) as client:
        response = await client.generate(input_ids=[300] * length, sampling_params={"max_new_tokens": new})
        on_chat = await client.chat(input_ids=[300] * length, max_tokens=new)
    if message is None:
        assert (response.status_code, on_chat.status_code) == (200, 200)
    else:
        assert response.json()["error"]["message"].startswith(message)
        assert on_chat.json()["message"].startswith(message)
        assert on_chat.json()["type"] == "BadRequestError"


async def test_the_context_length_flag_bounds_max_tokens_on_chat() -> None:
    async with engine_client(context_length=CONTEXT, context_length_flag=True) as client:
        response = await client.chat(max_tokens=65)
        info = (await client.http.get("/server_info")).json()
    assert response.json()["message"] == (
        "max_completion_tokens is too large: 65.This model supports at most 64 completion tokens."
    )
    assert info["context_length"] == CONTEXT


async def test_auto_truncate_echoes_more_than_the_model_saw() -> None:
    rules = (Rule(reply="", eos=False),)
    async with engine_client(rules=rules, context_length=CONTEXT, allow_auto_truncate=True) as client:
        item = (await client.generate(input_ids=[*range(300, 360)], return_prompt_token_ids=True)).json()
        long = (await client.generate(input_ids=[300] * 100, return_prompt_token_ids=True)).json()
        seen = client.engine.samples[0].prompt_token_ids
    assert item["prompt_token_ids"] == [*range(300, 360)]
    assert seen == [*range(300, 358)]
    assert item["meta_info"]["prompt_tokens"] == 58
    # The room is counted from the echo, not from what the model saw.
    assert item["meta_info"]["finish_reason"] == {"type": "length", "length": CONTEXT - 60 - 2}
    assert (len(long["prompt_token_ids"]), long["meta_info"]["prompt_tokens"]) == (CONTEXT, 58)
    assert (long["output_ids"], long["meta_info"]["finish_reason"]) == ([], {"type": "length", "length": 0})


async def test_a_small_kv_pool_clamps_the_generation() -> None:
    rules = (Rule(reply="", eos=False),)
    async with engine_client(rules=rules, context_length=CONTEXT, max_total_num_tokens=32) as client:
        params = {"max_new_tokens": None}
        item = (await client.generate(input_ids=[300] * 10, sampling_params=params)).json()
    assert item["meta_info"]["completion_tokens"] == 32 - 1 - 10 - 1


async def test_cached_tokens_count_the_known_prefix() -> None:
    async with engine_client(rules=PLAIN) as client:
        first = (await client.generate(input_ids=[300, 301, 302, 303])).json()
        longer = (await client.generate(input_ids=[300, 301, 302, 303, *first["output_ids"], 304])).json()
    assert first["meta_info"]["cached_tokens_details"] is None
    assert longer["meta_info"]["cached_tokens"] == 4 + len(first["output_ids"])


async def test_named_ids_are_scored_at_every_position() -> None:
    async with engine_client(rules=PLAIN) as client:
        meta = (await client.generate("plain", token_ids_logprob=[5, 6])).json()["meta_info"]
    assert [[entry[1] for entry in position] for position in meta["output_token_ids_logprobs"]] == [
        [5, 6]
    ] * 4


async def test_0_5_23_reports_weight_versions() -> None:
    async with engine_client(rules=PLAIN, version="0.5.23", weight_version="w7") as client:
        meta = (await client.generate("plain")).json()["meta_info"]
        metadata = (await client.chat("plain")).json()["metadata"]
    span = [{"version": "w7", "start": 0, "end": 4}]
    assert meta["weight_versions"] == span
    assert metadata == {"weight_version": "w7", "weight_versions": span}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1."),
        (
            {"regex": "a", "structural_tag": "{}"},
            "Only one of json_schema, regex, ebnf, or structural_tag can be set.",
        ),
    ],
)
async def test_0_5_23_words_two_bounds_differently(params: dict[str, object], message: str) -> None:
    async with engine_client(version="0.5.23") as client:
        response = await client.generate("plain", sampling_params=params)
    assert response.json() == {"error": {"message": message}}


async def test_0_5_23_takes_the_parameters_it_gained() -> None:
    async with engine_client(rules=PLAIN, version="0.5.23") as client:
        assert (await client.generate("plain", sampling_params={"watermark": None})).status_code == 200


async def test_null_means_the_default_for_every_parameter_but_n_and_max_new_tokens() -> None:
    names = ("temperature", "top_p", "top_k", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "regex")
    async with engine_client(rules=PLAIN) as client:
        item = (await client.generate("plain", sampling_params=dict.fromkeys(names))).json()
    assert item["text"] == "one two three"


async def test_the_older_versions_take_any_truth_for_a_boolean() -> None:
    async with engine_client(rules=PLAIN) as client:
        params = {"ignore_eos": "yes", "max_new_tokens": 6}
        item = (await client.generate("plain", sampling_params=params)).json()
    assert item["meta_info"]["finish_reason"]["type"] == "length"


async def test_a_batch_takes_parameters_and_rids_for_each_prompt() -> None:
    async with engine_client(rules=PLAIN) as client:
        params = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
        each = (await client.generate(["plain", "plain"], rid=["a", "b"], sampling_params=params)).json()
        one = (await client.generate(["plain", "plain"], rid="c")).json()
        few = await client.generate(["plain", "plain"], rid=["a"])
        faulty = await client.generate(["plain", "plain"], sampling_params=[1, 2])
    assert [len(item["output_ids"]) for item in each] == [1, 2]
    assert [item["meta_info"]["id"] for item in each] == ["a", "b"]
    assert len({item["meta_info"]["id"] for item in one}) == 2
    assert few.status_code == 400
    assert faulty.status_code == 500


async def test_input_top_logprobs_begin_after_the_first_scored_id() -> None:
    async with engine_client(rules=PLAIN) as client:
        ids = [300, 301, 302]
        item = (await client.generate(input_ids=ids, logprob_start_len=1, top_logprobs_num=2)).json()
    assert [entry[1] for entry in item["meta_info"]["input_token_logprobs"]] == [301, 302]
    assert item["meta_info"]["input_top_logprobs"][0] is None
    assert len(item["meta_info"]["input_top_logprobs"][1]) == 2


async def test_the_last_prompt_token_is_never_cached() -> None:
    async with engine_client(rules=PLAIN) as client:
        for _ in range(2):
            item = (await client.generate(input_ids=[300, 301, 302])).json()
    assert item["meta_info"]["cached_tokens"] == 2
