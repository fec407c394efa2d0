"""Prompts have the size they are asked for, and the stub's tokenizer is the folder's."""

from __future__ import annotations

from random import Random

import pytest
from tokenizers import Tokenizer

from benchmarks.stub_tokenizer import StubTokenizer
from sglang_model.testing.chat_template import ChatTemplate

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The harbour\n\nopens at <|im_end|> nine."},
    {"role": "assistant", "content": "\n It does. "},
    {"role": "user", "content": "And the market?"},
]


@pytest.mark.parametrize("tokens", [64, 1_024, 20_000])
def test_a_text_has_about_as_many_tokens_as_were_asked_for(folder, corpus, tokens):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = corpus.texts.draw(tokens, Random(7))
    assert len(tokenizer.encode(text).ids) == pytest.approx(tokens, rel=0.15)


def test_texts_are_the_same_for_one_seed_and_different_for_two(corpus):
    first, again, other = (corpus.texts.draw(500, Random(seed)) for seed in (1, 1, 2))
    assert first == again
    assert len(set(zip(first.split(), other.split(), strict=False))) > 100


def test_a_reply_is_plain_text_whose_ids_are_its_tokens(folder, corpus):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = tokenizer.decode(corpus.reply_ids, skip_special_tokens=False)
    assert text == "".join(corpus.reply_texts)
    assert "�" not in text
    assert corpus.end_id not in corpus.reply_ids


def test_tokenize_renders_and_encodes_a_conversation_as_a_whole(folder):
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    text = template.render(MESSAGES, None, {})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stub = StubTokenizer(folder)
    answer = stub.tokenize({"messages": MESSAGES, "add_generation_prompt": False})
    assert answer["tokens"] == tokenizer.encode(text, add_special_tokens=False).ids
    assert answer["tokens"] == stub.tokenize({"prompt": text})["tokens"]
    assert answer["count"] == len(answer["tokens"])
    assert stub.detokenize({"tokens": answer["tokens"], "skip_special_tokens": False}) == {"text": text}


def test_detokenize_hides_special_tokens_one_list_at_a_time(folder, corpus):
    stub = StubTokenizer(folder)
    reply = corpus.reply_ids[:3]
    shown = stub.detokenize({"tokens": [[corpus.end_id], reply], "skip_special_tokens": True})
    assert shown == {"text": ["", "".join(corpus.reply_texts[:3])]}
