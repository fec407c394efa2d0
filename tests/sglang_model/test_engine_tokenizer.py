from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_model.testing.tokenizer import (
    MARKUP_TOKENS,
    SPECIAL_TOKENS,
    builtin_tokenizer,
    folder_tokenizer,
)

TOKENIZER = builtin_tokenizer()
ENGLISH = (
    "The weather in Paris is sunny and the temperature is twenty degrees. Is that what you want to know?"
)


def test_english_takes_clearly_fewer_tokens_than_bytes() -> None:
    assert len(TOKENIZER.encode(ENGLISH)) < len(ENGLISH.encode()) / 3


@given(st.text())
def test_every_text_comes_back_from_its_ids(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@pytest.mark.parametrize("token", [*SPECIAL_TOKENS, *MARKUP_TOKENS])
def test_every_chatml_and_qwen3_marker_is_one_id(token: str) -> None:
    assert len(TOKENIZER.encode(token)) == 1


def test_skipping_special_tokens_hides_the_turn_markers_and_keeps_the_markup() -> None:
    ids = TOKENIZER.encode("<|im_start|><think>a</think><tool_call><|im_end|>")
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "<think>a</think><tool_call>"


def test_the_same_text_has_another_valid_encoding() -> None:
    bytewise = TOKENIZER.encode_bytewise(ENGLISH)
    assert bytewise != TOKENIZER.encode(ENGLISH)
    assert TOKENIZER.decode(bytewise) == ENGLISH


def test_half_a_character_decodes_to_a_replacement_and_keeps_its_byte() -> None:
    first, second = TOKENIZER.encode_bytewise("é")
    assert TOKENIZER.decode([first]) == "\N{REPLACEMENT CHARACTER}"
    assert TOKENIZER.token_bytes(first) + TOKENIZER.token_bytes(second) == "é".encode()


def test_ids_that_no_token_has_decode_to_nothing() -> None:
    assert TOKENIZER.decode([-5, TOKENIZER.vocab_size, 10**9]) == ""


def test_a_tokenizer_is_read_from_a_folder(tmp_path: Path) -> None:
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        '{"eos_token": {"content": "<|endoftext|>"}, "model_max_length": 77}'
    )
    loaded = folder_tokenizer(tmp_path)
    assert loaded.encode(ENGLISH) == TOKENIZER.encode(ENGLISH)
    assert loaded.eos_token_id == TOKENIZER.encode("<|endoftext|>")[0]
    assert loaded.model_max_length == 77


def test_a_folder_whose_eos_token_does_not_exist_is_refused(tmp_path: Path) -> None:
    TOKENIZER.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(ValueError, match="</s>"):
        folder_tokenizer(tmp_path)
