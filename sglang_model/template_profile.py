"""What a chat template can do, as found out by running it once at start-up, and the same as text for a
person.

Plain data; `template_probe` makes it. It replaces what an operator would otherwise configure by hand and
get wrong: the form of messages, the end of turns, and which continuations can be spliced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sglang_model.message_forms import EmptyContent, MessageForms
from sglang_model.splice_types import RefusalReason, SpliceFlag


class TurnKind(Enum):
    """Templates may end the two kinds of assistant turns with different tokens."""

    TEXT = "text"
    CALL = "tool call"


class RoleSupport(Enum):
    """What becomes of a message of some role behind an assistant turn."""

    SHOWN = "shown"
    DROPPED = "left out"
    HOISTED = "moved in front"
    REJECTED = "rejected"


class ReasoningSupport(Enum):
    """What becomes of the `reasoning_content` of earlier assistant turns."""

    KEPT = "kept"
    """Shown for all turns."""
    STRIPPED = "kept until the next user message"
    """Shown between tool calls, removed once the user speaks again: full rendering breaks the prefix there.
    """
    IGNORED = "not shown"


@dataclass(frozen=True)
class TurnEnd:
    """How the template ends a turn: `marker` is the token, `suffix` the text from it to the next turn's
    header.
    """

    marker: str
    suffix: str


@dataclass(frozen=True)
class SpliceCheck:
    """Whether a kind of continuation can be spliced behind the stop token that suits it best."""

    stop_token: str | None
    flags: frozenset[SpliceFlag] = frozenset()
    refusal: RefusalReason | None = None
    detail: str = ""


@dataclass(frozen=True)
class TemplateProfile:
    """A template under one set of template arguments.

    `turn_ends` holds None for a kind of turn that the template does not end with a token of its own (in GLM
    the stop token is the next turn's first token). `markers` are the tokens that may end a turn, the
    template's own first, then the engine's. `spliceable` names the continuations that were tried.
    """

    forms: MessageForms
    system_prompt: bool
    needs_tools: bool
    tool_calls: bool
    roles: Mapping[str, RoleSupport]
    reasoning: ReasoningSupport
    turn_ends: Mapping[TurnKind, TurnEnd | None]
    markers: tuple[str, ...]
    spliceable: Mapping[str, SpliceCheck]

    @property
    def turn_suffix(self) -> str | None:
        """What `sglang_turn_suffix` would be set to by hand; None where no text ends a turn."""
        end = self.turn_ends.get(TurnKind.TEXT)
        return end.suffix if end else None

    @property
    def problems(self) -> tuple[str, ...]:
        """Each continuation that cannot be spliced, with the reason; empty for a template that is fit for
        rollouts.
        """
        return tuple(
            f"{shape}: {check.refusal.value} ({check.detail})"
            for shape, check in self.spliceable.items()
            if check.refusal is not None
        )


def describe(profile: TemplateProfile) -> str:
    """The profile as lines of text, for a log or a terminal."""
    forms = profile.forms
    empty = "null" if forms.empty_content is EmptyContent.NULL else "an empty string"
    lines = [
        "messages",
        f"  tool-call arguments   as {forms.arguments.value}",
        f"  calls without text    content is {empty}",
        f"  lists of text parts   {forms.text_parts.value}",
        f"  system prompt         {'yes' if profile.system_prompt else 'rejected'}",
        f"  tool calls            {'rendered' if profile.tool_calls else 'NOT rendered'}",
        f"  renders without tools {'no' if profile.needs_tools else 'yes'}",
        f"  earlier reasoning     {profile.reasoning.value}",
        "behind an assistant turn",
        *(f"  {role:<21} {support.value}" for role, support in profile.roles.items()),
        "turn ends",
        *(f"  {kind.value:<21} {_turn_end(end)}" for kind, end in profile.turn_ends.items()),
        f"  end markers           {', '.join(map(repr, profile.markers)) or 'none known'}",
        "splicing",
        *(f"  {shape:<21} {_check(check)}" for shape, check in profile.spliceable.items()),
    ]
    return "\n".join(lines)


def _turn_end(end: TurnEnd | None) -> str:
    if end is None:
        return "no token of its own; the sampled stop token is looked for in the next turn's header"
    return f"{end.marker!r}, suffix {end.suffix!r}"


def _check(check: SpliceCheck) -> str:
    if check.refusal is not None:
        return f"NO: {check.refusal.value} ({check.detail})"
    flags = ", ".join(sorted(flag.value for flag in check.flags))
    behind = f"yes, behind {check.stop_token!r}" if check.stop_token else "yes"
    return f"{behind} ({flags})" if flags else behind
