"""What went wrong with a call, in one short line, and the error that carries it.

Knows the error shapes of SGLang, OpenAI, FastAPI and the proxies in between. Must not know how a call was
made. Everything taken over from a response is bounded, and request bodies that SGLang repeats inside its own
messages are cut off.
"""

from __future__ import annotations

import re

import httpx
import orjson

from nemo_gym.errors import (
    UpstreamContractError,
    UpstreamError,
    UpstreamStatusError,
    UpstreamUnavailableError,
)
from nemo_gym.http_retry import TransportFailure

MAX_MESSAGE_CHARS = 500
_MAX_DEPTH = 8

_MEANING = {
    "connect": "no connection could be made",
    "connect_timeout": "no connection in time (`http_client.connect_timeout`, `http_client.pool_timeout`)",
    "pool_timeout": "no free connection in time (`http_client.pool_timeout`, `http_client.max_connections`)",
    "disconnected": "the connection closed before an answer came",
    "stale_connection": "idle connections had been closed by the server (`http_client.keepalive_expiry`)",
    "tls": "TLS was refused; is `base_url` really https, and the certificate's issuer in SSL_CERT_FILE?",
    "read_timeout": (
        "no data for `http_client.read_timeout` seconds; not repeated, the generation may still be running"
    ),
    "write_timeout": "the request body was not taken in time (`http_client.write_timeout`)",
    "protocol": "the answer is not HTTP or broke off inside its head; is `base_url` the engine's address?",
    "transport": "the request could not be sent",
}
"""One phrase for each reason of http_retry.classify, with the knob that matters."""

_TAG = re.compile(r"<(script|style)\b.*?</\1\s*>|<!--.*?-->|<[^>]*>", re.DOTALL | re.IGNORECASE)
_ECHOED = re.compile(
    r"""['"](?:input\\?['"]\s*:|(?:messages|prompt|text|content)\\?['"]\s*:(?=\s*(?:\\?['"]|b['"]|[\[{(])))"""
)
"""Where a repeated request begins: a quoted key, as JSON, as Python or inside of a quoted text, and its value."""


def engine_message(content: bytes, *, secret: str = "") -> str:
    """Return the words of an error body, at most MAX_MESSAGE_CHARS of them; "(empty body)" when it has none.

    SGLang 0.5.13 alone has five shapes: {"object": "error", "message"}, {"error": {"message"}}, {"error":
    "Unauthorized"}, {"detail": "Not Found"} and plain text. Its schema errors repeat the request body after
    `'input':`, others quote messages; from such a key on everything is dropped, because it holds the prompt.
    `secret` is blotted out: some servers repeat the API key they refuse.
    """
    try:
        found = _message_in(orjson.loads(content))
    except orjson.JSONDecodeError:
        found = None
    if found is None:
        # Far more than is kept: markup is mostly tags, and an error page may be megabytes.
        head = content[: 16 * MAX_MESSAGE_CHARS].decode("utf-8", "replace")
        found = _TAG.sub(" ", head) if head.lstrip().startswith("<") else head
    if (echo := _ECHOED.search(found)) is not None:
        found = f"{found[: echo.end()]} (cut)"
    words = " ".join(found.split()) or "(empty body)"
    if secret:
        words = words.replace(secret, "***")
    return words if len(words) <= MAX_MESSAGE_CHARS else words[: MAX_MESSAGE_CHARS - 3] + "..."


def status_error(response: httpx.Response, *, where: str, secret: str = "") -> UpstreamStatusError:
    """Build the error of an answer that is no success; `where` names the call, `secret` must not appear in
    the text."""
    status, content = response.status_code, response.content
    said = engine_message(content, secret=secret)
    if 300 <= status < 400:
        message = (
            f"{where} answered with status {status}, a redirect{_target(response)}; redirects are not "
            "followed, because a POST would lose its body: set `base_url` to the final address"
        )
    else:
        message = f"{where} answered with status {status}: {said}"
    return UpstreamStatusError(message, status=status, response_content=content, engine_message=said)


def transport_error(failure: TransportFailure, where: str) -> UpstreamError:
    """Build the error of a call that got no answer and must not be repeated: a 500, so that nobody repeats
    it."""
    code = "upstream_timeout" if failure.reason.endswith("timeout") else "upstream_transport"
    return UpstreamError(f"{where} failed: {_explain(failure)}", code=code)


def broken_off_error(response: httpx.Response, where: str, error: httpx.RequestError) -> UpstreamError:
    """Build the error of a success whose body did not arrive whole."""
    received = response.num_bytes_downloaded
    if isinstance(error, httpx.ReadTimeout):
        message = f"{where} fell silent after {received} bytes of the answer: {_MEANING['read_timeout']}"
        return UpstreamError(message, code="upstream_timeout")
    problem = "cannot be decoded" if isinstance(error, httpx.DecodingError) else "broke off"
    return UpstreamContractError(
        f"{where} answered with status {response.status_code}, but the body {problem} after {received} bytes "
        f"(Content-Length: {response.headers.get('content-length', 'none')}); it is not asked for again"
    )


def unavailable_error(
    outcome: httpx.Response | TransportFailure,
    where: str,
    attempts: int,
    *,
    retry_after: float | None,
    secret: str = "",
) -> UpstreamUnavailableError:
    """Build the error of a call whose last attempt, number `attempts`, failed in a way that time may mend."""
    tried = f"{where} failed {attempts} time{'' if attempts == 1 else 's'}, at last because"
    knob = "`http_client.max_attempts` sets how often a call is tried"
    if isinstance(outcome, TransportFailure):
        return UpstreamUnavailableError(
            f"{tried} {_explain(outcome)}; {knob}", unreachable=outcome.reason != "pool_timeout"
        )
    said = engine_message(outcome.content, secret=secret)
    return UpstreamUnavailableError(
        f"{tried} it answered with status {outcome.status_code}: {said}; {knob}",
        status=outcome.status_code,
        response_content=outcome.content,
        retry_after=retry_after,
    )


def describe(method: str, url: httpx.URL, name: str) -> str:
    """Name a call in messages: who, what, where; without the query, which may hold a key."""
    port = url.port or {"http": 80, "https": 443}.get(url.scheme)
    return f"{name}: {method} {url.path} at {url.host}:{port}"


def _explain(failure: TransportFailure) -> str:
    meaning = _MEANING[failure.reason]
    return f"{meaning} ({failure.detail})" if failure.detail else meaning


def _message_in(value: object, depth: int = 0) -> str | None:
    """Find the sentence in decoded JSON; None when the value has no shape that is known."""
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part for part in (_message_in(item, depth + 1) for item in value[:5]) if part]
        return "; ".join(parts) or None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("msg"), str):  # one entry of FastAPI's 422; its "input" is the caller's data
        place = ".".join(str(step) for step in value["loc"]) if isinstance(value.get("loc"), list) else ""
        return f"{place}: {value['msg']}" if place else value["msg"]
    for key in ("message", "error", "detail"):
        found = _message_in(value.get(key), depth + 1)
        if found:
            return found
    return None


def _target(response: httpx.Response) -> str:
    """Say where a redirect leads, without its query and without credentials."""
    location = response.headers.get("location")
    if not location:
        return ""
    try:
        url = response.url.join(location)
    except (httpx.InvalidURL, ValueError):
        return ""
    return f" to {url.scheme}://{url.netloc.decode('ascii')}{url.path}"
