"""Whether values are too large for the event loop: what is done with them takes time as their JSON has bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import orjson


def exceeds(values: Iterable[object], limit: int) -> bool:
    """Whether the values have more than `limit` bytes of JSON in all; looks at no more of them than that takes.

    A text counts by its characters. What orjson cannot write (nested too deeply, half a surrogate pair) counts as too
    large: those who use it have an error of their own for it, or none.
    """
    size = 0
    for value in values:
        if isinstance(value, str):
            size += len(value)
        elif value:
            try:
                size += len(orjson.dumps(value))
            except TypeError:
                return True
        if size > limit:
            return True
    return False
