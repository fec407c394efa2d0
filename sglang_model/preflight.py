"""What an engine's own settings say about the turns to come. Pure.

The settings are those of GET /server_info, SGLang 0.5.12 to 0.5.23.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sglang_model.wire import MINIMUM_CHAT_VERSION

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class Preflight:
    """`refusals` make every turn fail or lie; `warnings` may be meant."""

    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_engine_settings(
    info: Mapping[str, object], *, needs_chat_ids: bool, parses_on_engine: bool, uses_reasoning_parser: bool
) -> Preflight:
    """What speaks against using this engine."""
    refusals, warnings = [], []
    version = info.get("version")
    if needs_chat_ids and isinstance(version, str) and _older(version, MINIMUM_CHAT_VERSION):
        refusals.append(
            f"it is SGLang {version}, and transport: chat with token ids needs >= {MINIMUM_CHAT_VERSION}; use "
            "transport: generate"
        )
    if info.get("allow_auto_truncate") is True:
        refusals.append("it was started with --allow-auto-truncate, which cuts prompts; start it without")
    if parses_on_engine:
        has_parser = bool(info.get("reasoning_parser"))
        if uses_reasoning_parser and not has_parser:
            warnings.append("it has no --reasoning-parser, which uses_reasoning_parser: true expects")
        if has_parser and not uses_reasoning_parser:
            warnings.append("its --reasoning-parser makes turns that uses_reasoning_parser: false refuses")
        if not info.get("tool_call_parser"):
            warnings.append("it has no --tool-call-parser: tool calls stay in the text")
    return Preflight(tuple(refusals), tuple(warnings))


def _older(version: str, minimum: str) -> bool:
    found, wanted = _VERSION.match(version), _VERSION.match(minimum)
    if found is None or wanted is None:
        return False
    return [int(part) for part in found.groups()] < [int(part) for part in wanted.groups()]
