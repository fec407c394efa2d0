"""Reasoning spans: exactly what the pattern `<think>(.*?)</think>` finds, in one pass over the text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.reasoning import extract_reasoning_from_content, wrap_reasoning_in_think_tags

SLOW_TWIN = re.compile(r"<think>(.*?)</think>", re.DOTALL)

pieces = st.lists(st.sampled_from(["<think>", "</think>", "<think", "think>", "</", "\n", " ", "a", "é"]))


@given(pieces.map("".join))
def test_spans_and_rest_are_those_of_the_pattern(content: str) -> None:
    spans, rest = extract_reasoning_from_content(content)
    assert spans == SLOW_TWIN.findall(content)
    assert rest == SLOW_TWIN.sub("", content)


@given(st.lists(st.text(alphabet="ab \n", min_size=1)), st.text(alphabet="cd \n"))
def test_wrapping_undoes_the_extraction(texts: list[str], rest: str) -> None:
    assert extract_reasoning_from_content(wrap_reasoning_in_think_tags(texts) + rest) == (texts, rest)


@pytest.mark.parametrize("tag", ["<think>", "</think>"])
def test_tags_without_a_partner_are_content_however_many_there_are(tag: str) -> None:
    content = tag * 200_000
    assert extract_reasoning_from_content(content) == ([], content)


def test_many_spans_are_all_found() -> None:
    spans, rest = extract_reasoning_from_content("<think>a</think>b" * 200_000)
    assert (len(spans), len(rest)) == (200_000, 200_000)
