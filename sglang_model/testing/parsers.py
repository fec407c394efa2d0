"""The server's own reasoning and tool-call parsers, as each version shows them on chat. Pure.

Facts: the captured chat_tool_* responses of 0.5.13 and 0.5.23.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sglang_model.testing.versions import WireVersion

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
TOOL_OPEN = "<tool_call>"

REPORTED_PARSER = {"qwen25": "qwen"}
"""Aliases that /server_info resolves."""
_TOOL_PATTERNS = {
    "qwen": ("<tool_call>\n", re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)),
    "hermes": ("<tool_call>", re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)),
}
_REASONING_PARSERS = {"qwen3": False, "qwen3-thinking": True, "deepseek-r1": True}
"""Name -> whether it takes everything before the first `</think>` for reasoning, asked or not."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that was parsed. `tool_index` is the tool's position in the request."""

    tool_index: int
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolParse:
    """What the tool parser made of a text. `calls` None: no markup; empty: markup, but no call in it."""

    text: str
    calls: list[ToolCall] | None


def knows_tool_parser(name: str) -> bool:
    return REPORTED_PARSER.get(name, name) in _TOOL_PATTERNS


def knows_reasoning_parser(name: str) -> bool:
    return name in _REASONING_PARSERS


def reasons_by_default(name: str, *, enable_thinking: object) -> bool:
    """Whether a reply without tags is all reasoning: so for qwen3 unless `enable_thinking` is false."""
    return _REASONING_PARSERS[name] or enable_thinking is not False


def split_reasoning(text: str, version: WireVersion, *, forced: bool, before: str = "") -> tuple[str, str]:
    """(reasoning, rest) of a whole reply. `before` is the text of a continued final message."""
    reasoning = (forced or THINK_OPEN in before) and THINK_CLOSE not in before
    if not reasoning and THINK_OPEN not in text:
        return "", text
    if version.strips_text:
        text = text.replace(THINK_OPEN, "").strip()
    while text.startswith(THINK_OPEN):
        text = text[len(THINK_OPEN) :]
    thought, close, rest = text.partition(THINK_CLOSE)
    if close:
        return thought, rest.strip() if version.strips_text else rest
    if THINK_CLOSE in before:
        return "", text
    if version.tool_ends_reasoning and TOOL_OPEN in text:
        at = text.index(TOOL_OPEN)
        return text[:at], text[at:]
    return text, ""


def parse_tool_calls(text: str, tool_names: Sequence[str], parser: str, version: WireVersion) -> ToolParse:
    """The calls in `text`. A call that is not JSON, or of a tool that was not offered, is dropped."""
    opening, pattern = _TOOL_PATTERNS[REPORTED_PARSER.get(parser, parser)]
    if opening not in text:
        return ToolParse(text, None)
    calls: list[ToolCall] = []
    for match in pattern.finditer(text):
        try:
            calls.extend(_calls_in(json.loads(match.group(1).strip()), tool_names))
        except json.JSONDecodeError:
            if parser == "hermes":
                # SGLang's hermes parser gives the whole reply up at the first broken block.
                return ToolParse(text, [])
    if calls or version.drops_tool_markup:
        return ToolParse(text[: text.index(opening)].strip(), calls)
    return ToolParse(text, calls)


def _calls_in(block: object, tool_names: Sequence[str]) -> list[ToolCall]:
    calls = []
    for item in block if isinstance(block, list) else [block]:
        if not isinstance(item, dict):
            continue
        name = item.get("name")
        if not isinstance(name, str) or name not in tool_names:
            continue
        arguments = item.get("parameters") or item.get("arguments", {})
        text = json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(tool_names.index(name), name, text))
    return calls
