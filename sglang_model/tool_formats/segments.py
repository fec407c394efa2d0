"""What a format's parser hands back: the sampled text cut into stretches, each plain text or an attempted
call.

The invariant that lets nothing vanish: the `raw` of all segments, joined, is the text that was parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sglang_model.argument_types import DeclaredTools


class ParseStatus(StrEnum):
    """How an attempted call ended. The first three became calls; the others stay in the content, word for
    word.
    """

    OK = "ok"
    UNKNOWN_TOOL = "unknown_tool"
    """The name is none of the request's tools. Kept, so that the agent can say that there is no such tool."""
    SECOND_CALL = "second_call"
    """The request said `parallel_tool_calls: false`, and this is not the first call of the turn."""
    INVALID_JSON = "invalid_json"
    INVALID_MARKUP = "invalid_markup"
    """Tags in an order that the format does not have, or text where only tags may stand."""
    UNCLOSED_BLOCK = "unclosed_block"
    """The block does not end: the budget was used up inside it, or the model moved on."""
    MISSING_NAME = "missing_name"
    NOT_AN_OBJECT = "not_an_object"
    """Valid JSON, but no call: a call is an object."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments are not a JSON object, nor a string that holds one."""
    INSIDE_REASONING = "inside_reasoning"
    """A well-formed call in the middle of thinking: thought about, not made."""


@dataclass(frozen=True, slots=True)
class SampledCall:
    """A call as sampled. `arguments` is the strict JSON of an object; `call_id` only if the format samples
    one.
    """

    name: str
    arguments: str
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the text. No status: plain text. Status OK: exactly the `calls`. Other status: a failed
    attempt.

    `repaired` says that the calls were read although a tag of the block was missing.
    """

    raw: str
    status: ParseStatus | None = None
    calls: tuple[SampledCall, ...] = ()
    repaired: bool = False


class SegmentParser(Protocol):
    """Cuts a text into segments; never raises.

    `finished` is false when the token budget ended the generation: a block that lacks its end is then a
    torso, while a model that stopped by itself (or was stopped by its own closing tag) has merely left the
    tag out.
    """

    def __call__(self, text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]: ...
