"""Finds what an implementation's name stands for: the file to start, and the class of its settings.

`responses_api_models/<implementation>/<entrypoint>` is looked for under NEMO_GYM_EXTRA_ROOTS and the working
directory, so that a server of the user's may replace one of ours, then in an installed package of that name.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel

from nemo_gym.config_files import EXTRA_ROOTS_ENV_VAR_NAME, extra_roots
from nemo_gym.config_tree import dotted
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.errors import ConfigError
from nemo_gym.server_blocks import ServerBlock


@dataclass(frozen=True)
class Entrypoint:
    """The file to start. `module` is its dotted name when it belongs to an installed package, else None."""

    file: Path
    module: str | None


def find_entrypoint(block: ServerBlock, entry: object, *, cwd: Path, env: Mapping[str, str]) -> Entrypoint:
    """Find the file that the `entrypoint` of a block names; ConfigError lists where it was looked for."""
    path = dotted((*block.path, "entrypoint"))
    if not isinstance(entry, str) or not entry:
        raise ConfigError(f"{path} has no value; add ++{path}=app.py", param=path)
    relative = Path(entry)
    if relative.is_absolute() or ".." in relative.parts:
        raise ConfigError(
            f"{path} must be relative to the directory of the server, such as app.py", param=path
        )
    directories = [root / block.type / block.implementation for root in (*extra_roots(cwd, env), cwd)]
    for directory in directories:
        if (directory / relative).is_file():
            return Entrypoint((directory / relative).resolve(), None)
    package = _package_directory(block.implementation)
    if package is not None and (package / relative).is_file():
        module = ".".join((block.implementation, *relative.with_suffix("").parts))
        return Entrypoint((package / relative).resolve(), module)
    raise _not_found(block, relative, directories, package)


def installed_config_class(module_name: str) -> type[BaseRunServerInstanceConfig] | None:
    """The settings class of the one server that a module defines; None when it defines none or several."""
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"{module_name} cannot be imported: {error}") from error
    servers = [cls for cls in vars(module).values() if isinstance(cls, type) and _is_server_of(cls, module)]
    last = [
        cls for cls in servers if not any(issubclass(other, cls) for other in servers if other is not cls)
    ]
    return _settings_class(last[0]) if len(last) == 1 else None


def _is_server_of(candidate: type, module: ModuleType) -> bool:
    return candidate.__module__ == module.__name__ and _settings_class(candidate) is not None


def _settings_class(server: type) -> type[BaseRunServerInstanceConfig] | None:
    """What the field `config` of a server is annotated with."""
    field = server.model_fields.get("config") if issubclass(server, BaseModel) else None
    annotation: object = field.annotation if field is not None else None
    if isinstance(annotation, type) and issubclass(annotation, BaseRunServerInstanceConfig):
        return annotation
    return None


def _package_directory(name: str) -> Path | None:
    spec = find_spec(name) if name.isidentifier() else None
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None


def _not_found(
    block: ServerBlock, relative: Path, directories: Iterable[Path], package: Path | None
) -> ConfigError:
    looked = [str(directory / relative) for directory in directories]
    looked.append(str(package / relative) if package else f"an installed package {block.implementation}")
    advice = (
        ""
        if block.type == "responses_api_models"
        else "\nThis project has model servers; agents and resources servers run in NeMo Gym's environment."
    )
    listed = "".join(f"\n  {place}" for place in looked)
    return ConfigError(
        f"the server {block.name} has nothing to start: {block.type}/{block.implementation}/{relative} "
        f"was not found. Looked for{listed}\n"
        f"Further directories to look in can be set with {EXTRA_ROOTS_ENV_VAR_NAME}.{advice}",
        param=dotted(block.path),
    )
