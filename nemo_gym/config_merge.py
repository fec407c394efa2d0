"""Merging: files, then env.yaml, then the command line, each over what came before.

`+key=value` and `++key=value` are laid over the merged files, as NeMo Gym does it: a `+` may change what a
file says, but two `+` for one key are a mistake, as in Hydra. `key=value` changes only what is there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config_files import ConfigFile, Origins, omegaconf_reason
from nemo_gym.config_overrides import Override, OverrideKind
from nemo_gym.config_suggestions import did_you_mean
from nemo_gym.config_tree import SettingPath, contains, delete, dotted, lookup, nested, plain
from nemo_gym.errors import ConfigError


def merge_files(files: Iterable[ConfigFile], origins: Origins) -> DictConfig:
    """Merge files in order, the later over the earlier."""
    merged = OmegaConf.create({})
    for file in files:
        merged = _merge(merged, file.config, source=str(file.path))
        origins.add_file(file)
    return merged


def apply_overrides(config: DictConfig, overrides: Sequence[Override], origins: Origins) -> DictConfig:
    """Lay the overrides over `config` in the order given; `config` itself stays as it is."""
    given: set[SettingPath] = set()
    for override in overrides:
        path = tuple(override.key.split("."))
        tree = plain(config)
        _refuse_list_members(tree, path)
        if override.kind is OverrideKind.DELETE:
            config = _without(tree, path, override)
            continue
        if override.kind is OverrideKind.ADD:
            _refuse_repetition(override, path, given)
        if override.kind is OverrideKind.CHANGE and not contains(tree, path):
            raise _nothing_to_change(tree, path)
        given.add(path)
        config = _merge_override(config, path, override)
        origins.add_override(path, override.value)
    return config


def _merge_override(config: DictConfig, path: SettingPath, override: Override) -> DictConfig:
    source = f"the override of {override.key}"
    try:
        overlay = OmegaConf.create(nested(path, override.value))
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{source} cannot be read: {omegaconf_reason(error)}", param=override.key
        ) from error
    return _merge(config, overlay, source=source)


def _merge(base: DictConfig, overlay: DictConfig, *, source: str) -> DictConfig:
    try:
        return cast("DictConfig", OmegaConf.merge(base, overlay))
    except (OmegaConfBaseException, TypeError) as error:
        reason = omegaconf_reason(error)
        raise ConfigError(f"{source} does not fit what it is merged over: {reason}") from error


def _without(tree: dict[str, object], path: SettingPath, override: Override) -> DictConfig:
    try:
        current = lookup(tree, path)
        if override.has_value and current != override.value:
            raise ConfigError(
                f"~{override.key}=<value> deletes a setting that has this value, and it has another one",
                param=override.key,
            )
        delete(tree, path)
    except LookupError as error:
        raise ConfigError(
            f"~{override.key} cannot delete what is not in the configuration{_near(tree, path)}",
            param=override.key,
        ) from error
    return OmegaConf.create(tree)


def _refuse_list_members(tree: dict[str, object], path: SettingPath) -> None:
    for length in range(1, len(path)):
        head = path[:length]
        if contains(tree, head) and isinstance(lookup(tree, head), list):
            raise ConfigError(
                f"{dotted(path)} is inside a list; overrides replace whole lists: ++{dotted(head)}=[...]",
                param=dotted(path),
            )


def _refuse_repetition(override: Override, path: SettingPath, given: set[SettingPath]) -> None:
    """Hydra's rule: a second `+` may extend a mapping or replace a list, nothing else."""
    if isinstance(override.value, dict | list):
        return
    if any(earlier[: len(path)] == path for earlier in given):
        raise ConfigError(
            f"{override.key} is given twice on the command line; "
            f"write ++{override.key}=<value> to replace the first",
            param=override.key,
        )


def _nothing_to_change(tree: dict[str, object], path: SettingPath) -> ConfigError:
    key = dotted(path)
    return ConfigError(
        f"{key}=<value> changes a setting that exists, and {key} is not in the configuration"
        f"{_near(tree, path)}; write +{key}=<value> to add it",
        param=key,
    )


def _near(tree: dict[str, object], path: SettingPath) -> str:
    """`; did you mean a.b?` for the first element of a path that is not in the tree."""
    length = next(length for length in range(1, len(path) + 1) if not contains(tree, path[:length]))
    parent = path[: length - 1]
    siblings = lookup(tree, parent)
    names = [str(name) for name in siblings] if isinstance(siblings, dict) else []
    return did_you_mean(path[length - 1], names, prefix=parent)
