"""The path prefix `/ng-rollout/<rollout id>`, which NeMo Gym's agents put in front of a model server's
routes.

It names the rollout a call belongs to. The routes do not know it: it is always taken off before routing.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from starlette.types import Scope

from nemo_gym.errors import RequestError

ROLLOUT_PREFIX: Final = "/ng-rollout"
TOKEN_CAPTURE_SEGMENT: Final = "/training-token-capture"  # noqa: S105 - a path
MAX_ROLLOUT_ID_LENGTH: Final = 256

_ROLLOUT_ID: Final = re.compile(r"[A-Za-z0-9._-]+")


def split_rollout_prefix(path: str) -> tuple[str | None, str]:
    """Return the rollout id in `path`, None without prefix, and the path that the routes know.

    Raises RequestError when the id is not made of ASCII letters, digits and `._-`.
    """
    if path != ROLLOUT_PREFIX and not path.startswith(f"{ROLLOUT_PREFIX}/"):
        return None, path
    rollout_id, _, rest = path[len(ROLLOUT_PREFIX) + 1 :].partition("/")
    if len(rollout_id) > MAX_ROLLOUT_ID_LENGTH or not _ROLLOUT_ID.fullmatch(rollout_id):
        raise RequestError(
            f"the rollout id in {ROLLOUT_PREFIX}/<id>/ must be 1 to {MAX_ROLLOUT_ID_LENGTH} ASCII letters, "
            f"digits or '._-', got {len(rollout_id)} characters",
            param="rollout_id",
        )
    rest = f"/{rest}"
    if rest == TOKEN_CAPTURE_SEGMENT or rest.startswith(f"{TOKEN_CAPTURE_SEGMENT}/"):
        rest = rest[len(TOKEN_CAPTURE_SEGMENT) :] or "/"
    return rollout_id, rest


def take_rollout_prefix(scope: Scope) -> str | None:
    """Take the prefix off `scope`'s path in place and return the rollout id, None without prefix."""
    path: str = scope["path"]
    if not path.startswith(ROLLOUT_PREFIX):
        return None
    rollout_id, rest = split_rollout_prefix(path)
    scope["path"] = rest
    scope["raw_path"] = quote(rest).encode("ascii")
    return rollout_id
