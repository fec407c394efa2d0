"""Which session a request belongs to.

A rollout's turns are recognised by their session id. This room decides it from the request alone, in the
order of `SessionMiddleware`, and puts it into `request.session[SESSION_ID_KEY]`. It keeps nothing between
requests: what is remembered about a session lives elsewhere.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Final
from uuid import uuid4

from starlette.datastructures import Headers
from starlette.middleware.sessions import SessionMiddleware as SignedCookieMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import RequestError
from nemo_gym.recent_cookies import IssuedCookie, RecentCookies
from nemo_gym.rollout_prefix import take_rollout_prefix

SESSION_ID_KEY: Final = "session_id"
SESSION_ID_HEADER: Final = "X-Session-Id"
SESSION_SECRET_ENV_VAR_NAME: Final = "NEMO_GYM_SESSION_SECRET"  # noqa: S105 - the name of a variable
MAX_SESSION_ID_LENGTH: Final = 256

_PRINTABLE: Final = re.compile(r"[!-~]+")


def new_session_secret() -> str:
    """Return a fresh signing secret of 256 bits."""
    return secrets.token_urlsafe(32)


def launch_session_secret() -> str | None:
    """Return the secret that the launching process shares with its workers, if it set one."""
    return os.environ.get(SESSION_SECRET_ENV_VAR_NAME) or None


def share_session_secret(secret: str) -> None:
    """Hand `secret` to the processes started from here on, so that each accepts the others' cookies."""
    os.environ[SESSION_SECRET_ENV_VAR_NAME] = secret


class SessionMiddleware:
    """Pure ASGI. Every HTTP request below it has a path without rollout prefix and a session id.

    The id comes from the signed cookie; failing that from the path prefix `/ng-rollout/<id>/`; failing that
    from the header `X-Session-Id`; failing that it is a new one. Ids that a client chooses are put in a
    namespace of their own (`rollout:`, `header:`), so that they never name the session behind someone else's
    cookie.

    The cookie is sent with every answer to a cookie or new session (NeMo Gym's agents forward only the
    cookies of the last answer), for an hour the same one (`RecentCookies`). It is never sent when the client
    named the session itself: a client with a cookie jar that runs several rollouts under different prefixes
    would otherwise end up with one session for all of them.
    """

    def __init__(
        self, app: ASGIApp, *, cookie_name: str, secret: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app = app
        self._signing = partial(SignedCookieMiddleware, secret_key=secret, session_cookie=cookie_name)
        self._with_cookie = self._signing(self._identify)
        self._recent = RecentCookies(cookie_name, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["nemo_gym.rollout_id"] = take_rollout_prefix(scope)
        issued = self._recent.find(scope)
        if issued is not None:
            await self._with_issued(issued, scope, receive, send)
            return

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._recent.note(message["headers"], scope["session"])
            await send(message)

        await self._with_cookie(scope, receive, send_and_note)

    async def _with_issued(self, issued: IssuedCookie, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose cookie is known, with the same cookie unless the handler changes the session."""
        scope["session"] = dict(issued.session)

        async def send_with_cookie(message: Message) -> None:
            if message["type"] != "http.response.start":
                await send(message)
            elif scope["session"] != issued.session:
                await self._send_signed(message, scope, receive, send)
            else:
                added = (b"vary", b"Cookie"), (b"set-cookie", issued.set_cookie)
                await send({**message, "headers": [*message.get("headers", ()), *added]})

        await self.app(scope, receive, send_with_cookie)

    async def _send_signed(self, message: Message, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the beginning of an answer with a cookie for the session as it is now."""

        async def answer(signed: Scope, _receive: Receive, send_signed: Send) -> None:
            signed["session"].clear()
            signed["session"].update(scope["session"])
            await send_signed(message)

        await self._signing(answer)(dict(scope), receive, send)

    async def _identify(self, scope: Scope, receive: Receive, send: Send) -> None:
        session: MutableMapping[str, object] = scope["session"]
        known = session.get(SESSION_ID_KEY)
        named = None if isinstance(known, str) and known else _named_by_client(scope)
        if named is not None:
            # In a scope of its own: the cookie middleware sees its session untouched and sends no cookie.
            await self.app({**scope, "session": {SESSION_ID_KEY: named}}, receive, send)
            return
        # Assigned also when it is known: only a changed session is sent again.
        session[SESSION_ID_KEY] = known if isinstance(known, str) and known else str(uuid4())
        await self.app(scope, receive, send)


def _named_by_client(scope: Scope) -> str | None:
    """Return the session id that the path prefix or the header names, or None when neither is there."""
    rollout_id: str | None = scope["nemo_gym.rollout_id"]
    if rollout_id is not None:
        return f"rollout:{rollout_id}"
    value = Headers(scope=scope).get(SESSION_ID_HEADER)
    if value is None:
        return None
    if len(value) > MAX_SESSION_ID_LENGTH or not _PRINTABLE.fullmatch(value):
        raise RequestError(
            f"{SESSION_ID_HEADER} must be 1 to {MAX_SESSION_ID_LENGTH} printable ASCII characters without "
            f"spaces, got {len(value)} characters",
            param=SESSION_ID_HEADER,
        )
    return f"header:{value}"
