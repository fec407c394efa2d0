"""Counts what happens to calls of the engine among the server's own metrics."""

from __future__ import annotations

from nemo_gym.metrics import Metrics


class EngineCallMetrics:
    """A RetryObserver: attempts, retries and failures of calls, by what they were about."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_attempt(self, path: str) -> None:  # noqa: ARG002 - part of the protocol
        self._metrics.count("engine_attempt")

    def on_retry(self, path: str, reason: str, delay: float) -> None:  # noqa: ARG002
        self._metrics.count(f"engine_retry_{reason}")

    def on_failure(self, path: str, reason: str) -> None:  # noqa: ARG002
        self._metrics.count(f"engine_failure_{reason}")
