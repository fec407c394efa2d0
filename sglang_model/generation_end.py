"""How a generation ended, read from what the engine says of it and from the sampled ids. Pure.

The splice needs to know whether the last sampled id is the token that ended the turn. The engine's word is not enough:
SGLang's chat forgets the matched stop after a tool parse (finish_reason "tool_calls", matched null), and before 0.5.23
an end token exactly on the last token of the budget counts as "length".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sglang_model.splice_types import EndKind
from sglang_model.wire import finish_type


@dataclass(frozen=True)
class EngineFinish:
    """What the engine says: its word for the end, and what matched (a token id, a stop string, or nothing)."""

    kind: str
    matched: int | str | None = None

    @classmethod
    def of(cls, answer: Mapping[str, object]) -> EngineFinish:
        """From a chat choice or a `/generate` answer; a missing word reads "stop", as SGLang's own clients take it."""
        meta = answer.get("meta_info")
        in_meta = meta.get("finish_reason") if isinstance(meta, Mapping) else None
        matched = in_meta.get("matched") if isinstance(in_meta, Mapping) else None
        if matched is None:
            matched = answer.get("matched_stop")
        kind = finish_type(in_meta) or finish_type(answer.get("finish_reason")) or "stop"
        return cls(kind, matched if type(matched) in (int, str) else None)  # type: ignore[arg-type]


def stop_token_id(
    finish: EngineFinish,
    generation_token_ids: Sequence[int],
    known_stops: Collection[int],
    *,
    stop_strings: bool,
) -> int | None:
    """The sampled token that ended the turn, or None when it ended otherwise. Of the ids only the last is looked at.

    `stop_strings` says whether the request had any: only then may a stop of which nothing is known be a string.
    """
    if not generation_token_ids:
        return None
    last = generation_token_ids[-1]
    if isinstance(finish.matched, str):
        return None
    if last == finish.matched or last in known_stops:
        return last
    if finish.kind in ("stop", "tool_calls") and finish.matched is None and not stop_strings:
        # The tool parser made the engine forget what matched; nothing but a stop token can have ended the turn.
        return last
    return None


def end_kind(finish: str, stop_token_id: int | None) -> EndKind:
    """The splice's word for a stored turn's end."""
    if stop_token_id is not None:
        return EndKind.STOP_TOKEN
    if finish == "length":
        return EndKind.LENGTH
    return EndKind.STOP_STRING
