from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_model.reasoning_split import (
    REASONING_TAGS,
    THINK,
    ReasoningSplit,
    ReasoningTags,
    split_reasoning,
    thinking_is_open,
)

each_pair = pytest.mark.parametrize("tags", REASONING_TAGS.values(), ids=REASONING_TAGS)


@pytest.mark.parametrize(
    ("text", "thinking_open", "reasoning", "content"),
    [
        # The prompt opened the thinking.
        ("a\n</think>\n\nb \n", True, "a\n", "\n\nb \n"),
        ("cut off", True, "cut off", ""),
        ("", True, "", ""),
        ("</think>b", True, "", "b"),
        ("<think>a</think>b", True, "a", "b"),
        ("<think><think>a</think>b", True, "<think>a", "b"),
        ("a<think>b</think>c</think>d", True, "a<think>b", "c</think>d"),
        ("a</think>b<think>c</think>d", True, "a", "b<think>c</think>d"),
        # It did not, and the model opens it itself.
        ("<think>\na\n</think>\n\nb", False, "\na\n", "\n\nb"),
        ("\n <think>a</think>b", False, "a", "b"),
        ("<think>cut off", False, "cut off", ""),
        ("<think></think>b", False, "", "b"),
        # It did not, and neither does the model.
        ("plain", False, None, "plain"),
        ("", False, None, ""),
        ("a</think>b", False, None, "a</think>b"),
        ("pre<think>a</think>b", False, None, "pre<think>a</think>b"),
        # Nobody knows what the prompt did.
        ("a</think>b", None, "a", "b"),
        ("plain", None, None, "plain"),
        ("<think>cut off", None, "cut off", ""),
    ],
)
def test_thinking_is_told_from_the_answer_by_the_prompt_and_the_first_closing_tag(
    text: str, thinking_open: bool | None, reasoning: str | None, content: str
) -> None:
    split = split_reasoning(text, thinking_open=thinking_open)
    assert (split.reasoning, split.content) == (reasoning, content)


@each_pair
def test_every_pair_of_tags_works_alike(tags: ReasoningTags) -> None:
    split = split_reasoning(f"{tags.opening}a{tags.closing}b", thinking_open=False, tags=tags)
    assert split == ReasoningSplit(tags.opening, "a", tags.closing, "b")
    assert split_reasoning(f"a{tags.closing}b", thinking_open=True, tags=tags).reasoning == "a"
    assert thinking_is_open(f"x{tags.opening}\n", tags)


PIECES = st.lists(st.sampled_from(["<think>", "</think>", " ", "\n", "a"]), max_size=12).map("".join)


@given(text=PIECES, thinking_open=st.none() | st.booleans())
def test_the_four_parts_joined_are_the_text(text: str, thinking_open: bool | None) -> None:
    split = split_reasoning(text, thinking_open=thinking_open)
    assert f"{split.opening}{split.reasoning or ''}{split.closing}{split.content}" == text
    assert split.opening.lstrip() in ("", THINK.opening)
    assert THINK.closing not in (split.reasoning or "")


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<|im_start|>assistant\n<think>", True),
        ("<|im_start|>assistant\n", False),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("<|im_start|>user\nWhat does <think> do?<|im_end|>\n<|im_start|>assistant\n", False),
        ("", False),
    ],
)
def test_only_the_end_of_the_prompt_opens_thinking(prompt: str, is_open: bool) -> None:
    assert thinking_is_open(prompt) is is_open


DATA = os.environ.get("SGLANG_GYM_TEST_DATA")
CAPTURES = sorted(Path(DATA, "sglang", "captures").glob("*/separate_reasoning.json")) if DATA else []


@pytest.mark.skipif(not CAPTURES, reason="SGLANG_GYM_TEST_DATA holds no captures")
def test_the_split_is_that_of_sglang() -> None:
    for path in CAPTURES:
        capture = json.loads(path.read_bytes())
        split = split_reasoning(capture["request"]["body"]["text"], thinking_open=False)
        answer = capture["response"]["body"]
        assert (split.reasoning, split.content) == (answer["reasoning_text"], answer["text"])
