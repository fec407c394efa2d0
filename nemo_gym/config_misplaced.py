"""Finds settings of a server that were given at the top level, where nothing reads them.

`+sglang_tool_format=qwen3_coder` looks as if it did something. Only the command line is examined: a file may be
shared with other programs that have settings of that name.
"""

from __future__ import annotations

from collections.abc import Iterable

from omegaconf import DictConfig

from nemo_gym.config_files import Origins
from nemo_gym.config_missing import referenced_names
from nemo_gym.config_tree import SettingPath, dotted, plain
from nemo_gym.config_validation import combined_error


def refuse_misplaced_settings(
    config: DictConfig, origins: Origins, settings: Iterable[SettingPath], *, known: Iterable[str]
) -> None:
    """ConfigError for every override that names one of `settings`, which are full paths, by its last part alone.

    Names in `known` mean something at the top level, and so does a name that a `${...}` refers to.
    """
    tree = plain(config)
    meant = {path[-1]: path for path in settings}
    used = {*known, *referenced_names(tree)}
    problems = [
        f"{name} is given at the top level, where nothing reads it; write ++{dotted(meant[name])}=<value>"
        for name in tree
        if name in meant and name not in used and origins.is_override((name,))
    ]
    if problems:
        raise combined_error(problems)
