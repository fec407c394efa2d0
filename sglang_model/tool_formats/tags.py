"""The tags of a text, in order: the common ground of the formats that write calls as markup (qwen3_coder,
glm45).

Their values are free text without escapes, so a value may hold anything, tags included. Which tag ends it
is decided by what follows that tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal[
    "block", "/block", "function", "/function", "parameter", "/parameter", "key", "/key", "value", "/value"
]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag at `text[start:end]`; `name` is what follows `=` in the tags that have one."""

    kind: Kind
    start: int
    end: int
    name: str = ""


class TagList:
    """All tags of one text that a pattern finds, by index; an index past the last one is the end of the
    text.
    """

    def __init__(self, text: str, pattern: re.Pattern[str], kinds: Mapping[str, Kind]) -> None:
        self.text = text
        self._tags = [_tag(match, kinds) for match in pattern.finditer(text)]

    def __len__(self) -> int:
        return len(self._tags)

    def __getitem__(self, index: int) -> Tag:
        return self._tags[index]

    def kind(self, index: int) -> Kind | None:
        """The kind of a tag; None at the end of the text."""
        return self._tags[index].kind if index < len(self._tags) else None

    def start(self, index: int) -> int:
        """Where a tag begins, or the text ends."""
        return self._tags[index].start if index < len(self._tags) else len(self.text)

    def is_blank(self, position: int, index: int) -> bool:
        """Whether only whitespace stands between a position and a tag."""
        return not self.text[position : self.start(index)].strip()

    def is_followed_by(self, index: int, *kinds: Kind | None) -> bool:
        """Whether a tag of one of these kinds comes next, with at most whitespace between. None is the end
        of the text.
        """
        return self.kind(index + 1) in kinds and self.is_blank(self._tags[index].end, index + 1)

    @cached_property
    def ends(self) -> Mapping[int, int]:
        """For each opening tag that is balanced among its kind, the index of the tag that closes it."""
        ends: dict[int, int] = {}
        open_tags: dict[str, list[int]] = {}
        for index, tag in enumerate(self._tags):
            if not tag.kind.startswith("/"):
                open_tags.setdefault(tag.kind, []).append(index)
            elif stack := open_tags.get(tag.kind[1:]):
                ends[stack.pop()] = index
        return ends


def _tag(match: re.Match[str], kinds: Mapping[str, Kind]) -> Tag:
    spelling, _, name = match[0].rstrip(">").partition("=")
    return Tag(kinds[spelling], match.start(), match.end(), name.strip())
