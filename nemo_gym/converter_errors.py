"""What the converter refuses."""

from __future__ import annotations

from nemo_gym.errors import RequestError


class UnsupportedContentError(RequestError, NotImplementedError):
    """The request is well formed, but a chat request has no place for this item, part, tool or field.

    Also a NotImplementedError, which is what NeMo Gym's converter raises.
    """

    code = "unsupported_content"


def unsupported(where: str, what: str, expected: str) -> UnsupportedContentError:
    """The error for `what` at `where`; it names types, never what they hold."""
    return UnsupportedContentError(f"{where}: {what} is not supported; expected {expected}", param=where)
