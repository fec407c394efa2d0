"""hermes (Hermes, Qwen2.5, Qwen3): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, newlines or
not.
"""

from __future__ import annotations

from sglang_model.argument_types import DeclaredTools
from sglang_model.tool_formats.json_blocks import parse_json_blocks
from sglang_model.tool_formats.segments import Segment


def parse_hermes(text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]:  # noqa: ARG001
    """Calls carry their own JSON types, so the tools' schemas are not needed."""
    return parse_json_blocks(text, "<tool_call>", "</tool_call>", finished=finished)
