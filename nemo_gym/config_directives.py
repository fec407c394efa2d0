"""NeMo Gym's directives for reusing a block: inherit_from (move), copy, and _delete_key.

    judge_model: ${inherit_from:policy_model}     the block moves here; policy_model is gone
    judge_model: ${copy:policy_model}             the block is here too
    judge_model:
      _copy: policy_model                         the same, with changes (_inherit_from moves)
      _delete_key: datasets, domain               without these keys of the copied block
      responses_api_models: {...}                 merged over the copied block

They are carried out on the merged configuration, before anything looks for unset values, so that a `???` in a
block that was moved or deleted is not asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from nemo_gym.config_tree import SettingPath, contains, delete, dotted, lookup, plain
from nemo_gym.errors import ConfigError

_INHERIT_KEY = "_inherit_from"
_COPY_KEY = "_copy"
_DELETE_KEY = "_delete_key"
_DIRECTIVE_RE = re.compile(r"\$\{\s*(inherit_from|copy)\s*:\s*([^${}]+?)\s*\}")


def apply_directives(config: DictConfig) -> DictConfig:
    """Carry the directives out; a configuration without any comes back equal."""
    expander = _Expander(plain(config))
    tree = expander.expand(expander.source, ())
    if not isinstance(tree, dict):
        raise ConfigError("the configuration is not a mapping after its directives were carried out")
    for path in expander.moved:
        if contains(tree, path):
            delete(tree, path)
    return OmegaConf.create(tree)


class _Expander:
    """Builds the tree with every directive replaced. `source` never changes; `moved` is what to drop."""

    def __init__(self, source: dict[str, object]) -> None:
        self.source = source
        self.moved: list[SettingPath] = []

    def expand(self, value: object, active: tuple[SettingPath, ...]) -> object:
        if isinstance(value, list):
            return [self.expand(item, active) for item in value]
        if isinstance(value, dict):
            return self.mapping(value, active)
        match = _DIRECTIVE_RE.fullmatch(value) if isinstance(value, str) else None
        return self.referenced(match[2], active, move=match[1] == "inherit_from") if match else value

    def mapping(self, value: dict[str, object], active: tuple[SettingPath, ...]) -> object:
        own = {
            key: self.expand(item, active)
            for key, item in value.items()
            if key not in (_INHERIT_KEY, _COPY_KEY, _DELETE_KEY)
        }
        for directive in (_INHERIT_KEY, _COPY_KEY):
            if directive in value:
                move = directive == _INHERIT_KEY
                return self.merged(str(value[directive]), own, value, active, move=move)
        return _drop(own, value.get(_DELETE_KEY), within="its block")

    def merged(
        self,
        target: str,
        own: dict[str, object],
        value: dict[str, object],
        active: tuple[SettingPath, ...],
        *,
        move: bool,
    ) -> object:
        base = self.referenced(target, active, move=move)
        if not isinstance(base, dict):
            # An unset block stays unset, so that it is asked for by its own name.
            return base
        combined = OmegaConf.merge(OmegaConf.create(base), OmegaConf.create(own))
        tree = plain(combined) if isinstance(combined, DictConfig) else {}
        return _drop(tree, value.get(_DELETE_KEY), within=target)

    def referenced(self, target: str, active: tuple[SettingPath, ...], *, move: bool) -> object:
        path = tuple(target.split("."))
        if path in active:
            chain = " -> ".join(dotted(step) for step in (*active, path))
            raise ConfigError(f"blocks reuse each other in a circle: {chain}", param=target)
        try:
            found = lookup(self.source, path)
        except LookupError as error:
            raise ConfigError(
                f"inherit_from or copy names {target}, which is not in the configuration", param=target
            ) from error
        if move and not isinstance(lookup(self.source, path[:-1]), dict):
            raise ConfigError(f"inherit_from cannot move {target} out of a list; write copy", param=target)
        if move and path not in self.moved:
            self.moved.append(path)
        return self.expand(found, (*active, path))


def _drop(tree: Mapping[str, object], names: object, *, within: str) -> dict[str, object]:
    if names is None:
        return dict(tree)
    wanted = [name.strip() for name in str(names).split(",")]
    absent = [name for name in wanted if name not in tree]
    if absent:
        raise ConfigError(
            f"{_DELETE_KEY} names {', '.join(absent)}, which {within} does not have", param=_DELETE_KEY
        )
    return {key: value for key, value in tree.items() if key not in wanted}
