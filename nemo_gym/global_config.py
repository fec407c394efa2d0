"""The one configuration of a launch: where it comes from, and how a server reads its part of it.

Sources, later ones win: the files of `config_paths`, then `env.yaml` (working directory, else install root),
then the overrides of the command line. `config_paths` itself comes from the command line, else from env.yaml,
and files may name further files. `${...}` and `???` are OmegaConf's: what works in NeMo Gym works here.

A server process does not read any of that. It finds the merged YAML in NEMO_GYM_CONFIG_DICT and its own name
in NEMO_GYM_CONFIG_PATH, whether NeMo Gym or `ng_run` started it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config_directives import apply_directives
from nemo_gym.config_files import (
    CONFIG_PATHS_KEY,
    ConfigFile,
    Origins,
    collect_files,
    config_path_entries,
    extra_roots,
    install_root,
    parse_config_text,
    read_config_file,
)
from nemo_gym.config_merge import apply_overrides, merge_files
from nemo_gym.config_missing import require_complete
from nemo_gym.config_overrides import Override, OverrideKind, parse_override
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.config_validation import validate_settings
from nemo_gym.errors import ConfigError
from nemo_gym.server_blocks import find_server_blocks, get_server_block

NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME: Final = "NEMO_GYM_CONFIG_DICT"
NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME: Final = "NEMO_GYM_CONFIG_PATH"
ENV_YAML: Final = "env.yaml"

InstanceConfig = TypeVar("InstanceConfig", bound=BaseRunServerInstanceConfig)


@dataclass(frozen=True)
class GlobalConfig:
    """A complete configuration: nothing in it is `???`, and every `${...}` of a server block resolves."""

    values: DictConfig
    origins: Origins


def load_global_config(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> GlobalConfig:
    """Merge all sources for a launch. Raises ConfigError for everything that a user can mend.

    `cwd` and `env` stand for the process's own, so that a test needs neither. Only `${oc.env:NAME}` in a file
    reads the real environment, because OmegaConf does.
    """
    overrides = [parse_override(argument) for argument in argv]
    roots = (*extra_roots(cwd, env), cwd, install_root())
    env_file = _env_file(cwd)
    entries = _config_paths(overrides, env_file)
    files = collect_files(entries, roots)
    origins = Origins(cwd)
    merged = merge_files([*files, *([env_file] if env_file else [])], origins)
    config = apply_directives(apply_overrides(merged, overrides, origins))
    config[CONFIG_PATHS_KEY] = [str(file.path) for file in files]
    blocks = [block.path for block in find_server_blocks(config)]
    require_complete(config, unset_under=[()], resolved_under=blocks, origins=origins)
    return GlobalConfig(config, origins)


def global_config_from_environment(env: Mapping[str, str] = os.environ) -> DictConfig:
    """The merged configuration that the launcher put into the environment of this server process."""
    text = env.get(NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME)
    if not text:
        raise ConfigError(
            f"{NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME} is not set: ng_run or NeMo Gym starts a server and hands "
            "it its configuration there; try ng_run --help"
        )
    return parse_config_text(text, source=f"the environment variable {NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME}")


def load_server_config(
    config_class: type[InstanceConfig],
    global_config_dict: DictConfig | Mapping[str, object],
    config_path: str,
    *,
    origins: Origins | None = None,
) -> InstanceConfig:
    """The settings of the server named `config_path`, checked against its class.

    ConfigError lists every problem. The name is added here: it is the top-level key, which is unique, and
    what cookies, logs and references use.
    """
    config = global_config_dict
    if not isinstance(config, DictConfig):
        config = OmegaConf.create(dict(config))
    block = get_server_block(config, config_path)
    require_complete(config, unset_under=[block.path], resolved_under=[block.path], origins=origins)
    settings = {**block.resolved_settings(config), "name": config_path}
    return validate_settings(config_class, settings, path=block.path, origins=origins, reserved=["name"])


def _env_file(cwd: Path) -> ConfigFile | None:
    for directory in (cwd, install_root()):
        path = directory / ENV_YAML
        if path.is_file():
            return read_config_file(path)
    return None


def _config_paths(overrides: Sequence[Override], env_file: ConfigFile | None) -> list[str]:
    """The files to load. The command line's list replaces that of env.yaml, like any list."""
    given = [override for override in overrides if override.key == CONFIG_PATHS_KEY]
    if given and given[-1].kind is not OverrideKind.DELETE:
        overlay = OmegaConf.create({CONFIG_PATHS_KEY: given[-1].value})
        return config_path_entries(overlay, source="the command line")
    if env_file is not None and not given:
        return config_path_entries(env_file.config, source=str(env_file.path))
    return []
