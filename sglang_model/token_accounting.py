"""The promise of this server as arithmetic: does each prompt begin with everything that was seen and sampled before it?

    prompt_token_ids[n+1][: len(P) + len(G)] == P + G        with P, G = prompt and generation ids of turn n

Pure; used by the demo, and by anyone who wants to check a rollout that was written to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from nemo_gym.token_metadata import LogProbs, TokenIds


@dataclass(frozen=True)
class TurnTokens:
    """The token triple of one turn, aligned: a logprob for each sampled id."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs

    @classmethod
    def of_output_item(cls, item: dict[str, object]) -> TurnTokens:
        """The triple on the last output item of a turn. Raises ValueError when a part is missing or misaligned."""
        triple = cls(
            TokenIds.checked(item.get("prompt_token_ids"), "prompt_token_ids"),
            TokenIds.checked(item.get("generation_token_ids"), "generation_token_ids"),
            LogProbs.checked(item.get("generation_log_probs"), "generation_log_probs"),
        )
        ids, logprobs = len(triple.generation_token_ids), len(triple.generation_log_probs)
        if ids != logprobs:
            raise ValueError(f"{ids} sampled ids but {logprobs} logprobs")
        return triple


@dataclass(frozen=True)
class PrefixCheck:
    """Whether the next prompt extends prompt + generation; `first_difference` is a position in that sequence."""

    seen_tokens: int
    next_prompt_tokens: int
    first_difference: int | None

    @property
    def holds(self) -> bool:
        return self.first_difference is None


def check_prefix(turn: TurnTokens, following: TurnTokens) -> PrefixCheck:
    seen = [*turn.prompt_token_ids, *turn.generation_token_ids]
    prompt = following.prompt_token_ids
    first = next((i for i, (a, b) in enumerate(zip(seen, prompt, strict=False)) if a != b), None)
    if first is None and len(prompt) < len(seen):
        first = len(prompt)
    return PrefixCheck(len(seen), len(prompt), first)


def check_rollout(turns: Sequence[TurnTokens]) -> list[PrefixCheck]:
    """One check for each pair of consecutive turns."""
    return [check_prefix(turn, following) for turn, following in pairwise(turns)]
