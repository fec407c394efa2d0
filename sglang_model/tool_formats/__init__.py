"""The formats in which models write tool calls: one file each, one row each in `TOOL_FORMATS`.

A format cuts a sampled text into segments (segments.py) and knows nothing of what becomes of them: ids,
unknown tools and the content are handled in one place for all, sglang_model/tool_parsers.py. A new format
is one file and one row.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nemo_gym.errors import ConfigError
from sglang_model.tool_formats.glm45 import parse_glm45
from sglang_model.tool_formats.hermes import parse_hermes
from sglang_model.tool_formats.llama3_json import parse_llama3_json
from sglang_model.tool_formats.mistral import new_mistral_call_id, parse_mistral
from sglang_model.tool_formats.nemotron import parse_nemotron
from sglang_model.tool_formats.qwen3_coder import parse_qwen3_coder
from sglang_model.tool_formats.segments import SegmentParser


def new_call_id(sampled: str | None) -> str:  # noqa: ARG001
    """`call_` and 32 hexadecimal digits. An id that the model made up is not taken: it need not be unique."""
    return f"call_{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A row: how to parse, and how to name a call (given the id that the model sampled, if any)."""

    parse: SegmentParser
    new_call_id: Callable[[str | None], str] = new_call_id


TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {
        "hermes": ToolFormat(parse_hermes),
        "qwen25": ToolFormat(parse_hermes),
        "qwen3_coder": ToolFormat(parse_qwen3_coder),
        "llama3_json": ToolFormat(parse_llama3_json),
        "llama3": ToolFormat(parse_llama3_json),
        "glm45": ToolFormat(parse_glm45),
        "glm47": ToolFormat(parse_glm45),
        "mistral": ToolFormat(parse_mistral, new_mistral_call_id),
        "nemotron": ToolFormat(parse_nemotron),
    }
)
"""By name; the second names are what SGLang's --tool-call-parser calls the same format."""


def tool_format(name: str) -> ToolFormat:
    """The format of this name; ConfigError, naming the key and the choices, when there is none."""
    try:
        return TOOL_FORMATS[name]
    except KeyError:
        choices = ", ".join(sorted(TOOL_FORMATS))
        raise ConfigError(
            f"sglang_tool_format is {name!r}; expected one of {choices}", param="sglang_tool_format"
        ) from None
