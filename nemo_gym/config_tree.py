"""Plain nested mappings and lists, as a YAML file has them, and paths into them.

Merging, overrides and messages all speak of a setting by its path: `("policy_model", "port")`. A list member
has its index, written in digits, as the path element. Nothing here resolves an interpolation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

from omegaconf import DictConfig, OmegaConf

SettingPath: TypeAlias = tuple[str, ...]


def plain(config: DictConfig) -> dict[str, object]:
    """The configuration as dicts and lists; interpolations and `???` stay the strings they are written as."""
    return cast("dict[str, object]", OmegaConf.to_container(config, resolve=False, throw_on_missing=False))


def lookup(tree: object, path: SettingPath) -> object:
    """The value at `path`; LookupError when there is none."""
    for part in path:
        if isinstance(tree, Mapping):
            tree = _by_text(tree, part)
        elif isinstance(tree, list) and part.isdecimal():
            tree = tree[int(part)]
        else:
            raise LookupError(dotted(path))
    return tree


def contains(tree: object, path: SettingPath) -> bool:
    try:
        lookup(tree, path)
    except LookupError:
        return False
    return True


def delete(tree: dict[str, object], path: SettingPath) -> None:
    """Remove what is at `path`. It must be there, and in a mapping."""
    parent = cast("dict[str, object]", lookup(tree, path[:-1]))
    del parent[next(key for key in parent if str(key) == path[-1])]


def nested(path: SettingPath, value: object) -> dict[str, object]:
    """A tree that has only `value` at `path`."""
    for part in reversed(path[1:]):
        value = {part: value}
    return {path[0]: value}


def paths(tree: object, prefix: SettingPath = ()) -> Iterator[SettingPath]:
    """Every path in the tree, parents before their children."""
    if prefix:
        yield prefix
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from paths(value, (*prefix, str(key)))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from paths(value, (*prefix, str(index)))


def dotted(path: SettingPath) -> str:
    return ".".join(path)


def _by_text(tree: Mapping[object, object], part: str) -> object:
    # YAML reads `8: x` as an integer key; the command line can only write it as text.
    for key, value in tree.items():
        if str(key) == part:
            return value
    raise LookupError(part)
