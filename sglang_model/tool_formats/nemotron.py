"""nemotron (Nemotron Nano v2): `<TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>`.

SGLang has no parser for it in any version up to 0.5.23, so on the chat transport these calls stay text.
"""

from __future__ import annotations

from sglang_model.argument_types import DeclaredTools
from sglang_model.tool_formats.json_blocks import parse_json_blocks
from sglang_model.tool_formats.segments import Segment


def parse_nemotron(text: str, tools: DeclaredTools, *, finished: bool) -> list[Segment]:  # noqa: ARG001
    """Calls carry their own JSON types, so the tools' schemas are not needed."""
    return parse_json_blocks(text, "<TOOLCALL>", "</TOOLCALL>", finished=finished)
