"""How a turn ended, out of what the engine says and what was sampled."""

from __future__ import annotations

import pytest

from sglang_model.generation_end import EngineFinish, end_kind, stop_token_id
from sglang_model.splice_types import EndKind

EOS, OTHER = 9, 5

FINISHES: dict[str, tuple[dict[str, object], EngineFinish]] = {
    "generate, stop token": (
        {"meta_info": {"finish_reason": {"type": "stop", "matched": EOS}}},
        EngineFinish("stop", EOS),
    ),
    "generate, stop string": (
        {"meta_info": {"finish_reason": {"type": "stop", "matched": "x"}}},
        EngineFinish("stop", "x"),
    ),
    "generate, budget": (
        {"meta_info": {"finish_reason": {"type": "length", "length": 3}}},
        EngineFinish("length"),
    ),
    "chat, stop token": ({"finish_reason": "stop", "matched_stop": EOS}, EngineFinish("stop", EOS)),
    "chat, tool calls": (
        {
            "finish_reason": "tool_calls",
            "matched_stop": None,
            "meta_info": {"finish_reason": {"type": "tool_calls", "matched": None}},
        },
        EngineFinish("tool_calls"),
    ),
    "meta_info wins": (
        {"finish_reason": "stop", "meta_info": {"finish_reason": {"type": "length"}}},
        EngineFinish("length"),
    ),
    "a bare word": ({"meta_info": {"finish_reason": "length"}}, EngineFinish("length")),
    "nothing": ({}, EngineFinish("stop")),
    "null": ({"meta_info": {"finish_reason": None}}, EngineFinish("stop")),
    "a bool is no token": (
        {"meta_info": {"finish_reason": {"type": "stop", "matched": True}}},
        EngineFinish("stop"),
    ),
    "meta_info that is none": ({"meta_info": [], "finish_reason": "length"}, EngineFinish("length")),
}


@pytest.mark.parametrize("case", FINISHES)
def test_the_engines_word_is_read_wherever_it_stands(case):
    answer, finish = FINISHES[case]
    assert EngineFinish.of(answer) == finish


STOPS: dict[str, tuple[EngineFinish, list[int], set[int], bool, int | None]] = {
    "the matched token": (EngineFinish("stop", EOS), [1, EOS], set(), False, EOS),
    "the matched token of the request": (EngineFinish("stop", OTHER), [1, OTHER], {EOS}, True, OTHER),
    "a stop string": (EngineFinish("stop", "x"), [1, 2], {EOS}, True, None),
    "a stop string that a known stop spells": (EngineFinish("stop", "x"), [1, EOS], {EOS}, True, None),
    "the budget": (EngineFinish("length"), [1, 2], {EOS}, False, None),
    "the budget, behind the end token": (EngineFinish("length"), [1, EOS], {EOS}, False, EOS),
    "the budget, behind one that is not known": (EngineFinish("length"), [1, EOS], set(), False, None),
    "forgotten, and no stop strings": (EngineFinish("tool_calls"), [1, EOS], set(), False, EOS),
    "forgotten, and a known stop": (EngineFinish("tool_calls"), [1, EOS], {EOS}, True, EOS),
    "forgotten, and it may be a string": (EngineFinish("tool_calls"), [1, 2], {EOS}, True, None),
    "no word, and no stop strings": (EngineFinish("stop"), [1, 2], set(), False, 2),
    "no tokens": (EngineFinish("stop", EOS), [], {EOS}, False, None),
    "another token than the last": (EngineFinish("stop", EOS), [EOS, 2], set(), False, None),
}


@pytest.mark.parametrize("case", STOPS)
def test_the_token_that_ended_a_turn_is_found_or_there_is_none(case):
    finish, ids, known, strings, expected = STOPS[case]
    assert stop_token_id(finish, ids, known, stop_strings=strings) == expected


@pytest.mark.parametrize(
    ("finish", "token", "kind"),
    [
        ("stop", EOS, EndKind.STOP_TOKEN),
        ("length", EOS, EndKind.STOP_TOKEN),
        ("length", None, EndKind.LENGTH),
        ("stop", None, EndKind.STOP_STRING),
        ("tool_calls", None, EndKind.STOP_STRING),
    ],
)
def test_the_splice_is_told_what_ended_the_turn(finish, token, kind):
    assert end_kind(finish, token) is kind
