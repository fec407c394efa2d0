"""Token lists that notice when somebody looks at their elements, and a triple to put on messages and items.

Their length may be asked for: that costs nothing.
"""

from __future__ import annotations

from typing import NoReturn

from nemo_gym.token_metadata import LogProbs, TokenIds


def _touched(*_: object) -> NoReturn:
    raise AssertionError("the elements of a checked list were looked at again")


class UntouchableIds(TokenIds):
    __iter__ = _touched
    __getitem__ = _touched  # type: ignore[assignment]


class UntouchableLogProbs(LogProbs):
    __iter__ = _touched
    __getitem__ = _touched  # type: ignore[assignment]


def untouchable_triple() -> dict[str, object]:
    return {
        "prompt_token_ids": UntouchableIds([1, 2]),
        "generation_token_ids": UntouchableIds([3]),
        "generation_log_probs": UntouchableLogProbs([-0.5]),
    }


def triple(generated: int) -> dict[str, object]:
    """A token triple that can be told from others by the one id that was sampled."""
    return {"prompt_token_ids": [1, 2], "generation_token_ids": [generated], "generation_log_probs": [-0.5]}
