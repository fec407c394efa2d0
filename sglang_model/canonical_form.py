"""One byte string for every JSON value, equal for values that mean the same and for no others.

Pure: it knows JSON values and no message. Used for comparing, never for sending: nothing reads these bytes
back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

_DEEPEST: Final = 200
"""Levels of nesting that are followed: above any real schema, below Python's recursion limit."""


class _NoFormError(ValueError):
    """The value is no JSON value, or is nested too deeply."""


def canonical_form(value: object) -> bytes:
    """Return the bytes that stand for `value`; never raises for what it is given.

    The order of keys does not count, the order of lists does; 1 and 1.0 are the same number, True is not 1.
    Every part carries its length, so that no two values run together into the same bytes. What has no form
    (no JSON type, nested beyond 200 levels) gets bytes that equal nothing, itself included: it can cost a
    match, never make one.
    """
    out: list[bytes] = []
    try:
        _write(value, out, _DEEPEST)
    except _NoFormError:
        return b"?" + os.urandom(16)
    return b"".join(out)


def _write(value: object, out: list[bytes], levels: int) -> None:
    if isinstance(value, str):
        # Half of a surrogate pair is legal in JSON ("\ud83d") and has no strict UTF-8.
        text = value.encode("utf-8", "surrogatepass")
        out.append(b"s%d:" % len(text))
        out.append(text)
    elif value is None:
        out.append(b"n")
    elif isinstance(value, bool):
        out.append(b"t" if value else b"f")
    elif isinstance(value, (int, float)):
        out.append(_number(value))
    elif levels == 0:
        raise _NoFormError
    elif isinstance(value, Mapping):
        _write_mapping(value, out, levels - 1)
    elif isinstance(value, (list, tuple)):
        out.append(b"l%d:" % len(value))
        for element in value:
            _write(element, out, levels - 1)
    else:
        raise _NoFormError


def _write_mapping(value: Mapping[object, object], out: list[bytes], levels: int) -> None:
    entries: list[tuple[bytes, object]] = []
    for key, element in value.items():
        form: list[bytes] = []
        _write(key, form, 0)
        entries.append((b"".join(form), element))
    entries.sort(key=lambda entry: entry[0])
    out.append(b"m%d:" % len(entries))
    for form_of_key, element in entries:
        out.append(form_of_key)
        _write(element, out, levels)


def _number(value: float) -> bytes:
    # Hexadecimal: Python refuses to write an int of more than 4300 decimal digits.
    if isinstance(value, int):
        return b"i%x;" % value
    if math.isfinite(value) and value.is_integer():
        return b"i%x;" % int(value)
    return b"d%s;" % repr(float(value)).encode()
