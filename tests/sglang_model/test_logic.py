"""The 15 cases of the pull request's extractor, and what it let pass."""

from __future__ import annotations

import math

import pytest

from nemo_gym.errors import UpstreamContractError
from sglang_model._logic import extract_generated_tokens_and_logprobs, unsupported_sampling_params

ENTRIES = [[-0.5, 11, "a"], [-1.5, 12, None]]


def answer(entries: object, **meta: object) -> dict[str, object]:
    return {"meta_info": {"output_token_logprobs": entries, **meta}}


@pytest.mark.parametrize("kind", [list, tuple])
def test_entries_of_logprob_id_text_give_ids_and_logprobs(kind):
    assert extract_generated_tokens_and_logprobs(answer([kind(entry) for entry in ENTRIES])) == (
        [11, 12],
        [-0.5, -1.5],
    )


@pytest.mark.parametrize("key", ["token_id", "id"])
def test_mapping_entries_give_ids_under_either_key(key):
    entries = [{key: 11, "logprob": -0.5}, {key: 12, "logprob": -1.5}]
    assert extract_generated_tokens_and_logprobs(answer(entries)) == ([11, 12], [-0.5, -1.5])


@pytest.mark.parametrize("in_meta", [True, False])
def test_split_value_and_index_arrays_are_read_from_either_place(in_meta):
    arrays = {"output_token_logprobs_val": [-0.5, -1.5], "output_token_logprobs_idx": [11, 12]}
    result = {"meta_info": arrays} if in_meta else {"meta_info": {}, **arrays}
    assert extract_generated_tokens_and_logprobs(result) == ([11, 12], [-0.5, -1.5])


def test_values_without_indices_take_the_ids_of_output_ids():
    result = {"meta_info": {"output_token_logprobs_val": [-0.5]}, "output_ids": [11]}
    assert extract_generated_tokens_and_logprobs(result) == ([11], [-0.5])


@pytest.mark.parametrize(
    "result",
    [
        {"meta_info": {"output_token_logprobs": []}, "output_ids": []},
        {"meta_info": {"output_token_logprobs_val": []}},
    ],
)
def test_present_but_empty_arrays_are_a_generation_of_zero_tokens(result):
    assert extract_generated_tokens_and_logprobs(result) == ([], [])


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"text": "x", "meta_info": {"id": "r"}}, r"\['meta_info', 'text'\].*\['id'\].*return_logprob"),
        (answer([[-0.5]]), r"output_token_logprobs\[0\]"),
        (answer([[None, 11]]), r"no logprob.*null"),
        (answer([{"id": None, "logprob": -0.5}]), "no token id"),
        (
            {"meta_info": {"output_token_logprobs_val": [-0.5], "output_token_logprobs_idx": [1, 2]}},
            "1 logprobs for 2",
        ),
        (
            {"meta_info": {"output_token_logprobs_val": [], "output_token_logprobs_idx": [1]}},
            "0 logprobs for 1",
        ),
        ({"meta_info": {"output_token_logprobs_val": [-0.5]}}, "1 logprobs for 0"),
    ],
)
def test_missing_or_malformed_training_data_is_refused(result, words):
    with pytest.raises(RuntimeError, match=words):
        extract_generated_tokens_and_logprobs(result)


@pytest.mark.parametrize(
    "result",
    [
        {**answer(ENTRIES), "output_ids": [11, 13]},
        answer(ENTRIES, output_ids=[11]),
        {**answer([]), "output_ids": [11]},
        {**answer(ENTRIES), "response_token_ids": [11, 12, 13]},
    ],
)
def test_ids_that_differ_from_a_second_copy_are_refused_without_printing_them(result):
    with pytest.raises(RuntimeError, match=r"do not match output_ids.*position") as caught:
        extract_generated_tokens_and_logprobs(result)
    assert "[" not in str(caught.value)


@pytest.mark.parametrize(
    "entry",
    [
        [-0.5, True],
        [-0.5, 11.9],
        [-0.5, "12"],
        [-0.5, -1],
        [math.nan, 11],
        [-math.inf, 11],
        [True, 11],
        ["-0.5", 11],
    ],
)
def test_nothing_is_coerced_into_an_id_or_a_logprob(entry):
    with pytest.raises(UpstreamContractError):
        extract_generated_tokens_and_logprobs(answer([entry]))


@pytest.mark.parametrize(
    "result",
    [
        [{"meta_info": {}}],
        {"meta_info": []},
        {"meta_info": {"output_token_logprobs": {"0": 1}}},
        {"meta_info": {"output_token_logprobs_val": [-0.5], "output_token_logprobs_idx": 11}},
        answer(ENTRIES, completion_tokens="2"),
        answer(ENTRIES, completion_tokens=True),
        answer(ENTRIES, output_ids="11"),
    ],
)
def test_containers_of_the_wrong_kind_are_typed_errors(result):
    with pytest.raises(UpstreamContractError, match="expected"):
        extract_generated_tokens_and_logprobs(result)


def test_the_phantom_entry_of_an_empty_generation_is_not_a_token():
    result = {**answer([[-2.1, 151667, "<think>"]], completion_tokens=0), "output_ids": []}
    assert extract_generated_tokens_and_logprobs(result) == ([], [])


def test_only_the_first_completion_tokens_entries_count():
    assert extract_generated_tokens_and_logprobs(answer(ENTRIES, completion_tokens=1)) == ([11], [-0.5])


def test_fewer_entries_than_completion_tokens_are_refused():
    with pytest.raises(UpstreamContractError, match=r"completion_tokens=3 but only 2"):
        extract_generated_tokens_and_logprobs(answer(ENTRIES, completion_tokens=3))


def test_unsupported_parameters_are_named_in_order_and_only_when_set():
    body = {"user": None, "parallel_tool_calls": False, "temperature": 1.0, "web_search_options": {}}
    assert unsupported_sampling_params(body) == ["parallel_tool_calls", "web_search_options"]
