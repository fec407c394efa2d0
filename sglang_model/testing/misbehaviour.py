"""The vocabulary in which a test tells the engine what to do wrong.

One `Misbehaviour` says one thing that goes wrong, on a rule (`Rule.misbehave`), on the settings
(`EngineSettings.misbehave`) or at run time (`engine.misbehaviours`). Everything it does not mention stays
right: an engine that lies about one field lies about that field only. This module changes JSON and knows no
HTTP.
"""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Abort(BaseModel):
    """How SGLang gives a generation up. Without `status_code` it is a 200 with what was sampled so far."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    message: str | None = None
    status_code: int | None = None


class Misbehaviour(BaseModel):
    """What goes wrong, when, and how often. Fields combine; each says which part of the answer it touches."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    path: str | None = None
    """Regex on the request path; None is every path."""
    times: int | None = Field(default=None, ge=0)
    """The first `times` matching requests only, normal afterwards; None is always."""

    status: int | None = Field(default=None, ge=100, le=599)
    """Answer this status at once, with `body` and `retry_after`, without sampling."""
    body: JsonValue = None
    """The body answered instead. A text that starts with `<` is sent as HTML, another text as plain text."""
    retry_after: float | str | None = None
    """A Retry-After header on that answer."""

    delay: float = Field(default=0.0, ge=0.0)
    """Seconds the request is held."""
    gate: str | None = None
    """Hold the request until `engine.gate(name).open()`."""
    after_tokens: int | None = Field(default=None, ge=0)
    """Where `delay`, `gate` and `abort` apply: None is in the queue, n is after n sampled tokens."""
    abort: Abort | None = None
    """Give the generation up, at the point that `after_tokens` names and after the hold."""
    phantom: bool = False
    """Sample nothing, as with a full window: zero tokens, one entry in output_token_logprobs."""

    logprob_entries: int = 0
    """So many entries more in output_token_logprobs (the last one repeated), or fewer."""
    sampled_id: JsonValue = None
    """When set, also to null: the last sampled id is reported as this, wherever it is reported."""
    logprob: JsonValue = None
    """When set, also to null: the last logprob is reported as this. NaN is written as NaN."""
    wrong_echo: bool = False
    """The last echoed prompt id is off by one."""
    delete: tuple[str, ...] = ()
    """Paths to remove from the answer: `choices.*.meta_info`, `meta_info.prompt_tokens`."""
    replace: dict[str, JsonValue] = Field(default_factory=dict)
    """Paths to overwrite or add."""
    as_list: bool = False
    """The answer is wrapped in a list."""

    truncate_at: int | None = Field(default=None, ge=0)
    """The body ends after so many bytes, with a Content-Length that says it is whole."""
    cut_at: int | None = Field(default=None, ge=0)
    """The connection closes after so many bytes of the body; 0 closes it before any answer."""

    @property
    def answers_instead(self) -> bool:
        return self.status is not None

    def applies_to(self, path: str) -> bool:
        return self.path is None or re.search(self.path, path) is not None

    def edit(self, payload: object) -> object:
        """`payload`, an answer of either endpoint, with the named parts changed in place."""
        for choice in _generations(payload):
            self._edit_generation(choice)
        if self.wrong_echo:
            for generation in _generations(payload):
                ids = generation.get("prompt_token_ids")
                if isinstance(ids, list) and ids:
                    ids[-1] += 1
        for path in self.delete:
            _delete(payload, path.split("."))
        for path, value in self.replace.items():
            _replace(payload, path.split("."), value)
        return [payload] if self.as_list else payload

    def _edit_generation(self, generation: dict[str, object]) -> None:
        meta = generation.get("meta_info")
        entries = meta.get("output_token_logprobs") if isinstance(meta, dict) else None
        if isinstance(entries, list) and entries:
            if "sampled_id" in self.model_fields_set:
                entries[-1][1] = self.sampled_id
            if "logprob" in self.model_fields_set:
                entries[-1][0] = self.logprob
            if self.logprob_entries > 0:
                entries.extend([list(entries[-1]) for _ in range(self.logprob_entries)])
            elif self.logprob_entries < 0:
                del entries[self.logprob_entries :]
        if "sampled_id" in self.model_fields_set:
            for key in ("output_ids", "response_token_ids"):
                ids = generation.get(key)
                if isinstance(ids, list) and ids:
                    ids[-1] = self.sampled_id


def _generations(payload: object) -> list[dict[str, object]]:
    """The parts of an answer that hold one generation each, on either endpoint."""
    found = payload.get("choices", payload) if isinstance(payload, dict) else payload
    items = found if isinstance(found, list) else [found]
    return [item for item in items if isinstance(item, dict)]


def _indices(items: list[object], step: str) -> list[int]:
    """What one path step names in a list: an index that it has, or `*` for all of them."""
    if step == "*":
        return list(range(len(items)))
    index = int(step) if step.lstrip("-").isdigit() else len(items)
    return [index] if -len(items) <= index < len(items) else []


def _children(node: object, step: str) -> list[object]:
    if isinstance(node, dict):
        return [node[step]] if step in node else []
    return [node[index] for index in _indices(node, step)] if isinstance(node, list) else []


def _parents(payload: object, path: list[str]) -> list[object]:
    """What holds the last step of `path`; a path that leads nowhere names nothing."""
    nodes = [payload]
    for step in path[:-1]:
        nodes = [child for node in nodes for child in _children(node, step)]
    return nodes


def _delete(payload: object, path: list[str]) -> None:
    for parent in _parents(payload, path):
        if isinstance(parent, dict):
            parent.pop(path[-1], None)
        elif isinstance(parent, list):
            for index in reversed(_indices(parent, path[-1])):
                del parent[index]


def _replace(payload: object, path: list[str], value: JsonValue) -> None:
    for parent in _parents(payload, path):
        if isinstance(parent, dict):
            parent[path[-1]] = value
        elif isinstance(parent, list):
            for index in _indices(parent, path[-1]):
                parent[index] = value
