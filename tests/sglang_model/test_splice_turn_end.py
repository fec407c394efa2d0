"""Where the sampled ids end in a rendering: each rule on the smallest text that needs it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_model.splice_types import (
    EndKind,
    GenerationEnd,
    Pins,
    Refusal,
    RefusalReason,
    SpecialTokens,
    SpliceFlag,
)
from sglang_model.turn_end import (
    Cut,
    TurnView,
    common_prefix_length,
    cut_at_opener,
    end_marker,
    find_cut,
    pinned_cut,
    pinned_tokens,
    plain_cut,
    stop_token,
)

TOKENS = SpecialTokens(
    ("<s>", "<e>", "<eof>", "<u>", "<a>", "<call>", "</call>", "<end>", "<return>"), ("<e>", "<eof>")
)
CUT_OFF = frozenset({SpliceFlag.UNTERMINATED_GENERATION})
FOREIGN = frozenset({SpliceFlag.FOREIGN_STOP})
SUBSTITUTED = frozenset({SpliceFlag.STOP_SUBSTITUTED})


def view(tail: str, last: str | None, *, calls: bool = False, text: str = "NEW", **more: object) -> TurnView:
    """A turn's end in which the first new text is the word NEW."""
    made = TurnView(tail, last, calls, TOKENS, bound=tail.find(text) if text in tail else None)
    return replace(made, **more)  # type: ignore[arg-type]


def cut(made: TurnView, stop: str | None) -> Cut | Refusal:
    return plain_cut(made, stop) or find_cut(made, stop)


@pytest.mark.parametrize(
    ("a", "b", "length"), [("", "", 0), ("abc", "abd", 2), ("abc", "abc", 3), ("abc", "ab", 2), ("x", "y", 0)]
)
def test_common_prefix_is_counted_in_characters(a: str, b: str, length: int) -> None:
    assert common_prefix_length(a, b) == length


def test_what_the_reply_owns_ends_in_front_of_a_token_that_would_be_cut() -> None:
    assert view("}<e>\n<u>NEW", "}<e>\n").owned == len("}<e>\n")
    assert view("}<eof>NEW", "}<e>").owned == 1
    assert view("}<e>NEW", "}<eof>").owned == 1


def test_a_stop_token_that_the_reply_owns_ends_the_turn_without_a_look_at_the_messages() -> None:
    made = view("</call><e>\n<u>NEW", "</call><e>\n", text="-")
    assert plain_cut(made, "<e>") == Cut(len("</call><e>"))


def test_a_stop_token_in_a_users_text_is_never_taken_for_the_turns_end() -> None:
    made = view("<u>NEW<e>", "", text="NEW")
    assert isinstance(cut(made, "<e>"), Cut)
    assert cut(made, "<e>") == Cut(0, FOREIGN)


def test_a_stop_token_that_is_the_next_turns_first_token_is_not_written_twice() -> None:
    assert cut(view("<e>NEW", ""), "<e>") == Cut(len("<e>"))
    assert cut(view("}</call><e>NEW", "}</call>", calls=True), "<e>") == Cut(len("}</call><e>"))


def test_blanks_between_what_is_owned_and_the_stop_token_do_not_matter() -> None:
    assert cut(view("]</call>\n<e>\n<u>NEW", "]</call><e>\n\n", calls=True), "<e>") == Cut(
        len("]</call>\n<e>")
    )


def test_a_close_that_reads_otherwise_in_history_is_found_and_flagged() -> None:
    made = view('", "id": 1]\n<e>\n<u>NEW', '"]\n<e>\n', calls=True)
    differs = frozenset({SpliceFlag.CLOSE_DIFFERS_IN_HISTORY})
    assert cut(made, "<e>") == Cut(len('", "id": 1]\n<e>'), differs)
    assert cut(view('", "id": 1]\n<e>\n<u>NEW', '"]\n', calls=True), "<e>") == Cut(
        len('", "id": 1]\n<e>'), differs
    )
    tokens = view('", "id": 1]</call>\n<e>\n<u>NEW', '"]</call>\n<e>\n', calls=True)
    assert cut(tokens, "<e>") == Cut(len('", "id": 1]</call>\n<e>'), differs)


def test_a_stop_token_behind_other_tokens_than_in_the_last_position_is_not_believed() -> None:
    made = view('", <s>]<e>\n<u>NEW', '"]</call><e>', calls=True)
    assert cut(made, "<e>") != Cut(len('", <s>]<e>'))


def test_a_stop_token_of_the_next_header_does_not_swallow_the_turns_own_end() -> None:
    """Behind `<e>` a sampled `<u>` stands for it; cutting behind `<u>` would lose the end."""
    made = TurnView("<e>\n<u>NEW", "<e>\n", False, SpecialTokens(TOKENS.texts, ("<e>", "<u>")), bound=7)
    assert cut(made, "<u>") == Cut(len("<e>"), SUBSTITUTED)


def test_a_stop_token_behind_another_end_that_the_reply_owns_skips_that_one_and_is_flagged() -> None:
    skipped = frozenset({SpliceFlag.END_SKIPPED})
    assert cut(view("\n<e>\n<eof><u>NEW", "\n<e>\n<eof>"), "<eof>") == Cut(len("\n<e>\n<eof>"), skipped)
    assert cut(view("\n<e>\n<eof><u>NEW", "\n<e>\n<eof>"), "<e>") == Cut(len("\n<e>"))


def test_another_stop_token_of_the_engine_takes_the_markers_place() -> None:
    assert cut(view("<e>\n<u>NEW", "<e>\n"), "<eof>") == Cut(len("<e>"), SUBSTITUTED)
    assert cut(view('"}<e>\n<u>NEW', '"}<e>\n', calls=True), "<eof>") == Cut(len('"}<e>'), SUBSTITUTED)


def test_a_stop_token_that_ends_no_turn_gets_the_whole_close_behind_it() -> None:
    assert cut(view("\n<e>\n<u>NEW", "\n<e>\n"), "</call>") == Cut(0, FOREIGN)
    assert cut(view('"}\n<e>\n<u>NEW', '"}\n<e>\n', calls=True), "<s>") == Cut(len('"}\n'), FOREIGN)


def test_the_marker_is_the_first_stop_token_the_reply_owns() -> None:
    marker = end_marker(view('"}</call>\n<e>\n<u>NEW', '"}</call>\n<e>\n', calls=True))
    assert marker is not None
    assert (marker.start, marker.text) == (len('"}</call>\n'), "<e>")


def test_a_lone_token_in_front_of_the_new_text_is_a_header_and_no_marker() -> None:
    assert end_marker(view("<u>NEW", "")) is None
    assert end_marker(view("\n<e>User\nNEW", "\n<e>Assistant\n")) is None


def test_a_lone_owned_stop_token_with_nothing_behind_it_in_the_last_position_is_a_marker() -> None:
    marker = end_marker(view("<e>USER: NEW", "<e>"))
    assert marker is not None
    assert marker.text == "<e>"


def test_an_end_that_pairs_with_the_last_positions_stop_token_is_the_marker() -> None:
    tokens = SpecialTokens(TOKENS.texts, ("<return>", "<eof>"))
    made = TurnView("<end><s>user NEW", "<return>", False, tokens, bound=len("<end><s>user "))
    marker = end_marker(made)
    assert marker is not None
    assert marker.text == "<end>"
    assert cut(made, "<return>") == Cut(len("<end>"), SUBSTITUTED)
    assert end_marker(replace(made, tail="x <end><s>user NEW", bound=len("x <end><s>user "))) is None


def test_a_template_that_ends_no_last_turn_has_its_history_end_as_marker() -> None:
    marker = end_marker(view("<e>\n<u>NEW", ""))
    assert marker is not None
    assert marker.text == "<e>"
    assert end_marker(view("words<e>\n<u>NEW", "")) is None
    assert end_marker(view("<s>\n<u>NEW", "")) is None


def test_a_call_without_an_end_keeps_the_stop_token_behind_its_closers() -> None:
    assert cut(view('"}</call><u><a>NEW', '"}</call>', calls=True), "<e>") == Cut(len('"}</call>'), FOREIGN)


def test_a_new_text_that_begins_like_the_last_positions_end_is_not_taken_for_closers() -> None:
    """Nothing but the last position has the end, and the user's text spells it."""
    made = TurnView('"]<u>NEW', '"]<u>', True, TOKENS, bound=len('"]'))
    assert isinstance(find_cut(made, "<e>"), Refusal)
    assert isinstance(find_cut(made, None), Refusal)


def test_a_call_is_refused_where_its_closers_are_not_known() -> None:
    made = view('"}</call><u><a>NEW', None, calls=True)
    assert isinstance(cut(made, "<e>"), Refusal)
    differing = view('"}</call><u><a>NEW', '"}</call><s>', calls=True)
    found = cut(differing, "<e>")
    assert isinstance(found, Refusal)
    assert found.reason is RefusalReason.TURN_END_NOT_FOUND


def test_a_text_is_refused_where_the_last_position_has_tokens_that_history_lacks() -> None:
    assert isinstance(cut(view("\n<u>NEW", "<end>"), "<e>"), Refusal)
    assert cut(view("\n<u>NEW", "<e>"), "<e>") == Cut(0, FOREIGN)


def test_a_text_that_was_cut_off_gets_its_whole_close() -> None:
    assert cut(view("\n<e>\n<u>NEW", "\n<e>\n"), None) == Cut(0, CUT_OFF)


def test_a_call_that_was_cut_off_gets_the_close_from_the_marker_on() -> None:
    assert cut(view('"}</call><e>\n<u>NEW', '"}</call><e>\n', calls=True), None) == Cut(
        len('"}</call>'), CUT_OFF
    )
    assert cut(view('"}</call><u><a>NEW', '"}</call>', calls=True), None) == Cut(len('"}</call>'), CUT_OFF)
    assert isinstance(cut(view('"}</call><u><a>NEW', None, calls=True), None), Refusal)


def test_an_ordinary_stop_token_is_sampled_text_and_spells_the_beginning_of_the_close() -> None:
    end = GenerationEnd(EndKind.STOP_TOKEN, "\n")
    assert stop_token(end, TOKENS) == (None, "\n")
    assert stop_token(end, SpecialTokens(("\n",), ("\n",))) == (None, "\n")
    assert stop_token(end, SpecialTokens((), ("<e>", "\n"))) == (None, "\n")
    assert stop_token(GenerationEnd(EndKind.STOP_TOKEN, "<e>"), TOKENS) == ("<e>", "")
    assert stop_token(GenerationEnd(EndKind.STOP_TOKEN, "<e>"), SpecialTokens((), ("<e>",))) == ("<e>", "")
    assert stop_token(GenerationEnd(EndKind.LENGTH), TOKENS) == (None, "")
    assert plain_cut(view("\n<e>\n<u>NEW", "\n<e>\n", sampled_end="\n"), None) == Cut(1, CUT_OFF)
    assert plain_cut(view("<e>\n<u>NEW", "<e>\n", sampled_end="\n"), None) == Cut(0, CUT_OFF)


def test_an_end_is_only_given_with_a_stop_token() -> None:
    with pytest.raises(ValueError, match="do not agree"):
        GenerationEnd(EndKind.STOP_TOKEN)
    with pytest.raises(ValueError, match="do not agree"):
        GenerationEnd(EndKind.LENGTH, "<e>")


def test_nothing_is_cut_before_the_place_of_the_new_messages_is_known() -> None:
    found = find_cut(replace(view("<e>\n<u>NEW", "<e>\n"), bound=None), "<eof>")
    assert isinstance(found, Refusal)
    assert found.reason is RefusalReason.NEW_MESSAGE_UNPROVEN


def test_without_a_last_position_the_first_stop_token_in_front_of_the_new_text_ends_the_turn() -> None:
    assert cut(view("<e>\n<u>NEW", None), "<e>") == Cut(len("<e>"))
    assert cut(view('"}</call>\n<e>\n<u>NEW', None, calls=True), "<e>") == Cut(len('"}</call>\n<e>'))
    assert cut(view("</call><e><u>NEW", None), "<e>") == Cut(len("</call><e>"))


def test_without_a_last_position_a_stop_token_behind_plain_text_is_not_believed() -> None:
    assert isinstance(cut(view("\nNext:<e>NEW", None), "<e>"), Refusal)
    assert isinstance(cut(view("\nNext:<e><u>NEW", None), "<eof>"), Cut)
    assert isinstance(cut(view("<s>Next:<e>NEW", None), "<e>"), Refusal)


def test_nothing_is_appended_behind_a_foreign_stop_token_while_special_tokens_are_unknown() -> None:
    """Any text in front of the new messages may be the end of the turn then."""
    for last in ("<return>", "", None):
        made = view("<end><s>user NEW", last, tokens=SpecialTokens((), ("<return>", "<eof>")))
        assert isinstance(cut(made, "<return>"), Refusal)
    known = view("<e><s>user NEW", None, tokens=SpecialTokens((), ("<e>", "<eof>")))
    assert cut(known, "<e>") == Cut(len("<e>"))


def test_without_a_last_position_another_stop_token_takes_the_first_ones_place() -> None:
    assert cut(view("<e>\n<u>NEW", None), "<eof>") == Cut(len("<e>"), SUBSTITUTED)
    assert cut(view("<u>NEW", None), "<e>") == Cut(0, FOREIGN)
    assert isinstance(cut(view("<u>role<a>NEW", None), "<e>"), Refusal)


def test_without_a_last_position_an_end_is_known_by_following_the_users_text_too() -> None:
    made = view("<end><s>user NEW", None, closing="<end><s>assistant")
    assert cut(made, "<e>") == Cut(len("<end>"), SUBSTITUTED)
    assert isinstance(cut(replace(made, closing="<end><a>"), "<e>"), Refusal)
    assert isinstance(cut(replace(made, closing=None), "<e>"), Refusal)
    for closing in ("<end>x<s>assistant", "<end><s>assistant"):
        apart = view("<end>x<s>user NEW", None, closing=closing)
        assert isinstance(cut(apart, "<e>"), Refusal)


def test_a_call_that_runs_into_the_next_turn_ends_in_front_of_the_token_that_opens_turns() -> None:
    made = view("]```\n<s><u>NEW", "]```\n<s><u>Write actions.<e>", calls=True)
    assert cut_at_opener(made, "<e>", "<s><a>") == Cut(len("]```\n"), FOREIGN)
    assert cut_at_opener(made, None, "<s><a>") == Cut(len("]```\n"), CUT_OFF)
    assert cut_at_opener(made, "<e>", "<a>") is None
    assert cut_at_opener(made, "<e>", "") is None
    assert cut_at_opener(made, "<e>", "words<s>") is None
    assert cut_at_opener(view("]<e>NEW", "]", calls=True), "<eof>", "<e><a>") is None


def test_a_pinned_suffix_is_used_where_it_stands() -> None:
    made = view("\n<e>\n<u>NEW", "\n<e>\n")
    assert pinned_cut(made, "<e>", "<e>\n") == Cut(len("\n<e>"))
    assert pinned_cut(made, "<e>", "\n<e>\n") == Cut(len("\n<e>"))
    assert pinned_cut(made, "<eof>", "<e>\n") == Cut(len("\n<e>"), SUBSTITUTED)
    assert pinned_cut(made, "<s>", "<e>\n") == Cut(0, FOREIGN)
    assert pinned_cut(made, None, "<e>\n") == Cut(0, CUT_OFF)


def test_a_pinned_suffix_of_plain_text_ends_the_turn_too() -> None:
    made = view(" END\nNEW", " END\n")
    assert pinned_cut(made, "<e>", " END\n") == Cut(len(" END\n"), SUBSTITUTED)


def test_a_pinned_suffix_that_does_not_stand_behind_the_turn_is_refused() -> None:
    for made in (view("<e>\n<u>NEW", "<e>\n"), view("<e>\n<u>NEW<end>\n", "<e>\n")):
        found = pinned_cut(made, "<e>", "<end>\n")
        assert isinstance(found, Refusal)
        assert found.reason is RefusalReason.PINNED_SUFFIX_MISMATCH


def test_a_pinned_suffix_waits_until_the_messages_place_is_known() -> None:
    made = replace(view("<end><s>NEW", "<return>"), bound=None)
    assert pinned_cut(made, "<e>", "<end>") is None
    assert pinned_cut(replace(made, bound=8), "<e>", "<end>") == Cut(len("<end>"), SUBSTITUTED)


def test_a_pinned_suffix_is_the_end_of_texts_and_leaves_calls_to_their_own() -> None:
    assert pinned_cut(view('"}<call><s>NEW<end>', '"}<call>', calls=True), "<call>", "<end>") is None
    assert pinned_cut(view('"}<end><s>NEW', '"}<end>', calls=True), "<end>", "<end>") == Cut(len('"}<end>'))


def test_pinned_markers_are_the_stop_tokens_that_count() -> None:
    assert pinned_tokens(TOKENS, Pins()) is TOKENS
    assert pinned_tokens(TOKENS, Pins(eos_markers=("<end>",))).stops == ("<end>",)


def test_special_tokens_are_read_longest_first_and_only_whole() -> None:
    tokens = SpecialTokens(("<e>", "<e><e>", "x"), ())
    assert [span.text for span in tokens.spans("<e><e>x<e>")] == ["<e><e>", "x", "<e>"]
    assert [span.text for span in tokens.spans("<e><e>x", 5)] == []
    assert [span.text for span in SpecialTokens(("\n", "<e>"), ()).spans("\n<e>\n")] == ["<e>"]
    assert tokens.open("<e>b")
    assert not tokens.open("b<e>")
    assert not SpecialTokens().occur_in("anything")
