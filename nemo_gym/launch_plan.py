"""Decides what a launch will start: which file for which server, on which port, with settings that are valid.

Everything that can be wrong with a configuration is found here, before a process is started. A server that is
an installed package is checked against its own settings class. A directory of the user's may import its
neighbours by bare names, so it is not imported into the launcher: it checks its own settings when it starts.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.config_files import Origins
from nemo_gym.config_misplaced import refuse_misplaced_settings
from nemo_gym.config_suggestions import did_you_mean
from nemo_gym.config_tree import dotted, plain
from nemo_gym.config_types import DEFAULT_HOST, BaseRunServerConfig, BaseRunServerInstanceConfig, server_ref
from nemo_gym.config_validation import combined_error, set_in, validate_settings
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import GlobalConfig, load_server_config
from nemo_gym.implementations import Entrypoint, find_entrypoint, installed_config_class
from nemo_gym.ports import is_free, pick_free_port
from nemo_gym.server_blocks import ServerBlock, find_server_blocks

ConfigClassFinder: TypeAlias = Callable[[str], type[BaseRunServerInstanceConfig] | None]
"""Finds the settings class of a module such as `sglang_model.app`, or None when it has none."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised, not bound


class LaunchSettings(BaseModel):
    """The top-level settings of a configuration that are about the launch itself."""

    model_config = ConfigDict(extra="ignore")

    dry_run: bool = False
    default_host: str | None = None
    use_absolute_ip: bool = False
    port_range_low: int = Field(default=10_001, ge=1, le=65535)
    port_range_high: int = Field(default=20_000, ge=1, le=65535)
    disallowed_ports: list[int] = Field(default_factory=list)
    verbose: bool = False


class _AnyServer(BaseRunServerConfig):
    """What the launcher itself needs of a server whose own settings it cannot check."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class PlannedServer:
    """A server that is ready to be started."""

    block: ServerBlock
    entrypoint: Path
    settings: BaseRunServerConfig

    @property
    def host(self) -> str:
        return self.settings.host

    @property
    def port(self) -> int:
        return self.settings.port

    @property
    def name(self) -> str:
        return self.block.name

    @property
    def url(self) -> str:
        """Where this machine reaches the server: a wildcard address is not one to connect to."""
        host = _WILDCARDS.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True)
class LaunchPlan:
    """The servers, and the configuration that they get: complete, with the host and port of each."""

    config: DictConfig
    servers: tuple[PlannedServer, ...]
    settings: LaunchSettings


def plan_launch(
    config: GlobalConfig,
    *,
    cwd: Path,
    env: Mapping[str, str],
    find_config_class: ConfigClassFinder = installed_config_class,
) -> LaunchPlan:
    """Plan every server of the configuration. Raises ConfigError for everything that would not work."""
    values = deepcopy(config.values)
    completed = GlobalConfig(values, config.origins)
    settings = validate_settings(LaunchSettings, plain(values), origins=config.origins)
    blocks = find_server_blocks(values)
    if not blocks:
        raise ConfigError(
            "the configuration has no server to start; name a file that has one, for example "
            '"+config_paths=[configs/sglang_model_for_training.yaml]"'
        )
    _check_references(blocks, values, config.origins)
    entrypoints = [
        find_entrypoint(block, block.resolved_settings(values).get("entrypoint"), cwd=cwd, env=env)
        for block in blocks
    ]
    _fill_in_addresses(blocks, values, settings)
    servers = tuple(
        _planned(block, entrypoint, completed, find_config_class)
        for block, entrypoint in zip(blocks, entrypoints, strict=True)
    )
    refuse_misplaced_settings(
        values,
        config.origins,
        ((*server.block.path, name) for server in servers for name in type(server.settings).model_fields),
        known=LaunchSettings.model_fields,
    )
    _check_ports(servers)
    return LaunchPlan(values, servers, settings)


def _planned(
    block: ServerBlock, entrypoint: Entrypoint, config: GlobalConfig, find_config_class: ConfigClassFinder
) -> PlannedServer:
    config_class = find_config_class(entrypoint.module) if entrypoint.module is not None else None
    server: BaseRunServerConfig
    if config_class is not None:
        server = load_server_config(config_class, config.values, block.name, origins=config.origins)
    else:
        settings = block.resolved_settings(config.values)
        server = validate_settings(_AnyServer, settings, path=block.path, origins=config.origins)
    return PlannedServer(block, entrypoint.file, server)


def _fill_in_addresses(blocks: Iterable[ServerBlock], config: DictConfig, settings: LaunchSettings) -> None:
    """Give every block without a host or a port one, as NeMo Gym does, in place."""
    default_host = _default_host(settings)
    nodes = [block.settings_node(config) for block in blocks]
    taken = [*settings.disallowed_ports, *(node["port"] for node in nodes if node.get("port"))]
    for node in nodes:
        node["host"] = node.get("host") or default_host
        if not node.get("port"):
            node["port"] = pick_free_port(
                str(node["host"]), settings.port_range_low, settings.port_range_high, taken=taken
            )
            taken.append(node["port"])


def _default_host(settings: LaunchSettings) -> str:
    if not settings.use_absolute_ip:
        return settings.default_host or DEFAULT_HOST
    try:
        return socket.gethostbyname(socket.gethostname())
    except socket.gaierror as error:
        raise ConfigError(
            "use_absolute_ip: this machine's address cannot be looked up; set ++default_host=<address>",
            param="use_absolute_ip",
        ) from error


def _check_ports(servers: Iterable[PlannedServer]) -> None:
    owners: dict[int, str] = {}
    for server in servers:
        path = dotted((*server.block.path, "port"))
        if server.port in owners:
            raise ConfigError(
                f"{server.name} and {owners[server.port]} both want port {server.port}; set ++{path}=<port>",
                param=path,
            )
        if not is_free(server.host, server.port):
            raise ConfigError(
                f"{server.name} cannot listen on {server.host} port {server.port}: the port is in use, or "
                f"this machine does not have the address; set ++{path}=<port>",
                param=path,
            )
        owners[server.port] = server.name


def _check_references(blocks: list[ServerBlock], config: DictConfig, origins: Origins) -> None:
    """Every `{type, name}` in a block must name a server of the configuration."""
    problems = []
    for block in blocks:
        for key, value in block.resolved_settings(config).items():
            reference = server_ref(value)
            if reference is None:
                continue
            names = [other.name for other in blocks if other.type == reference.type]
            if reference.name not in names:
                path = (*block.path, key)
                problems.append(
                    f"{dotted(path)} refers to {reference.type} {reference.name}, which is not configured"
                    f"{did_you_mean(reference.name, names)}{set_in(origins, path)}"
                )
    if problems:
        raise combined_error(problems)
