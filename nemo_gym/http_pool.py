"""One HTTP client per process, and calls through it that end: with an answer, or with an error of our tree.

Owns connections, timeouts and bounded repetition. Must not know what is sent: no paths, no JSON, no keys.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
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
    """Owns one httpx.AsyncClient, made on first use inside the running loop.

    Invariants: no cookie is ever stored, so sessions cannot mix; no redirect is followed; the environment's
    proxies and netrc are not read, because a proxy meant for the internet must not see prompts that go to the
    engine next door. After `aclose()` the next call opens a new client; so does a call from another event
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
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sockets: SocketTransport | None = None

    @property
    def client(self) -> httpx.AsyncClient:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._abandon()
            self._client = self._open()
            self._loop = loop
        return self._client

    async def aclose(self) -> None:
        """Close all connections; the pool can be used again afterwards."""
        client = self._client
        if client is None:
            return
        if self._loop is not asyncio.get_running_loop():
            self._abandon()
            return
        self._client = self._sockets = None
        await client.aclose()

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
        where = describe(method, httpx.URL(url), name)
        call = _Call(method, httpx.URL(url), where, content, dict(headers or {}), timeout or self._timeout)
        limit = max_attempts or self._policy.max_attempts
        attempt = 0
        while True:
            attempt += 1
            outcome = await self._attempt(call)
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

    async def _attempt(self, call: _Call) -> httpx.Response | TransportFailure:
        """Try once. Dead idle connections do not count: the engine never saw what was sent over them."""
        for _ in range(MAX_STALE_RESENDS):
            outcome = await self._exchange(call)
            if not (isinstance(outcome, TransportFailure) and outcome.stale):
                return outcome
            self._count(f"http_retry_{outcome.reason}")
        return await self._exchange(call)

    async def _exchange(self, call: _Call) -> httpx.Response | TransportFailure:
        """Send once. Returns an answer, or a failure that time may mend; raises for any other."""
        self._count("http_attempt")
        request = self.client.build_request(
            call.method, call.url, content=call.content, headers=call.headers, timeout=call.timeout
        )
        try:
            response = await self.client.send(request, stream=True)
        except httpx.TransportError as error:
            failure = classify(error)
            if failure.transient:
                return failure
            self._count(f"http_failure_{failure.reason}")
            raise transport_error(failure, call.where) from error
        try:
            await response.aread()
        except httpx.RequestError as error:
            if response.is_success:
                self._count("http_failure_broken_off")
                raise broken_off_error(response, call.where, error) from error
            return _without_body(response)
        finally:
            await response.aclose()
        return response

    def _count(self, event: str) -> None:
        if self._observer is not None:
            self._observer.count(event)

    def _open(self) -> httpx.AsyncClient:
        transport: httpx.AsyncBaseTransport
        if self._transport is None:
            transport = self._sockets = SocketTransport(
                max_connections=self.config.max_connections, keepalive_expiry=self.config.keepalive_expiry
            )
        else:
            transport = _Borrowed(self._transport)
        return httpx.AsyncClient(
            transport=transport,
            timeout=self._timeout,
            follow_redirects=False,
            trust_env=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        )

    def _abandon(self) -> None:
        """Drop a client whose loop is not the running one; nothing of it can be awaited here."""
        if self._sockets is not None:
            self._sockets.abandon()
        self._client = self._sockets = None


class _Borrowed(httpx.AsyncBaseTransport):
    """Passes requests on to a transport that belongs to someone else, and does not close it."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._lent = transport

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._lent.handle_async_request(request)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, the same on every attempt; `where` names it in messages."""

    method: str
    url: httpx.URL
    where: str
    content: bytes | None
    headers: dict[str, str]
    timeout: httpx.Timeout


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
