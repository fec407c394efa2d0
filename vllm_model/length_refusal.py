"""What an engine means when it refuses a request for its length: a prompt that cannot fit, or too many new tokens.

The two need opposite answers. A prompt at the limit ends the turn with finish_reason "length"; a budget that is too
large is cut to what fits and sent again. Reading one as the other would end rollouts that have room left, so only a
sentence that is known is believed, only under status 400, and only as the beginning of the engine's own message: an
error may repeat what the caller sent, and a caller must not be able to write such a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from nemo_gym.errors import UpstreamStatusError


@dataclass(frozen=True)
class LengthRefusal:
    """One refusal. `allowed_new_tokens` is None when the prompt itself does not fit, else the budget that would."""

    allowed_new_tokens: int | None = None

    @property
    def prompt_fits(self) -> bool:
        return self.allowed_new_tokens is not None


VLLM_PATTERNS = (
    re.compile(
        r"'max_tokens' or 'max_completion_tokens' is too large: \d+\. This model's maximum context length is "
        r"(?P<limit>\d+) tokens and your request has (?P<prompt>\d+) input tokens"
    ),
    re.compile(
        r"This model's maximum context length is (?P<limit>\d+) tokens.{0,20}However, you requested \d+ tokens "
        r"\((?P<prompt>\d+) in the messages",
        re.DOTALL,
    ),
    re.compile(r"This model's maximum context length is \d+ tokens"),
    re.compile(r"The (decoder |encoder )?prompt \(length \d+\) is longer than the maximum model length"),
)
"""vLLM's and OpenAI's sentences. Named groups give the numbers where the sentence has them."""


def read_length_refusal(
    error: UpstreamStatusError, patterns: Sequence[re.Pattern[str]]
) -> LengthRefusal | None:
    """What the refusal says by the first pattern that matches, or None when it is about something else.

    A pattern's groups: `limit` and `prompt` together (the context and the prompt's length) or `budget` (the number of
    new tokens that is allowed whatever the prompt) mean that too much was asked for. A pattern without groups means
    that the prompt does not fit.
    """
    if error.status != 400:
        return None
    for pattern in patterns:
        match = pattern.match(error.engine_message)
        if match is None:
            continue
        groups = match.groupdict()
        if groups.get("budget"):
            return LengthRefusal(int(groups["budget"]))
        if groups.get("limit") and groups.get("prompt"):
            room = int(groups["limit"]) - int(groups["prompt"])
            return LengthRefusal(room if room > 0 else None)
        return LengthRefusal()
    return None
