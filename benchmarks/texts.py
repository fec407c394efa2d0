"""The words that prompts are made of, and how many of them make a prompt of so many tokens.

No data is downloaded: a vocabulary of common English words, invented words and numbers is made in code, always the
same. Two texts drawn from it share no sentence. Knows no tokenizer; the ratio is measured elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from random import Random

_FREQUENT = """
the a of and to in is it for on with as at by from this that be are was not or an if then when while each every one two
three first last next new old same other some any all more less than into over under between before after file line
value name list table key number step result error test check run read write find make take give keep send call return
open close start stop wait move copy search change answer question reason because therefore user server client message
request token model tool agent turn prompt reply session history engine trainer rollout reward policy batch sample
window length order index path folder branch commit patch review build deploy report city river market harbour winter
summer morning evening letter paper garden kitchen station bridge island mountain
"""
_ONSETS = (
    "b",
    "br",
    "c",
    "ch",
    "d",
    "dr",
    "f",
    "g",
    "gl",
    "h",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
)
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ou")
_CODAS = ("", "", "l", "m", "n", "nd", "r", "rk", "s", "st", "t", "x")
_INVENTED = 1500
_NUMBERS = 300


@cache
def vocabulary() -> tuple[str, ...]:
    """All words, the most frequent first: half of a text is common words, as in prose."""
    random = Random(20)
    invented: dict[str, None] = {}
    while len(invented) < _INVENTED:
        syllables = random.choices(("", "_"), weights=(9, 1))[0].join(
            random.choice(_ONSETS) + random.choice(_VOWELS) + random.choice(_CODAS)
            for _ in range(random.randint(1, 3))
        )
        invented[syllables] = None
    numbers = [str(random.randint(0, 10 ** random.randint(1, 6))) for _ in range(_NUMBERS)]
    rare = [*invented, *numbers]
    random.shuffle(rare)
    return (*_FREQUENT.split(), *rare)


@cache
def _cumulative_weights() -> tuple[float, ...]:
    """Zipf's law: the word of rank r comes with a frequency of 1 / (r + 5)."""
    return tuple(accumulate(1 / (rank + 5) for rank in range(len(vocabulary()))))


@dataclass(frozen=True)
class Texts:
    """Draws texts of about so many tokens; `tokens_per_word` is that of the tokenizer in use."""

    tokens_per_word: float
    words: tuple[str, ...] = field(default_factory=vocabulary)

    def draw(self, tokens: int, random: Random) -> str:
        """A text of about `tokens` tokens that nobody has seen before, and so no cache of texts can know."""
        count = max(1, round(tokens / self.tokens_per_word))
        return " ".join(random.choices(self.words, cum_weights=_cumulative_weights(), k=count))
