"""Turns what pydantic finds wrong with a block of settings into one readable ConfigError.

Every problem of the block is reported at once, each with the full path of its setting, the file and line that
it came from when that is known, and what to do. Values are left out: they may be keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nemo_gym.config_files import Origins
from nemo_gym.config_suggestions import did_you_mean
from nemo_gym.config_tree import SettingPath, dotted
from nemo_gym.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)

_NOT_A_STRING = "string_type"


def validate_settings(
    model: type[Model],
    settings: Mapping[str, object],
    *,
    path: SettingPath = (),
    origins: Origins | None = None,
    reserved: Iterable[str] = (),
) -> Model:
    """Build `model` from settings that stand at `path`. `reserved` fields are not for users."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        names = [name for name in model.model_fields if name not in set(reserved)]
        problems = [
            _Problem(model.__name__, path, detail, origins).sentence(names)
            for detail in error.errors(include_url=False)
        ]
        raise combined_error(problems, param=_param(path, error)) from error


def combined_error(problems: Sequence[str], *, param: str | None = None) -> ConfigError:
    """One error of several problems: a line each when there is more than one."""
    if len(problems) == 1:
        return ConfigError(problems[0], param=param)
    listed = "".join(f"\n  {problem}" for problem in problems)
    return ConfigError(f"{len(problems)} settings cannot be used:{listed}", param=param)


def set_in(origins: Origins | None, path: SettingPath) -> str:
    """` (set in configs/x.yaml, line 3)`, or nothing when the origin is not known."""
    origin = origins.describe(path) if origins is not None else None
    return f" (set {origin})" if origin is not None else ""


def _param(path: SettingPath, error: ValidationError) -> str:
    location = error.errors(include_url=False)[0]["loc"]
    return dotted((*path, *map(str, location)))


class _Problem:
    """One entry of pydantic's report. `path` is the path of the setting in the whole configuration."""

    def __init__(self, model: str, block: SettingPath, detail: ErrorDetails, origins: Origins | None) -> None:
        self.model = model
        self.detail = detail
        self.location = tuple(map(str, detail["loc"]))
        self.path = (*block, *self.location)
        self.where = set_in(origins, self.path)

    def sentence(self, names: Sequence[str]) -> str:
        match self.detail["type"]:
            case "extra_forbidden" if len(self.location) == 1:
                hint = did_you_mean(self.location[0], names)
                return f"{dotted(self.path)} is not a setting of {self.model}{hint}{self.where}"
            case "extra_forbidden":
                return f"{dotted(self.path)} is not a setting of {dotted(self.path[:-1])}{self.where}"
            case "missing":
                return f"{dotted(self.path)} has no value; add ++{dotted(self.path)}=<value>"
            case _:
                return f"{dotted(self.path)}{self.where}: {self.reason()}"

    def reason(self) -> str:
        """What pydantic or a validator says, with the remedy for a number that was meant as text."""
        cause = self.detail.get("ctx", {}).get("error")
        if isinstance(cause, ValueError):
            return str(cause)
        reason = self.detail["msg"][:1].lower() + self.detail["msg"][1:]
        if self.detail["type"] != _NOT_A_STRING:
            return reason
        given = type(self.detail["input"]).__name__
        if given not in ("int", "float", "bool"):
            return f"{reason}, not {given}"
        return f"{reason}, not {given}; what is text needs quotes of its own: ++{dotted(self.path)}=\\'...\\'"
