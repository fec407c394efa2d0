"""Where a generation's thinking ends and its answer begins.

Whether thinking is open when sampling starts is a fact of the prompt: the template put the opening tag
there or did not. It is never guessed from the sampled text. Knows nothing about tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """The tags around thinking."""

    opening: str
    closing: str


THINK = ReasoningTags("<think>", "</think>")

REASONING_TAGS: Mapping[str, ReasoningTags] = MappingProxyType(
    {
        "think": THINK,
        "mistral": ReasoningTags("[THINK]", "[/THINK]"),
        "kimi": ReasoningTags("◁think▷", "◁/think▷"),
        "cohere_command4": ReasoningTags("<|START_THINKING|>", "<|END_THINKING|>"),
        "apertus2509": ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
        "seed_oss": ReasoningTags("<seed:think>", "</seed:think>"),
    }
)
"""By the name of SGLang's --reasoning-parser, but `think` for the many that use <think> (SGLang 0.5.13)."""


@dataclass(frozen=True, slots=True)
class ReasoningSplit:
    """A text in four parts; joined in this order they are the text again.

    `opening` is the sampled opening tag with the whitespace before it, empty if none was sampled.
    `reasoning` is None when nothing was thought, and may be empty. `closing` is empty when thinking has no
    end.
    """

    opening: str
    reasoning: str | None
    closing: str
    content: str


def thinking_is_open(prompt_tail: str, tags: ReasoningTags = THINK) -> bool:
    """Whether a prompt ends with an opening tag, so that the first sampled token is thinking.

    Only whitespace may follow the tag: one further up belongs to a message. A prompt that ends in a
    half-written turn of the assistant is for the caller to judge.
    """
    return prompt_tail.rstrip().endswith(tags.opening)


def split_reasoning(text: str, *, thinking_open: bool | None, tags: ReasoningTags = THINK) -> ReasoningSplit:
    """Splits a sampled text at the end of its thinking, whitespace verbatim.

    An opening tag at the very beginning is the opener, also if the prompt has one already (Qwen3.5); a
    later one is text. The first closing tag ends the thinking. Without it all of an open thinking is
    reasoning, however the generation ended. With nothing open, all is content. `thinking_open` None is for
    callers that cannot know: a closing tag without an opener then ends a thinking that the prompt must have
    opened.
    """
    body = text.lstrip()
    opening = ""
    if body.startswith(tags.opening):
        opening = text[: len(text) - len(body) + len(tags.opening)]
        thinking_open = True
    before, closing, after = text[len(opening) :].partition(tags.closing)
    if thinking_open is None:
        thinking_open = bool(closing)
    if not thinking_open:
        return ReasoningSplit("", None, "", text)
    return ReasoningSplit(opening, before, closing, after)
