"""Texts into ids with a tokenizer that is loaded: how the library is used, and nothing of prompts.

The tokenizers library releases the GIL in `encode_batch_fast`, not in `encode`, and encodes the texts of a batch on all
cores. What then becomes of the ids holds the GIL, so it is done in steps.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from nemo_gym.token_ids import TokenIds
from sglang_model.rendering import check_vocabulary

LIBRARY_NICENESS: Final = 10
LOWEST_NICENESS: Final = 19
"""The library's threads use every core for as long as a text takes. At the event loop's own priority it would wait its
turn of some milliseconds each time that it has something to do."""

SHORT_TEXT: Final = 4_096
"""Characters up to which the calling thread encodes by itself: to hand a hundred characters to the library's threads
and back takes longer than to encode them, four times as long on a busy machine."""

GIL_STEP: Final = 16_384
GIL_PAUSE: Final = 1e-4
"""Ids that a thread may turn into text in one go, and the seconds for which the event loop then gets the GIL. Without
the pause it would wait for the interpreter to take the GIL away, for 5 ms a time."""


class CallableTokenizer(Protocol):
    """What is used of a transformers tokenizer (5.8.1) where the library has no part in it."""

    def __call__(self, text: str, *, add_special_tokens: bool) -> object: ...


class _Encoding(Protocol):
    """One text's result of the tokenizers library; each look at `ids` makes a new list."""

    @property
    def ids(self) -> list[int]: ...


class _Backend(Protocol):
    """What is used of a `tokenizers.Tokenizer` (0.22)."""

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> _Encoding: ...

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> Sequence[_Encoding]: ...


@runtime_checkable
class _HasToList(Protocol):
    def tolist(self) -> object: ...


class TextEncoder:
    """Special tokens are recognised and none added; nothing is cut short. May be used by several threads.

    Each id is compared with `vocabulary_size`, where that is given, when it comes into being; `ids` and `texts` raise
    UpstreamContractError for one beyond it.
    """

    def __init__(self, tokenizer: CallableTokenizer, *, vocabulary_size: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._lock = threading.Lock()
        self._backend: _Backend | None = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None:
            # A tokenizer.json may have been saved with the lengths of somebody's training run.
            self._backend.no_truncation()
            self._backend.no_padding()
            _start_library_threads(self._backend)

    @property
    def is_native(self) -> bool:
        """Whether the library does the work, and not a tokenizer written in Python."""
        return self._backend is not None

    def unchecked(self, texts: list[str]) -> list[list[int]]:
        """Ids of several texts for a self-test: they may well be of tokens that the model has not."""
        if self._backend is None:
            return [self._ids_in_python(text) for text in texts]
        return [encoding.ids for encoding in self._encodings(self._backend, texts)]

    def ids(self, text: str) -> list[int]:
        """Ids of one text."""
        (ids,) = self.unchecked([text])
        return self._checked(ids)

    def texts(self, texts: list[str]) -> list[TokenIds]:
        """Ids of several texts as JSON text. Lets others have the GIL from time to time where there are very many."""
        if self._backend is None:
            return [TokenIds(self.ids(text)) for text in texts]
        found: list[TokenIds] = []
        done = 0
        for encoding in self._encodings(self._backend, texts):
            ids = self._checked(encoding.ids)
            if done + len(ids) > GIL_STEP:
                time.sleep(GIL_PAUSE)
                done = 0
            done += len(ids)
            found.append(TokenIds(ids) if len(ids) <= GIL_STEP else _in_steps(ids))
        return found

    def _encodings(self, backend: _Backend, texts: list[str]) -> Iterable[_Encoding]:
        if sum(map(len, texts)) <= SHORT_TEXT:
            return (backend.encode(text, add_special_tokens=False) for text in texts)
        return backend.encode_batch_fast(texts, add_special_tokens=False)

    def _ids_in_python(self, text: str) -> list[int]:
        # Tokenizers written in Python keep state while they encode.
        with self._lock:
            return token_ids_of(self._tokenizer(text, add_special_tokens=False))

    def _checked(self, ids: list[int]) -> list[int]:
        if self._vocabulary_size is not None:
            check_vocabulary(ids, self._vocabulary_size, "the tokenizer made")
        return ids


def token_ids_of(encoded: object) -> list[int]:
    """Ids out of whatever a tokenizer returns: a list, a batch of one, a tensor, or a mapping with `input_ids`.

    transformers 5 returns a BatchEncoding where 4 returned a list; tensors and arrays have `tolist`.
    """
    if isinstance(encoded, Mapping):
        encoded = encoded["input_ids"]
    elif hasattr(encoded, "input_ids"):
        encoded = encoded.input_ids
    if isinstance(encoded, _HasToList):
        encoded = encoded.tolist()
    if isinstance(encoded, list | tuple) and encoded and isinstance(encoded[0], list | tuple):
        encoded = encoded[0]
    if not isinstance(encoded, list | tuple):
        raise TypeError(f"expected token ids, got {type(encoded).__name__}")
    return [int(token_id) for token_id in encoded]


def _in_steps(ids: list[int]) -> TokenIds:
    """The JSON text of very many ids, made so that the event loop gets the GIL in between."""
    parts = []
    for start in range(0, len(ids), GIL_STEP):
        parts.append(TokenIds(ids[start : start + GIL_STEP]))
        time.sleep(GIL_PAUSE)
    return TokenIds.chained(parts)


def _start_library_threads(backend: _Backend) -> None:
    """Have the library start its threads, at a lower priority where they are not running yet.

    They start with the first batch and take over the priority of the thread that asks for it. Only Linux has one for
    each thread.
    """

    def start() -> None:
        if sys.platform == "linux":
            niceness = min(LOWEST_NICENESS, os.getpriority(os.PRIO_PROCESS, 0) + LIBRARY_NICENESS)
            # Some sandboxes forbid it; then the event loop waits a little longer.
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
        backend.encode_batch_fast(["", ""], add_special_tokens=False)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
