"""From the text of one generation to what an agent receives: reasoning, content, tool calls, and a report.

Puts reasoning_split and tool_parsers together: thinking first, then calls in what is left, so that nothing
written while thinking is ever executed. Token ids are not touched here; they are what was sampled, whatever
is shown of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sglang_model.argument_types import DeclaredTools
from sglang_model.reasoning_split import THINK, ReasoningTags, split_reasoning
from sglang_model.tool_formats import tool_format
from sglang_model.tool_formats.segments import ParseStatus, Segment
from sglang_model.tool_parsers import ParseAttempt, ToolCall, collect


@dataclass(frozen=True, slots=True)
class ParsedGeneration:
    """A generation as an agent sees it. `reasoning` is None when nothing was thought, `content` may be empty.

    `report` has one entry per attempted call, in order; those that became calls carry the call's id.
    """

    reasoning: str | None
    content: str
    tool_calls: tuple[ToolCall, ...]
    report: tuple[ParseAttempt, ...]


def visible_text(decoded: str, eos_markers: Sequence[str], matched: str | int | None = None) -> str:
    """The decoded text without what ended it: a matched stop string, then end markers and the newlines
    behind them. White space in front of them was sampled for the answer and stays, as on SGLang's chat.

    `matched` is `finish_reason.matched`: a stop string, from which on the text is cut (the last token may
    reach beyond it); a token id, whose text is expected among the markers; or None. The stop string that
    ended the generation is the last one, together with those that touch it: an earlier one was let pass by
    `min_new_tokens`.
    """
    text = decoded
    if isinstance(matched, str) and matched:
        text = text[: _stop_position(text, matched)]
    markers = [marker for marker in eos_markers if marker]
    end = len(text)
    while True:
        # By position: a policy that samples nothing but end tokens would make each cut a copy of the rest.
        ending = end
        while text.startswith("\n", ending - 1, ending):
            ending -= 1
        marker = next((marker for marker in markers if text.endswith(marker, 0, ending)), None)
        if marker is None:
            return text[:end]
        end = ending - len(marker)


def _stop_position(text: str, stop: str) -> int:
    """Where the stop string begins; the end of the text when it is not there (a stop pattern, a special
    token).
    """
    position = text.rfind(stop)
    if position < 0:
        return len(text)
    while (touching := text.find(stop, max(0, position - len(stop)), position + len(stop) - 1)) >= 0:
        position = touching
    return position


def parse_generation(
    text: str,
    *,
    format_name: str,
    tools: Iterable[object] | None = None,
    tool_choice: object = None,
    parallel_tool_calls: bool | None = None,
    thinking_open: bool | None = None,
    reasoning_tags: ReasoningTags = THINK,
    separate_reasoning: bool = True,
    finished: bool = True,
) -> ParsedGeneration:
    """Parses the visible text of one generation; never raises for what a model wrote.

    `finished` is false when the token budget ended it. `thinking_open` is a fact of the prompt's end
    (reasoning_split.thinking_is_open). With `tool_choice` "none" no calls are looked for. Without
    `separate_reasoning` the thinking stays in the content, tags and all, and is still not executed.
    ConfigError for an unknown format name.
    """
    split = split_reasoning(text, thinking_open=thinking_open, tags=reasoning_tags)
    chosen, declared = tool_format(format_name), DeclaredTools(tools)
    segments, thought = [Segment(split.content)], list[ParseAttempt]()
    if tool_choice != "none":
        segments = chosen.parse(split.content, declared, finished=finished)
        segments = _silence_thinking(segments, reasoning_tags, finished=finished)
        inside = chosen.parse(split.reasoning or "", declared, finished=finished)
        thought = [ParseAttempt(ParseStatus.INSIDE_REASONING, part.raw) for part in inside if part.calls]
    parsed = collect(segments, chosen, declared, parallel_tool_calls=parallel_tool_calls)
    reasoning, content = split.reasoning, parsed.content
    if not separate_reasoning and reasoning is not None:
        reasoning, content = None, f"{split.opening}{reasoning}{split.closing}{content}"
    return ParsedGeneration(reasoning, content, parsed.tool_calls, (*thought, *parsed.report))


def _silence_thinking(segments: Sequence[Segment], tags: ReasoningTags, *, finished: bool) -> list[Segment]:
    """Turns calls inside a later thinking block back into text.

    A block counts if it is closed, or if the budget ended the generation inside it; a tag that a finished
    answer merely mentions does not. A tag inside an argument is the argument's.
    """
    text = "".join(segment.raw for segment in segments)
    silenced: list[Segment] = []
    end, thinking_until = 0, 0
    for segment in segments:
        start, end = end, end + len(segment.raw)
        silenced.append(_as_thought(segment) if start < thinking_until else segment)
        position = max(start, thinking_until)
        while not segment.calls and (opened := text.find(tags.opening, position, end)) >= 0:
            closed = text.find(tags.closing, opened + len(tags.opening))
            if closed < 0:
                rest = segments[len(silenced) :]
                return [*silenced, *(rest if finished else map(_as_thought, rest))]
            position = thinking_until = closed + len(tags.closing)
    return silenced


def _as_thought(segment: Segment) -> Segment:
    return Segment(segment.raw, ParseStatus.INSIDE_REASONING) if segment.calls else segment
