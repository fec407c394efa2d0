"""The did-you-mean of every message about a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from nemo_gym.config_tree import SettingPath, dotted

_CUTOFF = 0.7


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is most likely meant, or None when none is near enough to be worth saying."""
    matches = get_close_matches(word, list(candidates), n=1, cutoff=_CUTOFF)
    return matches[0] if matches else None


def did_you_mean(word: str, candidates: Iterable[str], *, prefix: SettingPath = ()) -> str:
    """`; did you mean <candidate>?`, or nothing."""
    match = closest(word, candidates)
    return f"; did you mean {dotted((*prefix, match))}?" if match is not None else ""
