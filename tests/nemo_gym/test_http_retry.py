"""The retry policy by itself: waits, Retry-After, and which failures may be repeated."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.http_retry import (
    RETRY_STATUSES,
    RetryPolicy,
    StaleConnectionError,
    TransportFailure,
    classify,
    parse_retry_after,
)

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def policy(*, backoff_max: float = 8.0) -> RetryPolicy:
    return RetryPolicy(
        max_attempts=6,
        backoff_initial=0.5,
        backoff_max=backoff_max,
        retry_after_max=60.0,
        statuses=RETRY_STATUSES,
    )


def test_longest_wait_doubles_up_to_its_bound() -> None:
    assert [policy().delay(attempt, jitter=1.0) for attempt in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]


@given(attempt=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_wait_is_never_negative_and_never_above_its_bound(attempt: int, jitter: float) -> None:
    assert 0 <= policy().delay(attempt, jitter=jitter) <= 8.0


def test_jitter_spreads_over_the_whole_wait() -> None:
    assert policy().delay(3, jitter=0.0) == 0.0
    assert policy().delay(3, jitter=0.5) == 1.0


def test_retry_after_is_waited_out_before_the_jitter_and_is_bounded() -> None:
    assert policy().delay(1, jitter=0.5, retry_after=10.0) == 10.25
    assert policy().delay(1, jitter=0.5, retry_after=86_400.0) == 60.25


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0.0),
        (" 120 ", 120.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 13:00:30 +0100", 30.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("Thursday, 01-Jan-26 12:00:30 GMT", 30.0),
        ("Thu Jan  1 12:00:30 2026", 30.0),
        (None, None),
        ("", None),
        ("-5", None),
        ("inf", None),
        ("soon", None),
        ("9" * 400, None),
        ("Thu, 99 Jan 2026 12:00:30 GMT", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(header: str | None, seconds: float | None) -> None:
    assert parse_retry_after(header, now=NOW) == seconds


@given(st.text(max_size=40))
def test_unreadable_retry_after_is_never_an_error(header: str) -> None:
    seconds = parse_retry_after(header, now=NOW)
    assert seconds is None or seconds >= 0


def test_deterministic_engine_failure_is_not_a_status_to_repeat() -> None:
    assert 500 not in RETRY_STATUSES


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ConnectError("refused"), TransportFailure("connect", transient=True, detail="refused")),
        (httpx.ConnectTimeout(""), TransportFailure("connect_timeout", transient=True)),
        (httpx.PoolTimeout(""), TransportFailure("pool_timeout", transient=True)),
        (httpx.ReadError(""), TransportFailure("disconnected", transient=True)),
        (httpx.WriteError(""), TransportFailure("disconnected", transient=True)),
        (httpx.CloseError(""), TransportFailure("disconnected", transient=True)),
        (
            httpx.RemoteProtocolError("Server disconnected without sending a response."),
            TransportFailure("disconnected", transient=True),
        ),
        (StaleConnectionError("x"), TransportFailure("stale_connection", transient=True, stale=True)),
        (httpx.RemoteProtocolError("illegal status line"), TransportFailure("protocol", transient=False)),
        (httpx.ReadTimeout(""), TransportFailure("read_timeout", transient=False)),
        (httpx.WriteTimeout(""), TransportFailure("write_timeout", transient=False)),
        (httpx.UnsupportedProtocol(""), TransportFailure("transport", transient=False)),
        (httpx.ProxyError(""), TransportFailure("transport", transient=False)),
    ],
)
def test_only_failures_before_an_answer_are_repeated(
    error: httpx.TransportError, expected: TransportFailure
) -> None:
    assert classify(error) == expected


@pytest.mark.parametrize(
    ("cause", "transient"),
    [(ssl.SSLCertVerificationError("self-signed certificate"), False), (ssl.SSLEOFError("EOF"), True)],
)
def test_refused_certificate_is_final_but_a_cut_handshake_is_not(
    cause: ssl.SSLError, transient: bool
) -> None:
    error = httpx.ConnectError("TLS")
    error.__cause__ = cause
    assert classify(error).transient is transient


def test_detail_of_a_failure_is_bounded() -> None:
    assert len(classify(httpx.ConnectError("x" * 10_000)).detail) == 200
