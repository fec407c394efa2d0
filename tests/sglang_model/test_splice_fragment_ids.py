"""A fragment's ids are those that a joint encoding has behind the sampled ids."""

from __future__ import annotations

import pytest

from sglang_model.fragment_ids import fragment_token_ids
from sglang_model.message_forms import MessageForms
from sglang_model.splice_types import (
    Fragment,
    FragmentIds,
    HistoryNote,
    Refusal,
    RefusalReason,
    SpecialTokens,
    SpliceFlag,
)
from tests.support.family_tokenizer import Codec, byte_level_tokenizer, sentencepiece_tokenizer

SPECIALS = ("<s>", "</s>", "<|end|>", "<|user|>")
TOKENS = SpecialTokens(SPECIALS, ("</s>", "<|end|>"))


def fragment(text: str, left: str | None = None) -> Fragment:
    return Fragment(text, left, frozenset(), HistoryNote.UNKNOWN, MessageForms())


def made(text: str, left: str | None, codec: Codec, **more: object) -> FragmentIds:
    left_id = codec.id_of(left) if left else None
    found = fragment_token_ids(fragment(text, left), codec.encode, left_id=left_id, tokens=TOKENS, **more)  # type: ignore[arg-type]
    assert isinstance(found, FragmentIds)
    return found


def test_blanks_on_both_sides_of_the_seam_stay_one_token() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS))
    found = made("\n\n<|user|>", "<|end|>", codec)
    assert list(found.ids) == codec.encode("<|end|>\n\n<|user|>")[1:]
    assert len(found.ids) == 2


def test_a_token_that_eats_the_blanks_behind_it_eats_those_of_the_fragment() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS, rstrip=("<|end|>", "<|user|>")))
    found = made("\n<|user|>\nok", "<|end|>", codec)
    assert list(found.ids) == codec.encode("<|end|>\n<|user|>\nok")[1:]
    assert len(found.ids) < len(codec.encode("\n<|user|>\nok"))


@pytest.mark.parametrize("left", ["</s>", None])
def test_no_word_boundary_mark_is_put_in_front_of_text_in_the_middle(left: str | None) -> None:
    codec = Codec(sentencepiece_tokenizer(SPECIALS))
    joint = codec.encode(f"{left or 'a'}ok")
    assert codec.encode("ok") != joint[1:]
    assert list(made("ok", left, codec).ids) == joint[-1:]


def test_a_cut_off_turn_is_flagged_where_the_seam_is_between_texts() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS))
    assert made("\n<|end|>", None, codec).flags == {SpliceFlag.SOFT_BOUNDARY}
    assert made("<|end|>\n", None, codec).flags == frozenset()
    assert made("", None, codec) == FragmentIds((), frozenset())


def test_a_cut_off_turns_close_is_encoded_alone_where_every_neighbour_merges_with_it() -> None:
    vocabulary: dict[str, int] = {}

    def merging(text: str) -> list[int]:
        return [vocabulary.setdefault(text, len(vocabulary))]

    found = fragment_token_ids(fragment("x"), merging, left_id=None, tokens=TOKENS)
    assert isinstance(found, FragmentIds)
    assert list(found.ids) == merging("x")


def test_a_stop_token_whose_text_is_not_the_sampled_id_is_refused() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS))
    for left, left_id in (("</s>", codec.id_of("<|end|>")), ("</s>", None), ("rain yes", 3)):
        found = fragment_token_ids(fragment("\n", left), codec.encode, left_id=left_id, tokens=TOKENS)
        assert isinstance(found, Refusal)
        assert found.reason is RefusalReason.LEFT_TOKEN_NOT_ATOMIC


def test_a_stop_token_that_merges_with_the_fragment_is_refused() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS))
    newline = codec.encode("\n")
    found = fragment_token_ids(fragment("\n<|user|>", "\n"), codec.encode, left_id=newline[0], tokens=TOKENS)
    assert isinstance(found, Refusal)


def test_a_mark_in_front_of_the_stop_token_is_dropped_with_it() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS))

    def with_start(text: str) -> list[int]:
        return [codec.id_of("<s>"), *codec.encode(text)]

    found = fragment_token_ids(
        fragment("\nok", "</s>"), with_start, left_id=codec.id_of("</s>"), tokens=TOKENS
    )
    assert isinstance(found, FragmentIds)
    assert list(found.ids) == codec.encode("\nok")


def test_text_that_does_not_survive_the_round_trip_is_flagged() -> None:
    codec = Codec(byte_level_tokenizer(SPECIALS))
    assert made("\né", "</s>", codec, decode=codec.decode).flags == frozenset()
    assert made("\né", "</s>", codec, decode=lambda ids: "?").flags == {SpliceFlag.LOSSY_TOKENIZATION}
