"""YAML files: where they are looked for, in which order they merge, and which line set what.

A relative path is looked for under each directory of NEMO_GYM_EXTRA_ROOTS, then under the working directory,
then under the install root, where the `configs/` of this project are. A file may name further files in its
own `config_paths`. It is merged over what it names, because the file that includes is the one that means to
change something. A file that is named twice is loaded once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException
from yaml.reader import ReaderError

from nemo_gym.config_tree import SettingPath, paths
from nemo_gym.errors import ConfigError

LOGGER = logging.getLogger(__name__)

CONFIG_PATHS_KEY = "config_paths"
EXTRA_ROOTS_ENV_VAR_NAME = "NEMO_GYM_EXTRA_ROOTS"

_COMMAND_LINE = "on the command line"


@dataclass(frozen=True)
class ConfigFile:
    """One YAML file, read; `lines` has the line of every key in it."""

    path: Path
    config: DictConfig
    lines: Mapping[SettingPath, int]


@dataclass
class Origins:
    """Who set which setting last, for messages. A path that nobody recorded has no origin."""

    base: Path
    _labels: dict[SettingPath, str] = field(default_factory=dict)

    def add_file(self, file: ConfigFile) -> None:
        label = display_path(file.path, self.base)
        self._labels.update({path: f"in {label}, line {line}" for path, line in file.lines.items()})

    def add_override(self, path: SettingPath, value: object) -> None:
        self._labels.update(dict.fromkeys(paths(value, path), _COMMAND_LINE))

    def is_override(self, path: SettingPath) -> bool:
        return self._labels.get(path) == _COMMAND_LINE

    def describe(self, path: SettingPath) -> str | None:
        return self._labels.get(path)


def install_root() -> Path:
    """The directory that `configs/` lies in: the package in a wheel, the repository in a source tree."""
    package = Path(__file__).resolve().parent
    return package if (package / "configs").is_dir() else package.parent


def extra_roots(cwd: Path, env: Mapping[str, str]) -> tuple[Path, ...]:
    """The directories of NEMO_GYM_EXTRA_ROOTS, in order."""
    listed = env.get(EXTRA_ROOTS_ENV_VAR_NAME, "").split(os.pathsep)
    return tuple(cwd / Path(root).expanduser() for root in listed if root)


def display_path(path: Path, base: Path) -> str:
    """The path as a user below `base` would write it."""
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def find_file(entry: str, roots: Iterable[Path]) -> Path:
    """Look an entry of `config_paths` up; ConfigError lists where it was looked for."""
    candidates = list(dict.fromkeys(root / Path(entry).expanduser() for root in roots))
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    looked = "".join(f"\n  {candidate}" for candidate in candidates)
    raise ConfigError(
        f"{CONFIG_PATHS_KEY}: there is no file {entry}. Looked for{looked}", param=CONFIG_PATHS_KEY
    )


def collect_files(entries: Iterable[str], roots: Iterable[Path]) -> list[ConfigFile]:
    """Read the named files and all that they include, in the order in which they merge: later ones win."""
    roots = tuple(roots)
    files: list[ConfigFile] = []
    seen: set[Path] = set()

    def visit(entry: str) -> None:
        path = find_file(entry, roots)
        if path in seen:
            LOGGER.info("%s is named more than once and loaded once", path)
            return
        seen.add(path)
        file = read_config_file(path)
        for included in config_path_entries(file.config, source=str(path)):
            visit(included)
        files.append(file)

    for entry in entries:
        visit(entry)
    return files


def read_config_file(path: Path) -> ConfigFile:
    """Read a YAML file whose top level is a mapping; ConfigError names file, line and column."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: byte {error.start} cannot be decoded") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    config = parse_config_text(text, source=str(path))
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return ConfigFile(path, config, dict(_key_lines(root, (), ())))


def parse_config_text(text: str, *, source: str) -> DictConfig:
    """Read YAML text whose top level is a mapping; ConfigError names `source`, line and column."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        # OmegaConf would fail an assertion on a number and make a key of a word.
        is_mapping = root is None or isinstance(root, yaml.MappingNode)
        config: object = OmegaConf.create(text) if is_mapping else None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not valid YAML{_position(error)}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{source} cannot be read: {omegaconf_reason(error)}") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{source} is not a configuration: its top level must be a mapping (key: value)")
    return config


def config_path_entries(config: DictConfig, *, source: str) -> list[str]:
    """The `config_paths` of one source, interpolations resolved; empty when it has none."""
    try:
        entries = config.get(CONFIG_PATHS_KEY)
        if isinstance(entries, ListConfig):
            entries = OmegaConf.to_container(entries, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{CONFIG_PATHS_KEY} in {source}: {omegaconf_reason(error)}", param=CONFIG_PATHS_KEY
        ) from error
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(
            f"{CONFIG_PATHS_KEY} in {source} must be a list of paths: "
            f"{CONFIG_PATHS_KEY}: [a.yaml] in a file, +{CONFIG_PATHS_KEY}=[a.yaml] as an override",
            param=CONFIG_PATHS_KEY,
        )
    return entries


def omegaconf_reason(error: Exception) -> str:
    """What OmegaConf says, without its trailer and without a value: that may be a key."""
    if isinstance(error, GrammarParseError):
        return f"{error.full_key} has a ${{ that is not part of ${{key}}; for the two characters write \\${{"
    return str(error).partition("\n")[0]


def _position(error: yaml.YAMLError) -> str:
    if isinstance(error, ReaderError):
        return f": character {error.position}: {error.reason}"
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    return f": line {mark.line + 1}, column {mark.column + 1}: {problem}" if mark is not None else ""


def _key_lines(
    node: yaml.Node | None, prefix: SettingPath, ancestors: tuple[yaml.Node, ...]
) -> Iterator[tuple[SettingPath, int]]:
    """Path and line of every key; an alias that contains itself is walked once."""
    if node is None or node in ancestors:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            merged = key.tag == "tag:yaml.org,2002:merge"
            path = prefix if merged else (*prefix, str(key.value))
            if not merged:
                yield path, key.start_mark.line + 1
            yield from _key_lines(value, path, (*ancestors, node))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            path = (*prefix, str(index))
            yield path, item.start_mark.line + 1
            yield from _key_lines(item, path, (*ancestors, node))
