"""A chat request's controls in `/generate`'s words: pure, name by name."""

from __future__ import annotations

import json

import pytest

from nemo_gym.errors import RequestError
from sglang_model.sampling_params import (
    BESIDE_THE_PARAMETERS,
    RENAMED,
    SAME_NAME,
    engine_fields,
    new_token_budget,
    sampling_params,
    unhonoured_fields,
)
from sglang_model.testing.sampling import SamplingParams, ServerFaultError, sampling_params_from_wire
from sglang_model.testing.versions import VERSIONS

VALUES: dict[str, object] = {
    "temperature": 0.0,
    "top_p": 0.5,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.0,
    "stop": [],
    "stop_token_ids": [],
    "stop_regex": "x",
    "ignore_eos": False,
    "no_stop_trim": False,
    "skip_special_tokens": True,
    "logit_bias": {},
    "regex": "x",
    "ebnf": "x",
    "json_schema": "{}",
    "structural_tag": "{}",
    "custom_params": {},
    "seed": 0,
    "min_tokens": 0,
}


def params_of(body: dict[str, object], *, prompt: int = 10, context: int = 100) -> dict[str, object]:
    return sampling_params(body, prompt_length=prompt, context_length=context)


def test_nothing_asked_is_two_parameters():
    assert params_of({}) == {"spaces_between_special_tokens": False, "max_new_tokens": 82}
    assert params_of({"max_tokens": 8}) == {"spaces_between_special_tokens": False, "max_new_tokens": 8}


def test_every_known_name_is_tried_here():
    assert {*SAME_NAME, *RENAMED} == VALUES.keys()


@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_only_looks_like_nothing_is_sent(name):
    """Zero, false and empty are values; only null is not."""
    sent = params_of({name: VALUES[name]})
    assert sent[RENAMED.get(name, name)] == VALUES[name]
    assert len(sent) == 3
    assert len(params_of({name: None})) == 2


@pytest.mark.parametrize("version", VERSIONS.values(), ids=lambda version: version.name)
@pytest.mark.parametrize("name", VALUES)
def test_every_name_that_is_sent_is_one_that_sglang_knows(name, version):
    """SGLang 0.5.12 and 0.5.13 answer a name that they do not know with a bare 500."""
    sent = params_of({name: VALUES[name]})
    assert isinstance(sampling_params_from_wire(sent, version), SamplingParams)
    with pytest.raises((ServerFaultError, ValueError)):
        sampling_params_from_wire({**sent, "max_tokens": 1}, version)


def test_what_has_no_name_there_is_not_sent():
    body = {
        "user": "x",
        "n": 1,
        "model": "m",
        "messages": [],
        "metadata": {},
        "no_such_field": 1,
        "logprobs": True,
    }
    assert len(params_of(body)) == 2


@pytest.mark.parametrize(
    ("body", "remaining", "budget"),
    [
        ({}, 100, 92),
        ({}, 9, 1),
        ({}, 8, 1),
        ({}, 1, 1),
        ({"max_tokens": 50}, 100, 50),
        ({"max_tokens": 100}, 100, 100),
        ({"max_tokens": 101}, 100, 100),
        ({"max_completion_tokens": 5, "max_tokens": 50}, 100, 5),
        ({"max_completion_tokens": 0, "max_tokens": 50}, 100, 0),
        ({"max_completion_tokens": None, "max_tokens": 50}, 100, 50),
        ({"max_completion_tokens": None, "max_tokens": None}, 100, 92),
        ({"max_tokens": 0}, 100, 0),
    ],
)
def test_a_budget_is_cut_to_the_window_and_zero_is_zero(body, remaining, budget):
    assert new_token_budget(body, remaining) == budget


@pytest.mark.parametrize("wrong", [-1, 1.0, "5", True, [5]])
@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_budget_that_is_none_is_named(name, wrong):
    with pytest.raises(RequestError, match="integer of at least 0") as caught:
        new_token_budget({name: wrong}, 100)
    assert caught.value.param == "max_tokens"


def test_a_schema_is_written_as_text_and_its_order_kept():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    text = params_of(body)["json_schema"]
    assert isinstance(text, str)
    assert list(json.loads(text)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    "wrong", ["json", 3, ["text"], {"type": None}, {"type": "json_schema", "json_schema": []}]
)
def test_a_format_that_is_none_is_named(wrong):
    with pytest.raises(RequestError) as caught:
        params_of({"response_format": wrong})
    assert caught.value.param == "response_format"


def test_what_stands_beside_the_parameters_is_taken_when_it_is_set():
    everything: dict[str, object] = dict.fromkeys(BESIDE_THE_PARAMETERS, 0)
    assert engine_fields({**everything, "temperature": 1}) == everything
    assert engine_fields(dict.fromkeys(BESIDE_THE_PARAMETERS)) == {}


def test_nothing_known_is_called_without_effect():
    body = {
        **VALUES,
        **dict.fromkeys(BESIDE_THE_PARAMETERS, 1),
        "input_ids": [1],
        "response_format": {"type": "text"},
    }
    ordinary = {
        "messages": [],
        "model": "m",
        "tools": [],
        "tool_choice": "auto",
        "max_tokens": 1,
        "metadata": {},
    }
    assert unhonoured_fields({**body, **ordinary}) == []


def test_what_has_no_effect_is_named_in_a_fixed_order():
    body = {
        "zebra": 1,
        "ape": 1,
        "top_logprobs": 3,
        "logprobs": True,
        "tool_choice": "required",
        "user": "x",
        "parallel_tool_calls": False,
    }
    assert unhonoured_fields(body) == [
        "user",
        "parallel_tool_calls",
        "tool_choice",
        "logprobs",
        "top_logprobs",
        "ape",
        "zebra",
    ]


@pytest.mark.parametrize("choice", ["auto", "none", None])
def test_a_choice_that_asks_for_no_call_is_honoured(choice):
    assert unhonoured_fields({"tool_choice": choice}) == []


def test_logprobs_that_are_switched_off_are_honoured():
    assert unhonoured_fields({"logprobs": False, "top_logprobs": 0}) == []
