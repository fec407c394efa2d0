"""A dictionary that forgets what was set first."""

from __future__ import annotations

import threading
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_ENTRIES: Final = 4096


class BoundedCache(dict[K, V]):
    """Has at most `MAX_ENTRIES`: keys may come from requests, and there is no end to those."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def __setitem__(self, key: K, value: V) -> None:
        with self._lock:
            super().__setitem__(key, value)
            if len(self) > MAX_ENTRIES:
                del self[next(iter(self))]
