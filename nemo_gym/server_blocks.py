"""The server blocks of a configuration: which top-level keys are servers, and where their settings stand.

policy_model:                  the name of the server, unique because it is a key
  responses_api_models:        its type, one of SERVER_TYPES
    sglang_model:              its implementation: a directory, or a package of this distribution
      entrypoint: app.py       its settings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config_files import omegaconf_reason
from nemo_gym.config_suggestions import did_you_mean
from nemo_gym.config_tree import SettingPath, dotted, plain
from nemo_gym.config_types import SERVER_TYPES, ServerType
from nemo_gym.errors import ConfigError


@dataclass(frozen=True)
class ServerBlock:
    """Where one server stands in the configuration."""

    name: str
    type: ServerType
    implementation: str

    @property
    def path(self) -> SettingPath:
        return (self.name, self.type, self.implementation)

    def settings_node(self, config: DictConfig) -> DictConfig:
        """The settings as they are in `config`, to be read or completed in place."""
        return cast("DictConfig", config[self.name][self.type][self.implementation])

    def resolved_settings(self, config: DictConfig) -> dict[str, object]:
        """The settings with every `${...}` replaced by what it stands for."""
        try:
            settings = OmegaConf.to_container(self.settings_node(config), resolve=True)
        except OmegaConfBaseException as error:
            raise ConfigError(
                f"{dotted(self.path)}: {omegaconf_reason(error)}", param=dotted(self.path)
            ) from error
        return cast("dict[str, object]", settings)


def find_server_blocks(config: DictConfig) -> list[ServerBlock]:
    """Every server of the configuration, in the order in which the keys stand there."""
    tree = plain(config)
    return [_block(name, value) for name, value in tree.items() if _has_server_type(value)]


def get_server_block(config: DictConfig, name: str) -> ServerBlock:
    """The block of one server; ConfigError with a did-you-mean when no server has that name."""
    tree = plain(config)
    if name in tree and _has_server_type(tree[name]):
        return _block(name, tree[name])
    servers = [key for key, value in tree.items() if _has_server_type(value)]
    known = ", ".join(servers) or "none"
    raise ConfigError(
        f"no server is named {name}{did_you_mean(name, servers)}; the servers of the configuration: {known}",
        param=name,
    )


def _has_server_type(value: object) -> bool:
    return isinstance(value, Mapping) and any(kind in value for kind in SERVER_TYPES)


def _block(name: str, value: object) -> ServerBlock:
    types = [kind for kind in SERVER_TYPES if isinstance(value, Mapping) and kind in value]
    if len(types) != 1 or not isinstance(value, Mapping):
        raise ConfigError(
            f"{name} is a server of {len(types)} types ({', '.join(types)}); keep one", param=name
        )
    path = (name, types[0])
    implementations = value[types[0]]
    if not isinstance(implementations, Mapping) or len(implementations) != 1:
        found = ", ".join(map(str, implementations)) if isinstance(implementations, Mapping) else ""
        raise ConfigError(
            f"{dotted(path)} must have exactly one implementation under it, such as sglang_model; "
            f"it has {found or 'none'}. Two files that both configure {name} cannot be loaded together",
            param=dotted(path),
        )
    implementation = str(next(iter(implementations)))
    if not isinstance(implementations[implementation], Mapping):
        raise ConfigError(
            f"{dotted((*path, implementation))} must be a mapping of settings", param=dotted(path)
        )
    return ServerBlock(name, types[0], implementation)
