"""A text is cut only where its pieces give the ids of the whole, and what cannot be proved is not cut."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from sglang_model.segments import EDGES, MAX_TOKENS, MIN_PIECE, Cuts, candidates, find_cuts, proved_cuts
from sglang_model.splice_types import Rendered, RenderRequest
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.template_facts import facts_of
from sglang_model.testing.template_families import FAMILIES
from sglang_model.testing.tokenizer import builtin_tokenizer
from tests.support.family_tokenizer import byte_level_tokenizer, family_tokenizer, sentencepiece_tokenizer

CHATML = ("<|im_start|>", "<|im_end|>")
RENDERED = ["<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"]

Encode = Callable[[list[str]], list[list[int]]]


def encoder(tokenizer: Tokenizer) -> Encode:
    return lambda texts: [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def with_tokens(tokenizer: Tokenizer, **flags: bool) -> Tokenizer:
    """The start token as it should be, the end token with the flags."""
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", normalized=False, special=True)])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, **{"normalized": False, **flags})])
    return tokenizer


def plain_bytes() -> Tokenizer:
    tokenizer = byte_level_tokenizer(())
    assert tokenizer.get_added_tokens_decoder() == {}
    return tokenizer


def proved(tokenizer: Tokenizer) -> tuple[str, ...]:
    return proved_cuts(encoder(tokenizer), CHATML, RENDERED).tokens


def in_pieces(encode: Encode, cuts: Cuts, text: str) -> list[int]:
    return [token_id for ids in encode(cuts.pieces(text)) for token_id in ids]


def odd_texts(*tokens: str) -> st.SearchStrategy[str]:
    """Arbitrary text with special tokens, parts of them and odd characters in it."""
    known = [*tokens, *EDGES, *(token[1:] for token in tokens), *(token[:-1] for token in tokens)]
    return st.lists(st.one_of(st.sampled_from(known), st.text(max_size=6)), max_size=30).map("".join)


@given(text=odd_texts(*CHATML), least=st.integers(1, 40))
def test_pieces_make_up_the_text_and_are_long_enough(text, least):
    pieces = Cuts(CHATML, min_piece=least).pieces(text)
    assert "".join(pieces) == text
    assert all(pieces)
    assert all(len(piece) >= least for piece in pieces[:-1])
    assert all(piece.startswith(CHATML) for piece in pieces[1:])


def test_a_text_of_nothing_but_special_tokens_is_no_thousand_pieces():
    assert len(Cuts(CHATML).pieces("<|im_end|>" * 10_000)) <= 100_000 / MIN_PIECE


@pytest.mark.parametrize("text", ["", "a", "a" * 5000])
def test_without_tokens_nothing_is_cut(text):
    assert Cuts().pieces(text) == ([text] if text else [])


def test_each_message_of_a_conversation_is_a_piece():
    message = f"<|im_start|>user\n{'a' * MIN_PIECE}<|im_end|>\n"
    assert Cuts(["<|im_start|>"]).pieces(message * 3) == [message] * 3


FAMILY_TOKENIZERS = {
    **{family.name: (family_tokenizer(family), family.facts.specials) for family in FAMILIES},
    "builtin": (builtin_tokenizer().backend, (*CHATML, "<tool_call>", "</think>")),
    "marks in front": (sentencepiece_tokenizer(CHATML), CHATML),
    "marks everywhere": (sentencepiece_tokenizer(CHATML, prepend_scheme="always"), CHATML),
    "marks nowhere": (sentencepiece_tokenizer(CHATML, prepend_scheme="never"), CHATML),
}


@pytest.mark.parametrize("name", FAMILY_TOKENIZERS)
def test_proved_cuts_never_change_ids(name):
    tokenizer, specials = FAMILY_TOKENIZERS[name]
    encode = encoder(tokenizer)
    found = proved_cuts(encode, specials, ["".join(specials)])
    cuts = Cuts(found.tokens, min_piece=1)
    assert set(cuts.tokens) == set(specials)

    @settings(max_examples=60, deadline=None)
    @given(text=odd_texts(*specials))
    def check(text: str) -> None:
        assert in_pieces(encode, cuts, text) == encode([text])[0]

    check()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_templates_of_all_families_are_cut_at_tokens_they_write(family):
    specials = family.facts.specials
    renderer = JinjaRenderer(family.template, family.facts.variables)
    encode = encoder(family_tokenizer(family))

    def render(messages: tuple[object, ...]) -> str | None:
        result = renderer(RenderRequest(messages, None, {}, True))
        return result.text if isinstance(result, Rendered) else None

    cuts = find_cuts(specials, render, encode)
    assert set(cuts.tokens) <= set(specials)
    assert len(cuts.tokens) <= MAX_TOKENS
    assert bool(cuts.tokens) == (family.name != "no-end")


def test_a_token_that_is_as_tokens_should_be_is_used():
    assert proved(with_tokens(plain_bytes())) == CHATML


def test_a_token_that_takes_the_blanks_behind_it_along_can_be_cut_in_front_of():
    assert proved(with_tokens(plain_bytes(), rstrip=True)) == CHATML


@pytest.mark.parametrize("flag", ["lstrip", "single_word"])
def test_a_token_that_looks_at_what_stands_in_front_of_it_is_left_out_and_others_are_not(flag):
    assert proved(with_tokens(plain_bytes(), **{flag: True})) == ("<|im_start|>",)


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_tokens_found_in_text_that_was_given_a_mark_are_left_out(scheme):
    """Llama 2: the normaliser puts a mark in front of a text before its tokens are looked for."""
    tokenizer = sentencepiece_tokenizer((), prepend_scheme=scheme)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    assert proved(with_tokens(tokenizer, normalized=True)) == ("<|im_start|>",)


def test_a_normaliser_that_joins_a_token_with_what_follows_it_is_found_out():
    tokenizer = byte_level_tokenizer(())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    found = proved(with_tokens(tokenizer, normalized=True))
    encode, cuts = encoder(tokenizer), Cuts(found, min_piece=1)
    for text in ("a<|im_end|>\u0338b", " <|im_end|> \u0338", "e<|im_end|>\u0301<|im_start|>"):
        assert in_pieces(encode, cuts, text) == encode([text])[0]


def test_a_tokenizer_that_adds_an_id_to_every_text_is_never_cut():
    def encode(texts: list[str]) -> list[list[int]]:
        return [[0, *text.encode()] for text in texts]

    assert proved_cuts(encode, CHATML, RENDERED).tokens == ()


def test_a_tokenizer_that_differs_only_in_the_chat_templates_texts_is_never_cut():
    def encode(texts: list[str]) -> list[list[int]]:
        return [[*text.encode(), *([7] if text in RENDERED else [])] for text in texts]

    assert proved_cuts(encode, CHATML, ["x"]).tokens == CHATML
    assert proved_cuts(encode, CHATML, RENDERED).tokens == ()


@pytest.mark.parametrize(
    "other",
    ["<|im_end|>\n", "x<|im_end|>", "a<|", "|>b", "im_end"],
    ids=["longer behind", "longer in front", "over its beginning", "over its end", "within"],
)
def test_a_token_that_another_one_can_hide_is_no_candidate(other):
    assert candidates(["<|im_start|>", "<|im_end|>"], RENDERED) == list(CHATML)
    assert "<|im_end|>" not in candidates(["<|im_start|>", "<|im_end|>", other], RENDERED)


def test_a_token_that_can_overlap_itself_is_no_candidate():
    assert candidates(["--x--", "<s>"], ["--x-- <s>"]) == ["<s>"]


def test_only_tokens_that_the_template_writes_are_candidates_the_commonest_first():
    added = ["<a>", "<b>", "<c>", "<d>", "<e>", "<f>"]
    assert candidates(added, ["<b><a><b>", "<c>"]) == ["<b>", "<a>", "<c>"]
    assert len(candidates(added, ["".join(added)])) == MAX_TOKENS


def test_tokens_that_stand_in_messages_only_are_not_cut_at():
    def render(messages: tuple[object, ...]) -> str:
        return "".join(f"<s>{message['content']}" for message in messages)

    added = ["<s>", "<t>"]
    encode = encoder(byte_level_tokenizer(added))
    assert find_cuts(added, render, encode).tokens == ("<s>",)


def test_a_template_that_accepts_no_probe_is_never_cut():
    encode = encoder(byte_level_tokenizer(["<s>"]))
    assert find_cuts(["<s>"], lambda messages: None, encode).tokens == ()


def test_a_model_of_words_is_proved_or_left_alone():
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "user": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Lowercase()
    encode = encoder(with_tokens(tokenizer))
    cuts = Cuts(proved_cuts(encode, CHATML, RENDERED).tokens, min_piece=1)
    for text in ("a<|im_end|>A", "A <|IM_END|> a<|im_start|>user", "<|im_end|><|im_end|>"):
        assert in_pieces(encode, cuts, text) == encode([text])[0]


def real_templates() -> list[object]:
    folder = Path(os.environ.get("SGLANG_GYM_TEST_DATA", "no-such-folder")) / "chat_templates"
    found = [
        (path.stem, path.read_text(), facts_of(path.stem, path.read_text()))
        for path in sorted(folder.glob("*.jinja"))
    ]
    return [pytest.param(text, facts, id=name) for name, text, facts in found if facts is not None]


@pytest.mark.parametrize(("template", "facts"), real_templates())
def test_real_templates_are_cut_without_a_changed_id(template, facts):
    renderer = JinjaRenderer(template, facts.variables)
    encode = encoder(byte_level_tokenizer(facts.specials))

    def render(messages: tuple[object, ...]) -> str | None:
        result = renderer(RenderRequest(tuple(messages), None, {}, True))
        return result.text if isinstance(result, Rendered) else None

    cuts = Cuts(find_cuts(facts.specials, render, encode).tokens, min_piece=1)

    @settings(max_examples=15, deadline=None)
    @given(said=odd_texts(*facts.specials))
    def check(said: str) -> None:
        messages = ({"role": "user", "content": said}, {"role": "assistant", "content": said})
        text = render((*messages, {"role": "user", "content": "a"}))
        if text is not None:
            assert in_pieces(encode, cuts, text) == encode([text])[0]

    check()
