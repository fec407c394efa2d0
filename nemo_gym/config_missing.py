"""What a configuration still lacks: values left at `???`, and keys that a `${...}` names and nobody gives.

All of them are reported in one error, each with the override that provides it: one more try is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from nemo_gym.config_files import Origins, omegaconf_reason
from nemo_gym.config_suggestions import closest
from nemo_gym.config_tree import SettingPath, contains, dotted, lookup, paths, plain
from nemo_gym.config_validation import set_in
from nemo_gym.errors import ConfigError

_REFERENCE_RE = re.compile(r"\$\{\s*(\.*)([^\s{}$:.][^\s{}$:]*)\s*\}")


def require_complete(
    config: DictConfig,
    *,
    unset_under: Iterable[SettingPath],
    resolved_under: Iterable[SettingPath],
    origins: Origins | None,
) -> None:
    """ConfigError listing every `???` under the first paths and every broken `${...}` under the second."""
    survey = _Survey(plain(config))
    for path in unset_under:
        survey.unset.extend(leaf.path for leaf in _leaves(_node(config, path), path) if leaf.is_unset)
    for path in resolved_under:
        for leaf in _leaves(_node(config, path), path):
            survey.examine(leaf)
    if survey.unset or survey.absent or survey.broken:
        raise _error(survey, origins)


def referenced_names(tree: object) -> set[str]:
    """The top-level names that any `${...}` in the tree refers to."""
    texts = (value for path in paths(tree) if isinstance(value := lookup(tree, path), str))
    references = (reference for text in texts for reference in _REFERENCE_RE.findall(text))
    return {_parts(name)[0] for dots, name in references if not dots}


def _parts(name: str) -> SettingPath:
    """`a.b` and `a[b]` are the same path."""
    return tuple(name.replace("]", "").replace("[", ".").split("."))


@dataclass(frozen=True)
class _Leaf:
    """One setting that is no mapping or list, with its container: OmegaConf resolves on access."""

    path: SettingPath
    container: DictConfig | ListConfig
    key: object

    @property
    def is_unset(self) -> bool:
        return OmegaConf.is_missing(self.container, self.key)

    @property
    def is_interpolation(self) -> bool:
        return OmegaConf.is_interpolation(self.container, self.key)  # type: ignore[arg-type]


@dataclass
class _Survey:
    """What was found. `absent` maps a key that is missing to the first setting that wants it."""

    tree: dict[str, object]
    unset: list[SettingPath] = field(default_factory=list)
    absent: dict[str, SettingPath] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def examine(self, leaf: _Leaf) -> None:
        if not leaf.is_interpolation:
            return
        try:
            leaf.container[leaf.key]  # type: ignore[index]
        except InterpolationToMissingValueError:
            pass  # the ??? is reported by its own name
        except OmegaConfBaseException as error:
            absent = set(self.absent_references(leaf.path, set()))
            for key in absent:
                self.absent.setdefault(key, leaf.path)
            if not absent:
                self.broken.append(f"{dotted(leaf.path)}: {omegaconf_reason(error)}")

    def absent_references(self, path: SettingPath, seen: set[SettingPath]) -> Iterator[str]:
        """The keys that `path` refers to, directly or through others, and that nobody gives."""
        text = lookup(self.tree, path)
        if path in seen or not isinstance(text, str):
            return
        seen.add(path)
        for dots, name in _REFERENCE_RE.findall(text):
            parts = _parts(name)
            target = (*path[: -len(dots)], *parts) if dots else parts
            if contains(self.tree, target):
                yield from self.absent_references(target, seen)
            else:
                yield dotted(target)


def _node(config: DictConfig, path: SettingPath) -> object:
    node: object = config
    for part in path:
        node = node[part] if isinstance(node, DictConfig) else None
    return node


def _leaves(node: object, path: SettingPath) -> Iterator[_Leaf]:
    if not isinstance(node, DictConfig | ListConfig):
        return
    for key in range(len(node)) if isinstance(node, ListConfig) else list(node):
        leaf = _Leaf((*path, str(key)), node, key)
        if leaf.is_unset or leaf.is_interpolation:
            yield leaf
        else:
            yield from _leaves(node[key], leaf.path)


def _error(survey: _Survey, origins: Origins | None) -> ConfigError:
    lines = [
        f"+{key}=<value>   for {dotted(path)}{set_in(origins, path)}" for key, path in survey.absent.items()
    ] + [f"{_override(survey.tree, path)}{set_in(origins, path)}" for path in survey.unset]
    sentences = []
    if lines:
        noun = "setting has" if len(lines) == 1 else "settings have"
        sentences.append(f"{len(lines)} {noun} no value. Add to the command line, or set in env.yaml:")
        sentences += [f"  {line}" for line in lines]
    sentences += _misspelt(survey)
    sentences += survey.broken
    first = next(iter(survey.absent), None) or next(map(dotted, survey.unset), None)
    return ConfigError("\n".join(sentences), param=first)


def _override(tree: dict[str, object], path: SettingPath) -> str:
    """How to give a value to a `???`; members of a list can only be given with the whole list."""
    for length in range(1, len(path)):
        if isinstance(lookup(tree, path[:length]), list):
            return f"++{dotted(path[:length])}=[<value>,...]"
    return f"++{dotted(path)}=<value>"


def _misspelt(survey: _Survey) -> list[str]:
    """A line for every top-level setting that looks like one of the missing keys."""
    settings = [name for name, value in survey.tree.items() if not isinstance(value, dict | list)]
    matches = {key: closest(key, settings) for key in survey.absent}
    return [f"{found} is given; did you mean {key}?" for key, found in matches.items() if found is not None]
