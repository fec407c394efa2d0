"""Step 9 of the splice: a fragment's ids, as they would come out behind the sampled ids.

Encoding the fragment on its own goes wrong at its left edge: SentencePiece tokenizers put a word-boundary
mark there, special tokens that eat the blanks behind them (Phi-3) do not get to, and white space on both
sides of a seam merges. So it is encoded behind its left neighbour, which is then dropped. Knows an `encode`
function and nothing else of a tokenizer; the sampled ids themselves are never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sglang_model.splice_types import Fragment, FragmentIds, Refusal, RefusalReason, SpecialTokens, SpliceFlag

Encode = Callable[[str], Sequence[int]]
"""Text to ids, special tokens recognised, none added (`add_special_tokens=False`)."""
Decode = Callable[[Sequence[int]], str]
"""Ids to text, special tokens kept, no clean-up of spaces."""

_NEIGHBOURS = ("a", "0", ".")
"""Stand-ins for the unknown end of a cut-off turn; the first that stays a token of its own is used."""


def fragment_token_ids(
    fragment: Fragment,
    encode: Encode,
    *,
    left_id: int | None,
    tokens: SpecialTokens,
    decode: Decode | None = None,
) -> FragmentIds | Refusal:
    """Ids to append to the stored ones. `left_id` is the sampled stop token's id where the fragment has a
    `left`.

    The stop token's text must encode to that id and stay it in front of the fragment, else the ids could
    not be those of a joint encoding. With `decode`, text that does not survive the round trip is flagged
    (Qwen normalises Unicode).
    """
    if fragment.left is None:
        ids = _behind_text(fragment.text, encode, tokens)
        soft = bool(fragment.text) and not tokens.open(fragment.text)
        flags = frozenset({SpliceFlag.SOFT_BOUNDARY}) if soft else frozenset()
    else:
        alone = list(encode(fragment.left))
        behind = _behind(alone, fragment.left, fragment.text, encode)
        if behind is None or alone[-1:] != [left_id]:
            return Refusal(
                RefusalReason.LEFT_TOKEN_NOT_ATOMIC,
                f"the stop token's text encodes to {len(alone)} ids, not to the sampled one",
            )
        ids, flags = behind, frozenset()
    if decode is not None and decode(ids) != fragment.text:
        flags |= {SpliceFlag.LOSSY_TOKENIZATION}
    return FragmentIds(tuple(ids), flags)


def _behind(alone: list[int], left: str, text: str, encode: Encode) -> list[int] | None:
    """The ids of `text` behind `left`, whose own are `alone`, or None where the two do not stay apart."""
    joint = list(encode(left + text))
    return joint[len(alone) :] if alone and joint[: len(alone)] == alone else None


def _behind_text(text: str, encode: Encode, tokens: SpecialTokens) -> list[int]:
    """The ids behind sampled text that was cut off. A special token in front shields the rest from any
    neighbour.
    """
    if not tokens.open(text):
        for neighbour in _NEIGHBOURS:
            ids = _behind(list(encode(neighbour)), neighbour, text, encode)
            if ids is not None:
                return ids
    return list(encode(text))
