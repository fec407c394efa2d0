"""The embedded engine's tokenizer and chat template as a folder that transformers loads, like a model's repository."""

from __future__ import annotations

import json
from pathlib import Path

from sglang_model.testing.chat_template import BUILTIN_TEMPLATE
from sglang_model.testing.tokenizer import builtin_tokenizer


def write_tokenizer_folder(folder: Path, *, chat_template: str = BUILTIN_TEMPLATE) -> Path:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json, and return the folder."""
    tokenizer = builtin_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.eos_token,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    generation = {"eos_token_id": tokenizer.eos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder
