"""One HTTP client per process, and calls through it that end: with an answer, or with an error of our tree.

Owns connections, timeouts and bounded repetition. Must not know what is sent: no paths, no JSON, no keys.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nemo_gym.http_errors import broken_off_error, describe, transport_error, unavailable_error
from nemo_gym.http_retry import (
    RETRY_STATUSES,
    EventCounter,
    RetryPolicy,
    TransportFailure,
    classify,
    parse_retry_after,
)
from nemo_gym.http_transport import SocketTransport

logger = logging.getLogger(__name__)

MAX_STALE_RESENDS = 3
"""How many kept-alive connections in a row may turn out dead before that uses up an attempt."""

_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "nemo-gym-sglang"}
"""Sent where the caller says nothing else. Decompressing 600 kB of ids costs more than sending them plain."""

_parse_url = lru_cache(maxsize=256)(httpx.URL)
"""Each client calls a handful of addresses, and parsing one takes as long as making a request of it."""

_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HTTPClientConfig(BaseModel):
    """The block `http_client:` of a model server. All times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    connect_timeout: _Seconds = 10.0
    """Seconds to open one TCP (and TLS) connection."""

    read_timeout: _Seconds | None = 3600.0
    """Seconds without a byte from the engine before a call is given up; null waits for ever. A generation
    that is not streamed is silent until its last token, so this bounds queueing plus the whole generation:
    32k tokens at 20 tokens per second take 27 minutes. A host that vanished is noticed by TCP keep-alive long
    before."""

    write_timeout: _Seconds | None = 60.0
    """Seconds that an engine which does not read may hold up a request body, on top of `read_timeout`; null
    waits."""

    pool_timeout: _Seconds | None = 600.0
    """Seconds to wait for a free connection when all `max_connections` are in use, connecting included; null
    waits."""

    max_connections: Annotated[int, Field(ge=1)] | None = 8192
    """Connections open at once in one process; null for no limit. More calls than that wait in order of
    arrival. Each connection is a file descriptor."""

    keepalive_expiry: _Seconds = 4.0
    """Seconds an idle connection is kept for the next call. Below the 5 seconds after which SGLang's uvicorn
    closes it, so that the two ends rarely disagree; when they do, the request is sent again at once."""

    max_attempts: Annotated[int, Field(ge=1, le=100)] = 6
    """How often a call is tried in all. Repeated: refused and lost connections before a byte of an answer,
    connect timeouts, and `retry_statuses`. Never repeated: read timeouts and answers that broke off."""

    backoff_initial: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5
    """Longest wait, in seconds, before the second attempt; doubled for each further one. The wait is drawn
    uniformly from zero to that."""

    backoff_max: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Upper bound, in seconds, of one backoff wait."""

    retry_after_max: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 60.0
    """Upper bound, in seconds, of the engine's `Retry-After` that is honoured; zero ignores the header."""

    retry_statuses: frozenset[Annotated[int, Field(ge=400, le=599)]] = RETRY_STATUSES
    """Statuses that can pass with time. SGLang's 500 cannot, so adding it repeats deterministic failures."""

    @model_validator(mode="after")
    def _check_backoff(self) -> Self:
        if self.backoff_initial > self.backoff_max:
            raise ValueError(
                f"backoff_initial ({self.backoff_initial:g} s) is above backoff_max ({self.backoff_max:g} s)"
            )
        return self

    def retry_policy(self) -> RetryPolicy:
        return RetryPolicy(
            max_attempts=self.max_attempts,
            backoff_initial=self.backoff_initial,
            backoff_max=self.backoff_max,
            retry_after_max=self.retry_after_max,
            statuses=self.retry_statuses,
        )


class HTTPPool:
    """Owns one transport, made on first use inside the running loop, and calls it directly.

    httpx.AsyncClient is not in between: its cookies, redirects, authentication and hooks are what must not happen
    here, and cost more per call (0.2 ms) than sending it.

    Invariants: no cookie is ever stored, so sessions cannot mix; no redirect is followed; the environment's
    proxies and netrc are not read, because a proxy meant for the internet must not see prompts that go to the
    engine next door. After `aclose()` the next call opens new connections; so does a call from another event
    loop. An injected `transport` is borrowed: it is never closed here. `observer` counts attempts, retries
    and failures.
    """

    def __init__(
        self,
        config: HTTPClientConfig = HTTPClientConfig(),  # noqa: B008 - frozen
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        observer: EventCounter | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.config = config
        self._transport = transport
        self._observer = observer
        self._sleep = sleep
        self._jitter = jitter
        self._policy = config.retry_policy()
        self._timeout = httpx.Timeout(
            connect=config.connect_timeout,
            read=config.read_timeout,
            write=config.write_timeout,
            pool=config.pool_timeout,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets: SocketTransport | None = None

    async def aclose(self) -> None:
        """Close all connections; the pool can be used again afterwards."""
        sockets, self._sockets = self._sockets, None
        if sockets is None:
            return
        if self._loop is asyncio.get_running_loop():
            await sockets.aclose()
        else:
            sockets.abandon()

    async def send(
        self,
        method: str,
        url: str,
        *,
        name: str = "http",
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: httpx.Timeout | None = None,  # noqa: ASYNC109 - four limits, enforced by the transport
        max_attempts: int | None = None,
        secret: str = "",
    ) -> httpx.Response:
        """Return the answer to one request, its body read, whatever its status; repeat what can pass.

        Raises UpstreamUnavailableError when the last attempt failed in a way that another might not,
        UpstreamContractError when an answer broke off, UpstreamError (500) for the rest. `name` is the
        caller's, for messages; `secret` must not appear in them.
        """
        address = _parse_url(url)
        where = describe(method, address, name)
        request = _build_request(method, address, content, headers or {}, timeout or self._timeout)
        limit = max_attempts or self._policy.max_attempts
        attempt = 0
        while True:
            attempt += 1
            outcome = await self._attempt(request, where)
            if isinstance(outcome, httpx.Response) and outcome.status_code not in self._policy.statuses:
                if outcome.is_error:
                    self._count(f"http_failure_{_reason(outcome)}")
                return outcome
            reason, retry_after = _reason(outcome), _retry_after(outcome)
            if attempt >= limit:
                self._count(f"http_failure_{reason}")
                raise unavailable_error(outcome, where, attempt, retry_after=retry_after, secret=secret)
            delay = self._policy.delay(attempt, jitter=self._jitter(), retry_after=retry_after)
            logger.info("%s: %s in attempt %d of %d, next in %.2f s", where, reason, attempt, limit, delay)
            self._count(f"http_retry_{reason}")
            await self._sleep(delay)

    async def _attempt(self, request: httpx.Request, where: str) -> httpx.Response | TransportFailure:
        """Try once. Dead idle connections do not count: the engine never saw what was sent over them."""
        for _ in range(MAX_STALE_RESENDS):
            outcome = await self._exchange(request, where)
            if not (isinstance(outcome, TransportFailure) and outcome.stale):
                return outcome
            self._count(f"http_retry_{outcome.reason}")
        return await self._exchange(request, where)

    async def _exchange(self, request: httpx.Request, where: str) -> httpx.Response | TransportFailure:
        """Send once. Returns an answer, or a failure that time may mend; raises for any other."""
        self._count("http_attempt")
        try:
            response = await self._open_transport().handle_async_request(request)
        except httpx.TransportError as error:
            failure = classify(error)
            if failure.transient:
                return failure
            self._count(f"http_failure_{failure.reason}")
            raise transport_error(failure, where) from error
        response.request = request
        try:
            await response.aread()
        except httpx.RequestError as error:
            if response.is_success:
                self._count("http_failure_broken_off")
                raise broken_off_error(response, where, error) from error
            return _without_body(response)
        finally:
            await response.aclose()
        return response

    def _count(self, event: str) -> None:
        if self._observer is not None:
            self._observer.count(event)

    def _open_transport(self) -> httpx.AsyncBaseTransport:
        """Return the injected transport, else the sockets of the running loop."""
        if self._transport is not None:
            return self._transport
        loop = asyncio.get_running_loop()
        if self._sockets is None or self._loop is not loop:
            if self._sockets is not None:
                self._sockets.abandon()
            self._loop = loop
            self._sockets = SocketTransport(
                max_connections=self.config.max_connections, keepalive_expiry=self.config.keepalive_expiry
            )
        return self._sockets


def _build_request(
    method: str, url: httpx.URL, content: bytes | None, headers: Mapping[str, str], timeout: httpx.Timeout
) -> httpx.Request:
    """Return the request, its body by reference. Given a stream, httpx leaves the framing headers to the caller,
    which takes a third of the time that it needs to find out what is missing."""
    request = httpx.Request(
        method,
        url,
        headers=_headers(url.netloc, tuple(headers.items())),  # of which it makes a copy
        stream=httpx.ByteStream(content or b""),
        extensions={"timeout": timeout.as_dict()},
    )
    if content is not None:
        request.headers["content-length"] = str(len(content))
    return request


@lru_cache(maxsize=256)
def _headers(netloc: bytes, given: tuple[tuple[str, str], ...]) -> httpx.Headers:
    """The headers that all calls of a client have; the same few again and again."""
    sent = {"host": netloc.decode("ascii"), **_HEADERS}
    sent.update((key.lower(), value) for key, value in given)
    return httpx.Headers(sent)


def _reason(outcome: httpx.Response | TransportFailure) -> str:
    return outcome.reason if isinstance(outcome, TransportFailure) else f"status_{outcome.status_code}"


def _without_body(response: httpx.Response) -> httpx.Response:
    """An error whose body broke off keeps its status and its Retry-After; the words are lost."""
    kept = {key: value for key, value in response.headers.items() if key in {"retry-after", "location"}}
    return httpx.Response(response.status_code, headers=kept, request=response.request)


def _retry_after(outcome: httpx.Response | TransportFailure) -> float | None:
    if isinstance(outcome, TransportFailure):
        return None
    return parse_retry_after(outcome.headers.get("retry-after"), now=datetime.now(UTC))
