"""When a call may be repeated, and how long to wait before it is.

Pure policy: no sockets, no clock, no random numbers of its own. It must not know what a request is about. The
rule behind every line: repeat only what can pass with time and what the engine cannot have answered already.
A generation is expensive, so a response that began to arrive, or one that took too long, is never asked for
twice.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

import httpx

RETRY_STATUSES = frozenset({429, 502, 503, 504, 520, 529})
"""Busy, starting, draining, or a proxy without its engine. 500 is absent: SGLang 0.5.13 answers 500 to an
unknown sampling key, which a second try meets again."""

_DISCONNECTED = "Server disconnected"
_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?")


class StaleConnectionError(httpx.RemoteProtocolError):
    """A kept-alive connection was closed by the server while it lay idle; the request was never looked at."""


class EventCounter(Protocol):
    """Counts what happens to calls: `http_attempt`, `http_retry_<reason>`, `http_failure_<reason>`.

    A reason is one of `classify`, "broken_off", or a status, so the names are few.
    """

    def count(self, event: str, /) -> None: ...


@dataclass(frozen=True, slots=True)
class TransportFailure:
    """What went wrong before the first byte of a response: a label for counters and whether time may mend
    it."""

    reason: str
    transient: bool
    stale: bool = False
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a call is tried and how long is waited in between; all times in seconds."""

    max_attempts: int
    backoff_initial: float
    backoff_max: float
    retry_after_max: float
    statuses: frozenset[int]

    def delay(self, attempt: int, *, jitter: float, retry_after: float | None = None) -> float:
        """Return the seconds to wait after attempt number `attempt` (1 is the first) failed.

        Exponential backoff with full jitter (`jitter` is uniform in [0, 1)): thousands of rollouts meet the
        same busy engine at the same moment and must not come back together. The engine's Retry-After is
        waited out first, up to `retry_after_max`, and the jitter comes on top for the same reason.
        """
        ceiling = min(self.backoff_max, self.backoff_initial * 2.0 ** min(attempt - 1, 32))
        asked = 0.0 if retry_after is None else min(retry_after, self.retry_after_max)
        return asked + ceiling * jitter


def classify(error: httpx.TransportError) -> TransportFailure:
    """Say what kind of failure `error` is, given that no byte of a response had arrived.

    A read timeout is final: the generation may still be running, and a repetition would run it twice.
    """
    match error:
        case StaleConnectionError():
            return TransportFailure("stale_connection", transient=True, stale=True)
        case httpx.ConnectError() if _is_tls_refusal(error):
            return TransportFailure("tls", transient=False, detail=str(error)[:200])
        case httpx.ConnectError():
            return TransportFailure("connect", transient=True, detail=str(error)[:200])
        case httpx.ConnectTimeout():
            return TransportFailure("connect_timeout", transient=True)
        case httpx.PoolTimeout():
            return TransportFailure("pool_timeout", transient=True)
        case httpx.ReadTimeout():
            return TransportFailure("read_timeout", transient=False)
        case httpx.WriteTimeout():
            return TransportFailure("write_timeout", transient=False)
        case httpx.NetworkError():
            return TransportFailure("disconnected", transient=True)
        case httpx.RemoteProtocolError() if str(error).startswith(_DISCONNECTED):
            # httpcore's wording, which our own transport uses as well.
            return TransportFailure("disconnected", transient=True)
        case httpx.RemoteProtocolError():
            return TransportFailure("protocol", transient=False)
    return TransportFailure("transport", transient=False)


def disconnected() -> httpx.RemoteProtocolError:
    """The exception of a connection that closed before the first byte of a response."""
    return httpx.RemoteProtocolError(f"{_DISCONNECTED} without sending a response.")


def parse_retry_after(value: str | None, *, now: datetime) -> float | None:
    """Read a Retry-After header, seconds or an HTTP date, into seconds from `now`; None when absent or
    unreadable."""
    if value is None:
        return None
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _is_tls_refusal(error: BaseException) -> bool:
    """A certificate that is not trusted now will not be in a second; a handshake that was cut short may."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLError):
            return not isinstance(seen, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        seen = seen.__cause__ or seen.__context__
    return False
