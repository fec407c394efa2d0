"""Marks the output of several servers in one terminal: a prefix before every line, whole lines only."""

from __future__ import annotations

from typing import Final

_LONGEST_HELD_LINE: Final = 1 << 16


class LinePrefixer:
    """Prefixes the lines of a byte stream that arrives in pieces.

    A piece of a line is held until the line is complete, so that lines of two servers never mix; a line that
    never ends is passed on in parts. A line that carries the prefix already is passed on as it is: servers of
    this project put their name into their own log format, which makes them readable when NeMo Gym starts
    them.
    """

    def __init__(self, name: str) -> None:
        self._prefix = f"({name}) ".encode()
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the stream and return the lines that it completes."""
        *complete, self._held = (self._held + data).split(b"\n")
        if len(self._held) > _LONGEST_HELD_LINE:
            complete.append(self._held)
            self._held = b""
        return b"".join(self._marked(line) + b"\n" for line in complete)

    def flush(self) -> bytes:
        """Return what is left at the end of the stream, as a line of its own."""
        rest, self._held = self._held, b""
        return self._marked(rest) + b"\n" if rest else b""

    def _marked(self, line: bytes) -> bytes:
        return line if self._prefix in line + b" " else self._prefix + line
