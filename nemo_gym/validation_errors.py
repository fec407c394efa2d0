"""From pydantic's report to one sentence about one field.

A request item can be one of a dozen models, and pydantic reports what every one of them missed. The caller
wants the field that is wrong in the model they meant. Values are never repeated: they are prompts and token
ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic_core import ErrorDetails

from nemo_gym.errors import RequestError

MAX_PATH_LENGTH: Final = 200
MAX_ERRORS: Final = 200

# Fields whose value says which member of a union was meant.
_TAGS: Final = frozenset({"type", "role"})
_TAG_MISMATCH: Final = frozenset({"literal_error", "enum", "const"})
_ABOUT_THE_KEY: Final = frozenset({"missing", "extra_forbidden"})

_JSON_TYPES: Final[dict[type, str]] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

Key = int | str


class _Located(NamedTuple):
    """An error with its path in the data and, apart, the union members pydantic tried on the way there."""

    path: tuple[Key, ...]
    union: tuple[Key, ...] | None  # path of the outermost union passed through, None outside of unions
    branch: tuple[Key, ...]  # pydantic's location up to and including the innermost member tried
    details: ErrorDetails


def request_error(errors: Sequence[ErrorDetails], data: object, *, skip: int = 0) -> RequestError:
    """Return the RequestError that says what is wrong with `data`; `errors` is pydantic's list, not empty.

    `skip` leading elements of each location do not belong to the data (FastAPI puts "body" first).
    """
    located = [_locate(error, data, skip) for error in errors[:MAX_ERRORS]]
    kept = _one_per_union(located)
    first = kept[0]
    path = ".".join(str(key) for key in first.path)[:MAX_PATH_LENGTH]
    more = f" (+{len(kept) - 1} more)" if len(kept) > 1 else ""
    subject = path or "the request body"
    return RequestError(f"{subject}: {_sentence(first.details)}{more}", param=path or None)


def json_type_name(value: object) -> str:
    """Return what JSON calls the type of `value`, with its article."""
    return _JSON_TYPES.get(type(value), type(value).__name__)


def _locate(error: ErrorDetails, data: object, skip: int) -> _Located:
    """Tell the keys of the data in an error's location from the names of union members.

    Pydantic mixes both in one tuple. Only the data knows: what is not a key of it is a member's name, except
    at the end of an error about a key that is missing.
    """
    location = error["loc"][skip:]
    path: list[Key] = []
    union: tuple[Key, ...] | None = None
    branch: tuple[Key, ...] = ()
    value = data
    for index, key in enumerate(location):
        last = index == len(location) - 1
        found, inner = _step(value, key)
        if found:
            value = inner
        elif not (last and error["type"] in _ABOUT_THE_KEY):
            union = tuple(path) if union is None else union
            branch = error["loc"][: skip + index + 1]
            continue
        path.append(key)
    return _Located(tuple(path), union, branch, error)


def _step(value: object, key: Key) -> tuple[bool, object]:
    """Say whether `key` leads from `value` to something, and to what."""
    if isinstance(value, dict) and key in value:
        return True, value[key]
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return True, value[key]
    return False, value


def _one_per_union(located: Sequence[_Located]) -> list[_Located]:
    """Keep what lies outside of unions, and one error, the most telling, for each union."""
    kept: list[_Located] = []
    sites: dict[tuple[Key, ...], list[_Located]] = {}
    for error in located:
        if error.union is None:
            kept.append(error)
            continue
        if error.union not in sites:
            sites[error.union] = []
            kept.append(error)  # holds the place in the order of the report
        sites[error.union].append(error)
    return [error if error.union is None else _most_telling(sites[error.union]) for error in kept]


def _most_telling(errors: Sequence[_Located]) -> _Located:
    """Return the error of the union member that the caller most likely meant.

    That is the one whose `type` and `role` agree with the data, then the one in which validation got deepest,
    then the one with the fewest errors.
    """
    other_kinds = {error.branch for error in errors if _says_other_kind(error)}
    sizes = Counter(error.branch for error in errors)

    def rank(error: _Located) -> tuple[bool, int, int]:
        location = error.details["loc"]
        of_other_kind = any(location[: len(branch)] == branch for branch in other_kinds)
        return of_other_kind, -len(error.path), sizes[error.branch]

    return min(errors, key=rank)


def _says_other_kind(error: _Located) -> bool:
    return bool(error.path) and error.path[-1] in _TAGS and error.details["type"] in _TAG_MISMATCH


def _sentence(error: ErrorDetails) -> str:
    """Say what was expected and what kind of value came; pydantic's messages do not contain the value."""
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "extra_forbidden":
        return "is not a field of this request"
    message = error["msg"].removeprefix("Value error, ")
    message = f"{message[:1].lower()}{message[1:]}"
    # An unknown member of a union is already described by its tag.
    return message if " got " in message else f"{message}, got {json_type_name(error['input'])}"
