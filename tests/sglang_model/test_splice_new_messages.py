"""No new message is lost without a word: the proofs that each stands in the fragment."""

from __future__ import annotations

import pytest

from sglang_model.message_forms import Message
from sglang_model.new_messages import MarkedTail, plainly_present, texts_of
from sglang_model.splice_types import Refusal, RefusalReason, SpecialTokens, SpliceFlag

TOKENS = SpecialTokens(("<e>", "<u>"), ("<e>",))
LONG = "a tool result of more than twenty-four characters"
OTHER = "another tool result that nothing else would write"
ALTERED = frozenset({SpliceFlag.NEW_MESSAGE_ALTERED})


def says(*texts: str) -> list[Message]:
    return [{"role": "user", "content": text} for text in texts]


def test_long_texts_that_stand_once_and_in_order_prove_themselves() -> None:
    full = f"head<e>\n<u>{LONG}<e>\n<u>{OTHER}<e>"
    assert plainly_present(full, 4, says(LONG, f"  {OTHER}\n"), [], TOKENS)
    assert not plainly_present(full, 4, says(OTHER, LONG), [], TOKENS)


@pytest.mark.parametrize(
    ("full", "text"),
    [
        ("head<e>user ok<e>", "ok"),
        (f"head<e>{LONG}<e>{LONG}", LONG),
        (f"{LONG}<e>assistant", LONG),
        ("head<e>assistant", LONG),
        (f"head<e><u>{LONG}", f"<u>{LONG}"),
        ("head<e>", ""),
    ],
    ids=["short", "twice", "in front", "absent", "spells a token", "blank"],
)
def test_a_text_that_could_have_come_from_elsewhere_proves_nothing(full: str, text: str) -> None:
    assert not plainly_present(full, 4, says(text), [], TOKENS)


def test_a_text_that_an_earlier_message_or_a_tool_has_too_proves_nothing() -> None:
    full = f"head<e>{LONG}"
    assert not plainly_present(full, 4, says(LONG), texts_of(says(f"so: {LONG}."), None), TOKENS)
    assert not plainly_present(full, 4, says(LONG), texts_of([], [{"description": LONG}]), TOKENS)
    assert plainly_present(full, 4, says(LONG), texts_of(says(OTHER), [{"description": OTHER}]), TOKENS)


def marked(tail: str, *words: str, head: str = "") -> MarkedTail:
    return MarkedTail(head, tail, words)


def test_a_message_that_is_nowhere_is_dropped_and_one_in_front_is_hoisted() -> None:
    messages = says("one", "two")
    dropped = marked("<e><u>wa one<e>", "wa", "wb").lost(messages)
    assert isinstance(dropped, Refusal)
    assert dropped.reason is RefusalReason.NEW_MESSAGE_DROPPED
    assert "new message 1 of role 'user'" in dropped.detail
    assert "two" not in dropped.detail
    hoisted = marked("<e><u>wa one<e>", "wa", "wb", head="<s>wb two").lost(messages)
    assert isinstance(hoisted, Refusal)
    assert hoisted.reason is RefusalReason.NEW_MESSAGE_HOISTED
    assert marked("<e><u>wa one<e><u>wb two", "wa", "wb").lost(messages) is None


def test_a_message_without_text_may_be_left_out() -> None:
    assert marked("<e><u>wa one<e>", "wa", "wb").lost(says("one", "  ")) is None
    assert marked("<e><u>wa one<e>", "wa", "wb").prove("<e><u>one<e>", says("one", "  ")) == frozenset()


def test_the_bound_is_the_first_word_or_where_the_renderings_part() -> None:
    assert marked("<e><u>wa text", "wa").bound("<e><u>text") == len("<e><u>")
    assert marked("<e><u>wa text", "wa").bound("<e>\n<u>text") == len("<e>")
    assert marked("<e>wb two wa one", "wa", "wb").bound("<e>wb") == len("<e>")


@pytest.mark.parametrize(
    ("marked_tail", "tail", "texts"),
    [
        ("<e><u>wa one<e>", "<e><u>one<e>", ["one"]),
        ("<e><u>wa one<e>", "<e><u> \n one<e>", [" \n one"]),
        ("<e><u>wa one<e>", "<e><u>one<e>", [" \n one \n"]),
        ('<e>"wa a\\nb"', '<e>"\\n a\\nb"', ["\n a\nb"]),
        ("<e><u>wa<e>", "<e><u><e>", [""]),
        ("<e><u>wa<e>", "<e><u>  <e>", ["  "]),
        ("<e>wa one<u>wb one", "<e>one<u>one", ["one", "one"]),
        ("<e>wb two<u>wa one", "<e>two<u>one", ["one", "two"]),
    ],
    ids=["plain", "blanks kept", "trimmed", "as JSON", "empty", "blank", "alike", "reordered"],
)
def test_a_rendering_that_is_the_marked_one_without_its_words_is_proved(
    marked_tail: str, tail: str, texts: list[str]
) -> None:
    words = ("wa", "wb")[: len(texts)]
    assert marked(marked_tail, *words).prove(tail, says(*texts)) == frozenset()


def test_a_text_that_the_template_shows_changed_is_flagged() -> None:
    assert marked("<e>wa think<e>", "wa").prove("<e>think<e>", says("/no_think")) == ALTERED


def test_a_rendering_that_the_word_changes_is_proved_by_its_longest_words_and_flagged() -> None:
    made = marked("<e><u>wa Goodbye<e>think", "wa")
    assert made.prove("<e><u>Goodbye<e>no think", says("Goodbye, /no_think")) == ALTERED


@pytest.mark.parametrize(
    ("tail", "text"), [("<e><u>ok<e>no", "ok"), ("<e><u><e>no", "absent word"), ("<e><u>!!<e>no", "!!")]
)
def test_a_text_that_cannot_be_recognised_is_not_taken_to_be_there(tail: str, text: str) -> None:
    found = marked("<e><u>wa <e>", "wa").prove(tail, says(text))
    assert isinstance(found, Refusal)
    assert found.reason is RefusalReason.NEW_MESSAGE_UNPROVEN
    assert text not in found.detail


def test_what_closes_the_last_new_text_is_read_behind_it() -> None:
    assert marked("<e><u>wa one <e><s>", "wa").closing(says(" one ")) == "<e><s>"
    assert marked("<e><u>wa one<e><s>", "wa", "wb").closing(says("one", "")) == "<e><s>"
    assert marked("<e><u>wa eins<e><s>", "wa").closing(says("one")) is None
    assert marked("<e>", "wa").closing(says("")) is None
