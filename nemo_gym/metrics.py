"""What a server counts about itself, as Prometheus text at GET /metrics.

Every application has a registry of its own, so that two servers in one process (tests, the demo) do not mix.
With several workers a scrape meets one of them: the label `worker` keeps their series apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METRICS_CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
CLIENT_GONE_STATUS: Final = 499  # nginx's number for a client that closed the connection before the answer

# A turn takes from milliseconds (cached, stand-in engine) to many minutes (long reasoning on a full queue).
_SECONDS_BUCKETS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
)
_UNMATCHED: Final = "unmatched"


class Metrics:
    """The counters of one application. Their series are bounded: labels are names fixed in code.

    Each series is looked up once and kept: prometheus_client's `labels()` costs more than the counting.
    """

    def __init__(self, *, worker: str = "main") -> None:
        self._registry = registry = CollectorRegistry()
        self._worker = worker
        requests = Counter(
            "nemo_gym_requests", "Requests answered", ["worker", "route", "status"], registry=registry
        )
        seconds = Histogram(
            "nemo_gym_request_seconds",
            "Time from a request's first byte in the application to the end of its response",
            ["worker", "route"],
            buckets=_SECONDS_BUCKETS,
            registry=registry,
        )
        in_progress = Gauge(
            "nemo_gym_requests_in_progress", "Requests being worked on", ["worker"], registry=registry
        )
        events = Counter("nemo_gym_events", "What happened, by name", ["worker", "event"], registry=registry)
        tokens = Counter(
            "nemo_gym_tokens", "Tokens of answered turns, by kind", ["worker", "kind"], registry=registry
        )
        self._requests = cache(partial(requests.labels, worker))
        self._seconds = cache(partial(seconds.labels, worker))
        self._in_progress = in_progress.labels(worker)
        self._events = cache(partial(events.labels, worker))
        self._tokens = cache(partial(tokens.labels, worker))

    def count(self, event: str, amount: float = 1) -> None:
        """Count `event`, a name fixed in code such as "generation_aborted", never a caller's text."""
        self._events(event).inc(amount)

    def count_tokens(self, *, prompt: int, generated: int) -> None:
        """Count the tokens of one answered turn."""
        self._tokens("prompt").inc(prompt)
        self._tokens("generated").inc(generated)

    def watch(self, name: str, documentation: str, read: Callable[[], float]) -> None:
        """Report `read()` as the gauge `nemo_gym_<name>`, asked for at each scrape."""
        gauge = Gauge(f"nemo_gym_{name}", documentation, ["worker"], registry=self._registry)
        gauge.labels(self._worker).set_function(read)

    def request_started(self) -> None:
        self._in_progress.inc()

    def request_ended(self, route: str, status: int, seconds: float) -> None:
        self._in_progress.dec()
        self._requests(route, str(status)).inc()
        self._seconds(route).observe(seconds)

    def exposition(self) -> bytes:
        """Return everything counted so far as Prometheus text."""
        return generate_latest(self._registry)


class MetricsMiddleware:
    """Pure ASGI, outermost: counts what the client got, errors included."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics
        self._paths: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status = CLIENT_GONE_STATUS

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = time.perf_counter()
        self._metrics.request_started()
        try:
            await self.app(scope, receive, send_and_note)
        finally:
            self._metrics.request_ended(self._route(scope), status, time.perf_counter() - started)

    def _route(self, scope: Scope) -> str:
        """Return the registered path that served the request; a caller's text never becomes a label."""
        matched = getattr(scope.get("route"), "path", None)
        if isinstance(matched, str):
            return matched
        path: str = scope["path"]
        if path in self._paths:
            return path
        app = scope.get("app")
        if isinstance(app, Starlette) and any(getattr(route, "path", None) == path for route in app.routes):
            self._paths.add(path)
            return path
        return _UNMATCHED
