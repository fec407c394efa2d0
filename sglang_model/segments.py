"""Where the text of a prompt may be cut so that its pieces, encoded one by one, give the ids of the whole.

A special token usually parts what stands in front of it from what follows, but a tokenizer need not keep to that: added
tokens that take the blanks in front of them along, normalisers that look across, marks that are put in front of every
text. So nothing is believed of a tokenizer: it encodes a few thousand adversarial texts whole and in pieces when it is
loaded, and a token at which one of them differs is not used. Knows a function from texts to ids, and no tokenizer.

Cuts are made in front of a token, never behind it: what follows a token then keeps its neighbour, which is what
SentencePiece's mark at the beginning of a text depends on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, product
from typing import Final

EncodeTexts = Callable[[list[str]], Sequence[Sequence[int]]]
"""Texts to their ids, special tokens recognised, none added."""

Message = Mapping[str, object]

MIN_PIECE: Final = 256
"""Characters. Shorter pieces would cost more to look up than to encode, and a text of nothing but special tokens
would have a hundred thousand."""

MAX_TOKENS: Final = 4
"""The tokens that a template writes oftenest begin and end its messages; cutting at more of them gains nothing."""

COMMON_EDGES: Final = ("", "a", "7", ".", " ", "\n", "\u0301", "the answer")
EDGES: Final = (
    *COMMON_EDGES,
    *("Z", ",", "'s", "-", "_", "/", "é", "世", "🚀", "▁", "Ġ", "<", ">", "|", "{", "don't 12345"),
    *("  ", "\t", "\n\n", " \n", "\n ", "\r\n", ".\n", "a ", " a", "\n\na", "\u00a0", "\u2003", "\u3000"),
    *("e\u0301", "\u0338", "\u093f", "\ufe0f", "\u200d", "\u200b", "\ufeff", "\u0000"),
    *("\ufb01", "\u212b", "①", "\u1100\u1161", "\u0131", "İ", "ẞ", "👩\u200d🚀", "🇳"),
)
"""What stands in front of a cut token and behind it, every one with the common ones: blanks, letters, digits,
punctuation, combining marks, Unicode that normalisers rewrite, and what is special to one kind of tokenizer."""


class Cuts:
    """The tokens in front of which texts are cut. Immutable; without tokens every text is one piece."""

    def __init__(self, tokens: Iterable[str] = (), *, min_piece: int = MIN_PIECE) -> None:
        self.tokens = tuple(tokens)
        self._min_piece = min_piece
        self._pattern = re.compile("|".join(map(re.escape, self.tokens))) if self.tokens else None

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text in order, none of them empty; all but the last have the least length at least."""
        if self._pattern is None or len(text) <= self._min_piece:
            return [text] if text else []
        pieces, begin = [], 0
        for found in self._pattern.finditer(text, self._min_piece):
            if found.start() - begin >= self._min_piece:
                pieces.append(text[begin : found.start()])
                begin = found.start()
        pieces.append(text[begin:])
        return pieces


def find_cuts(
    added: Sequence[str], render: Callable[[tuple[Message, ...]], str | None], encode: EncodeTexts
) -> Cuts:
    """The cuts that are proved for a tokenizer with these added tokens and a chat template, `render`."""
    plain = [text for messages in plain_conversations() if (text := render(messages)) is not None]
    odd = [text for messages in odd_conversations(added) if (text := render(messages)) is not None]
    return proved_cuts(encode, candidates(added, plain), [*plain, *odd])


def candidates(added: Iterable[str], renderings: Sequence[str]) -> list[str]:
    """The added tokens that a chat template writes oftenest and that no other added token can hide.

    Within a text that overlaps with no other token and not with itself, every occurrence is the token: then a search
    for it finds what the tokenizer finds.
    """
    tokens = [token for token in dict.fromkeys(added) if token]
    counts = {token: sum(text.count(token) for text in renderings) for token in tokens}
    written = sorted((token for token in tokens if counts[token]), key=lambda token: -counts[token])
    alone = (token for token in written if not any(_overlap(token, other) for other in tokens))
    return list(islice(alone, MAX_TOKENS))


def proved_cuts(encode: EncodeTexts, tokens: Sequence[str], renderings: Sequence[str]) -> Cuts:
    """The cuts at those tokens for which no probe text differed, and that together cut the renderings rightly."""
    probes = {token: _probes(token, tokens) for token in tokens}
    alone = _encoded(encode, (text for pairs in probes.values() for pair in pairs for text in pair))
    whole = _encoded(encode, (left + right for pairs in probes.values() for left, right in pairs))
    proved = [
        token
        for token, pairs in probes.items()
        if all(whole[left + right] == alone[left] + alone[right] for left, right in pairs)
    ]
    long_probe = "".join(edge + token for token in proved for edge in EDGES)
    together = Cuts(proved, min_piece=1)
    for text in (long_probe, *renderings):
        pieces = together.pieces(text)
        ids = _encoded(encode, [text, *pieces])
        if ids[text] != [token_id for piece in pieces for token_id in ids[piece]]:
            return Cuts()
    return Cuts(proved)


def plain_conversations() -> list[tuple[Message, ...]]:
    """Conversations without special tokens of their own: those in a rendering, the chat template writes."""
    call = {"id": "probecal1", "type": "function", "function": {"name": "look", "arguments": {"q": "c"}}}
    plain = (_said("user", "a"), _said("assistant", "b"), _said("user", "c"))
    return [
        plain,
        (_said("system", "s"), *plain),
        (
            _said("user", "a"),
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "probecal1", "name": "look", "content": "d"},
        ),
    ]


def odd_conversations(added: Iterable[str]) -> list[tuple[Message, ...]]:
    """Conversations full of odd texts and of texts that spell special tokens."""
    odd = "".join(EDGES)
    return [
        (_said("user", f" {odd}\n"), _said("assistant", f"{odd} "), _said("user", " ".join(added))),
        tuple(_said("assistant" if n % 2 else "user", edge) for n, edge in enumerate(EDGES)),
    ]


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def _probes(token: str, tokens: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of texts; the second begins with the token."""
    spelled = (token[:-1], token[1:], token[: len(token) // 2], token.upper())
    edges = dict.fromkeys((*EDGES, *tokens, *(f"{other} " for other in tokens), *spelled))
    common = dict.fromkeys((*COMMON_EDGES, *tokens))
    pairs = dict.fromkeys([*product(edges, common), *product(common, edges)])
    return [(left, token + right) for left, right in pairs]


def _encoded(encode: EncodeTexts, texts: Iterable[str]) -> dict[str, list[int]]:
    distinct = list(dict.fromkeys(texts))
    return dict(zip(distinct, map(list, encode(distinct)), strict=True))


def _overlap(token: str, other: str) -> bool:
    """Whether an occurrence of `token` may be part of `other`'s, or share characters with it."""
    if token != other and (token in other or other in token):
        return True
    shorter = min(len(token), len(other))
    return any(
        token[:size] == other[-size:] or token[-size:] == other[:size]
        for size in range(1, shorter + (token != other))
    )
