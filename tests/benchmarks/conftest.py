"""One trained tokenizer and one corpus for all tests of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tokenizer import Corpus, make_corpus, train_tokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tokenizer(tmp_path_factory.mktemp("bench") / "tokenizer")


@pytest.fixture(scope="session")
def corpus(folder: Path) -> Corpus:
    return make_corpus(folder)
