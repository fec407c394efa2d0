"""The tokenizer folder of a run, and the ids that the engine stub answers with.

`BENCH_TOKENIZER` names a folder with a ChatML tokenizer (Qwen3's, say); without it a byte-level BPE is trained here on
generated text, which takes a second. Both have chat templates, so that rendering costs what it costs.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Self

import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from benchmarks.texts import Texts
from sglang_model.testing.chat_template import BUILTIN_TEMPLATE

END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", END_OF_TURN)
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
VOCABULARY_SIZE = 12_000
LONGEST_PROMPT = 140_000
LONGEST_REPLY = 4_096
TOOL_NAME = "look_up"
TOOL_ARGUMENTS = '{"place": "harbour", "limit": 3}'
TOOL_CALL = f'<tool_call>\n{{"name": "{TOOL_NAME}", "arguments": {TOOL_ARGUMENTS}}}\n</tool_call>'
_SAMPLE_WORDS = 30_000


@dataclass(frozen=True)
class Corpus:
    """What load generator and engine stub must agree on. `reply_ids` decode to `"".join(reply_texts)`, plain text."""

    tokens_per_word: float
    prompt_ids: list[int]
    reply_ids: list[int]
    reply_texts: list[str]
    call_ids: list[int]
    call_texts: list[str]
    end_id: int
    between_turns: list[int]
    """What a chat template writes around one short user message, for prompts that the stub makes up."""

    def save(self, path: Path) -> Path:
        path.write_bytes(orjson.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(**orjson.loads(path.read_bytes()))

    @property
    def texts(self) -> Texts:
        return Texts(self.tokens_per_word)


def make_corpus(folder: Path) -> Corpus:
    """Encode generated text with the tokenizer of `folder`. Raises ValueError for one that does not speak ChatML."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    end_id = tokenizer.token_to_id(END_OF_TURN)
    if end_id is None:
        raise ValueError(f"BENCH_TOKENIZER: expected a ChatML tokenizer, this one has no token {END_OF_TURN}")

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def texts_of(ids: list[int]) -> list[str]:
        return [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]

    random = Random(4)
    words = Texts(tokens_per_word=1.0)
    tokens_per_word = len(encode(words.draw(_SAMPLE_WORDS, random))) / _SAMPLE_WORDS
    texts = Texts(tokens_per_word)
    reply_ids = encode(texts.draw(LONGEST_REPLY * 11 // 10, random))[:LONGEST_REPLY]
    call_ids = encode(TOOL_CALL)
    return Corpus(
        tokens_per_word=tokens_per_word,
        prompt_ids=encode(texts.draw(LONGEST_PROMPT * 11 // 10, random))[:LONGEST_PROMPT],
        reply_ids=reply_ids,
        reply_texts=texts_of(reply_ids),
        call_ids=call_ids,
        call_texts=texts_of(call_ids),
        end_id=end_id,
        between_turns=encode(f"\n<|im_start|>user\n{END_OF_TURN}\n<|im_start|>assistant\n"),
    )


def train_tokenizer(folder: Path) -> Path:
    """Write a byte-level BPE tokenizer with ChatML's tokens, trained on generated text, and return the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    random = Random(2)
    words = Texts(tokens_per_word=1.0)
    tokenizer.train_from_iterator((words.draw(1_000, random) for _ in range(100)), trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TURN,
        "clean_up_tokenization_spaces": False,
        "chat_template": BUILTIN_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    generation = {"eos_token_id": tokenizer.token_to_id(END_OF_TURN)}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder
