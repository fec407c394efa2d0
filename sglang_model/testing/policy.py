"""What the model "says": scripted rules first, a seeded pseudo-random sampler otherwise.

Pure and deterministic. A logprob is a function of everything before the token: the same sequence always
scores the same, and one changed, dropped or added prompt id changes every logprob after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sglang_model.testing.misbehaviour import Misbehaviour
from sglang_model.testing.sampling import SamplingParams
from sglang_model.testing.tokenizer import EngineTokenizer

_MASK = (1 << 64) - 1
_EOS_CHANCE = 12
"""One sampled token in so many ends a free-running generation, so that it ends by itself."""


class Rule(BaseModel):
    """One line of the script: when the prompt matches, the model samples exactly this.

    Rules are tried in order and the first match wins. With neither `reply` nor `ids` the sampler speaks,
    which is for rules that only misbehave.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    when: str = ""
    """Regex, searched in the decoded prompt with its special tokens; `.` matches newlines."""
    reply: str | None = None
    """The text that is sampled, in the tokenizer's canonical encoding."""
    ids: tuple[int, ...] | None = None
    """The ids that are sampled; they need not be an encoding that the tokenizer would choose."""
    eos: bool = True
    """Whether the end-of-turn token is sampled after them."""
    times: int | None = Field(default=None, ge=1)
    """The first `times` matches only; later requests go on to the next rules. None is always."""
    misbehave: Misbehaviour | None = None

    @model_validator(mode="after")
    def _check(self) -> Rule:
        if self.reply is not None and self.ids is not None:
            raise ValueError("a rule has `reply` or `ids`, not both")
        try:
            re.compile(self.when)
        except re.error as error:
            raise ValueError(f"`when` is not a regex: {error}") from error
        return self


class Context:
    """A running hash of every id so far, in order: one id more, fewer or different gives another state."""

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self.state = 0x9E3779B97F4A7C15
        for token_id in ids:
            self.push(token_id)

    def push(self, token_id: int) -> None:
        self.state = ((self.state ^ (token_id + 1)) * 0x100000001B3 + 0x632BE5AB) & _MASK

    def draw(self, *salt: int) -> int:
        """A well-mixed number of 64 bits that depends on the context and the salt."""
        value = self.state
        for part in salt:
            value = ((value ^ (part & _MASK)) * 0xBF58476D1CE4E5B9) & _MASK
            value ^= value >> 29
        value = (value * 0x94D049BB133111EB) & _MASK
        return value ^ (value >> 31)

    def logprob(self, token_id: int) -> float:
        """Finite, in (-8, 0], and a dyadic fraction, so that it survives JSON exactly."""
        return -(self.draw(token_id, 1) % 4096) / 512.0


class Policy:
    """Chooses the next token. Holds the rules, which may change at any time, and their uses."""

    def __init__(self, rules: Iterable[Rule], tokenizer: EngineTokenizer, seed: int) -> None:
        self.rules: list[Rule] = list(rules)
        self._tokenizer = tokenizer
        self._seed = seed
        self._used: dict[int, tuple[Rule, int]] = {}

    def rule_for(self, prompt_ids: Sequence[int]) -> Rule | None:
        """The first rule that matches; counts the use of a rule with `times`."""
        if not self.rules:
            return None
        prompt = self._tokenizer.decode(prompt_ids)
        for rule in self.rules:
            _, used = self._used.get(id(rule), (rule, 0))
            if rule.times is not None and used >= rule.times:
                continue
            if re.search(rule.when, prompt, re.DOTALL):
                self._used[id(rule)] = (rule, used + 1)
                return rule
        return None

    def script(self, rule: Rule | None) -> list[int] | None:
        """The ids that `rule` dictates, or None when the sampler is to speak."""
        if rule is None or (rule.reply is None and rule.ids is None):
            return None
        ids = list(rule.ids) if rule.ids is not None else self._tokenizer.encode(rule.reply or "")
        return [*ids, self._tokenizer.eos_token_id] if rule.eos else ids

    def next_token(
        self,
        script: list[int] | None,
        position: int,
        context: Context,
        params: SamplingParams,
        choice: int,
    ) -> int:
        """The token at `position` of the generation; past the end of a script it is a space, without end."""
        if script is not None:
            return script[position] if position < len(script) else self._tokenizer.encode(" ")[0]
        salt = self._salt(params, choice)
        roll = context.draw(*salt, 2)
        if position >= max(params.min_new_tokens, 1) and roll % _EOS_CHANCE == 0:
            return self._tokenizer.eos_token_id
        ordinary = self._tokenizer.ordinary_ids
        return ordinary[(roll >> 8) % len(ordinary)]

    def _salt(self, params: SamplingParams, choice: int) -> tuple[int, ...]:
        """Greedy sampling sees the context alone; else the seed and the distribution count."""
        if params.temperature == 0 or params.top_k == 1:
            return (self._seed,)
        seed = params.sampling_seed if params.sampling_seed is not None else self._seed
        numbers = (
            params.temperature,
            params.top_p,
            params.top_k,
            params.min_p,
            params.frequency_penalty,
            params.presence_penalty,
            params.repetition_penalty,
        )
        return (seed, choice, *(int(number * 1_000_000) for number in numbers))
