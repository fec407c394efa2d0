"""How long a prompt and its generation may be: the three refusals, the clamps and the two truncations of
SGLang.

The context window C leaves C - 6 tokens for the prompt (0.5.12 .. 0.5.23). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_model.testing.sampling import WireValueError
from sglang_model.testing.settings import EngineSettings

_RESERVED = 6


@dataclass(frozen=True, slots=True)
class Window:
    """What the limits left of one request: `echoed` is what the server reports, `seen` what the model gets.

    They differ only under allow_auto_truncate, where the echo is taken between the two cuts.
    """

    echoed: list[int]
    seen: list[int]
    budget: int


def pool_size(settings: EngineSettings) -> int:
    return settings.max_total_num_tokens or 4 * settings.context_length


def max_input_length(settings: EngineSettings) -> int:
    """A prompt must be shorter than this."""
    return min(settings.context_length, pool_size(settings)) - _RESERVED


def fit(prompt_ids: Sequence[int], max_new_tokens: int | None, settings: EngineSettings) -> Window:
    """The window of one request. Raises WireValueError, in one of SGLang's three wordings, without room."""
    context = settings.context_length
    echoed = list(prompt_ids)
    wanted = max_new_tokens
    if len(echoed) >= context:
        if not settings.allow_auto_truncate:
            raise WireValueError(
                f"The input ({len(echoed)} tokens) is longer than the model's context length "
                f"({context} tokens)."
            )
        echoed = echoed[:context]
    if wanted is not None and wanted + len(echoed) > context:
        if not settings.allow_auto_truncate:
            raise WireValueError(
                f"Requested token count exceeds the model's maximum context length of {context} tokens. "
                f"You requested a total of {wanted + len(echoed)} tokens: {len(echoed)} tokens from the "
                f"input messages and {wanted} tokens for the completion. Please reduce the number of tokens "
                "in the input messages or the completion to fit within the limit."
            )
        wanted = max(0, context - len(echoed))
    limit = max_input_length(settings)
    seen = echoed
    if len(echoed) >= limit:
        if not settings.allow_auto_truncate:
            raise WireValueError(
                f"Input length ({len(echoed)} tokens) exceeds the maximum allowed length ({limit} tokens). "
                "Use a shorter input or enable --allow-auto-truncate."
            )
        seen = echoed[:limit]
    room = max(0, min(context, pool_size(settings)) - 1 - len(echoed) - 1)
    return Window(echoed, seen, room if wanted is None else min(wanted, room))
