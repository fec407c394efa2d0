"""How a rendered history is compared with the stored prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sglang_model.history_note import history_note, without_thinking
from sglang_model.splice_types import HistoryNote

pieces = st.lists(st.sampled_from(["<think>", "</think>", "<", "\n", " ", "\u2003", "a"]))


def slow_twin(text: str) -> str:
    head, opening, rest = text.partition("<think>")
    _, closing, rest = rest.partition("</think>")
    return head + slow_twin(rest.lstrip()) if opening and closing else text


@given(pieces.map("".join))
def test_closed_blocks_go_with_the_blanks_behind_them(text: str) -> None:
    assert without_thinking(text) == slow_twin(text)


def test_a_history_of_very_many_blocks_is_compared_in_one_pass() -> None:
    assert without_thinking("<think></think> \n" * 400_000) == ""


def test_reasoning_that_the_template_removes_is_not_a_rewritten_history() -> None:
    prompt = "user: a\nassistant: <think>b</think>\n\nc\nassistant: <think>\n"
    assert history_note("user: a\nassistant: c\nassistant: ", prompt) is HistoryNote.THINKING_STRIPPED
    assert history_note("user: z\nassistant: c\nassistant: ", prompt) is HistoryNote.REWRITTEN
