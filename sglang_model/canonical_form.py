"""One byte string for every JSON value, equal for values that mean the same and for no others.

Pure: it knows JSON values and no message. Used for comparing, never for sending: nothing reads these bytes
back.
"""

from __future__ import annotations

import json
import os
from typing import Final

# Not orjson: that one writes NaN as null and takes no integer beyond 64 bits.
_ENCODER: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def canonical_form(value: object) -> bytes:
    """Return the bytes that stand for `value`; never raises for what it is given.

    The order of keys does not count, the order of lists does; 1 and 1.0 are the same number, True is not 1.
    The form is JSON itself, in which no two values run together. What JSON cannot hold (other types,
    cycles, nesting without end) gets bytes that equal nothing, itself included: it can cost a match, never
    make one.
    """
    try:
        text = _ENCODER.encode(value)
        # How Python writes floats without a fraction: 1.0, 1e+16. In a string it is a harmless false alarm.
        if ".0" in text or "e+" in text:
            text = _ENCODER.encode(_with_integers(value))
    except (TypeError, ValueError, RecursionError):
        return b"?" + os.urandom(16)
    # Half of a surrogate pair is legal in JSON ("\ud83d") and has no strict UTF-8.
    return text.encode("utf-8", "surrogatepass")


def _with_integers(value: object) -> object:
    """The same value with every float that has no fraction as an integer."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _with_integers(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_integers(element) for element in value]
    return value
