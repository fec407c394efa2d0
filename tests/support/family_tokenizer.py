"""Real, small tokenizers for the template families: byte-level BPE, and one in the manner of SentencePiece.

Built in code, so that nothing is downloaded. The merges make words, and runs of newlines, single tokens:
that is what separate and joint encoding differ in.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_model.testing.template_families import TemplateFamily

_WORDS = [
    *(
        "Ġthe",
        "Ġweather",
        "Ġin",
        "ĠOslo",
        "Oslo",
        "user",
        "assistant",
        "system",
        "tool",
        "function",
        "result",
    ),
    *(
        "Hello",
        "Ġthere",
        "name",
        "arguments",
        "get",
        "weather",
        "time",
        "city",
        "rain",
        "yes",
        "think",
        "text",
    ),
    *("Answer", "ok", "ĊĊ", ".Ċ", "Ġ{", '{"', '"}', '":'),
]


def family_tokenizer(family: TemplateFamily) -> Tokenizer:
    """The tokenizer of a family: its special tokens are single ids, with its own treatment of blanks."""
    return byte_level_tokenizer(family.facts.specials, rstrip=family.rstrip)


def byte_level_tokenizer(specials: Sequence[str], *, rstrip: Sequence[str] = ()) -> Tokenizer:
    vocabulary = {character: i for i, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    for word in _WORDS:
        for end in range(1, len(word)):
            pair = (word[:end], word[end])
            if word[: end + 1] not in vocabulary:
                vocabulary[word[: end + 1]] = len(vocabulary)
            if pair not in merges:
                merges.append(pair)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _add(tokenizer, specials, rstrip)
    return tokenizer


def sentencepiece_tokenizer(specials: Sequence[str], *, prepend_scheme: str = "first") -> Tokenizer:
    """Characters and words with a word-boundary mark, which is put in front of a text that stands alone."""
    characters = [chr(code) for code in range(32, 127)] + ["\n", "▁"]
    pieces = ["<unk>", *dict.fromkeys([*characters, "▁o", "▁ok", "ok", "U", "Us", "User", "▁User"])]
    pairs = [("▁", "o"), ("▁o", "k"), ("o", "k"), ("U", "s"), ("▁", "User")]
    pieces += ["Use"]
    pairs += [("Us", "e"), ("Use", "r")]
    model = models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=pairs, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme, split=False)
    _add(tokenizer, specials, ())
    return tokenizer


def _add(tokenizer: Tokenizer, specials: Sequence[str], rstrip: Sequence[str]) -> None:
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=text in rstrip) for text in specials]
    )


class Codec:
    """A tokenizer as the splice uses one: text to ids and back, special tokens recognised and kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def id_of(self, token: str) -> int:
        number: int = self.tokenizer.token_to_id(token)
        return number
