from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Callable

import httpx
import itsdangerous
import orjson
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware as SignedCookieMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nemo_gym.error_responses import install_error_handling
from nemo_gym.errors import RequestError
from nemo_gym.recent_cookies import RecentCookies
from nemo_gym.rollout_prefix import split_rollout_prefix
from nemo_gym.sessions import SESSION_ID_KEY, SessionMiddleware
from tests.support.model_server import client_for

COOKIE = "SGLangModel___policy_model"
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


async def show(request: Request) -> Response:
    return JSONResponse({"session": request.session[SESSION_ID_KEY], "path": request.url.path})


def app_with_sessions(secret: str = "s" * 32) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_route("/v1/responses", show, methods=["GET"])
    app.add_route("/", show, methods=["GET"])
    app.add_middleware(SessionMiddleware, cookie_name=COOKIE, secret=secret)
    install_error_handling(app, "policy_model")
    return app


async def session_of(client: httpx.AsyncClient, path: str = "/v1/responses", **kwargs: object) -> str:
    response = await client.get(path, **kwargs)  # type: ignore[arg-type]
    assert response.status_code == 200, response.text
    session = response.json()["session"]
    assert isinstance(session, str)
    return session


async def test_a_first_call_gets_a_new_session_and_its_cookie() -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get("/v1/responses")
    assert UUID4.fullmatch(response.json()["session"])
    set_cookie = response.headers["set-cookie"]
    assert set_cookie.startswith(f"{COOKIE}=")
    assert "path=/" in set_cookie
    assert "httponly" in set_cookie
    assert "samesite=lax" in set_cookie
    assert "Max-Age=1209600" in set_cookie


async def test_the_cookie_keeps_the_session_and_comes_back_with_every_answer() -> None:
    async with client_for(app_with_sessions()) as client:
        first = await session_of(client)
        for _ in range(3):
            response = await client.get("/v1/responses")
            assert response.json()["session"] == first
            assert response.headers["set-cookie"].startswith(f"{COOKIE}=")


async def change(request: Request) -> Response:
    """What the query says is done to the session: `a=1` sets, `a=` deletes, `clear=` empties it."""
    for name, value in request.query_params.items():
        if name == "clear":
            request.session.clear()
        elif value:
            request.session[name] = value
        else:
            request.session.pop(name, None)
    return JSONResponse({name: value for name, value in request.session.items() if name != SESSION_ID_KEY})


def changing_app(clock: Callable[[], float] = time.monotonic) -> FastAPI:
    app = FastAPI(openapi_url=None)
    app.add_route("/", show, methods=["GET"])
    app.add_route("/change", change, methods=["GET"])
    app.add_middleware(SessionMiddleware, cookie_name=COOKIE, secret="s" * 32, clock=clock)
    return app


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the signatures made so far, which the library takes for their time."""
    made: list[int] = []

    def next_time(_signer: object) -> int:
        made.append(len(made))
        return int(time.time()) - 100 + len(made)

    monkeypatch.setattr(itsdangerous.TimestampSigner, "get_timestamp", next_time)
    return made


async def test_a_session_in_use_is_signed_once_an_hour(signatures: list[int]) -> None:
    now = 0.0
    async with client_for(changing_app(clock=lambda: now)) as client:
        first = await session_of(client, "/")
        cookies = {(await client.get("/")).headers["set-cookie"] for _ in range(3)}
        before = len(signatures)
        now = 3_601.0
        later = (await client.get("/")).headers["set-cookie"]
        assert await session_of(client, "/") == first
    assert len(cookies) == 1
    assert later not in cookies
    assert len(signatures) > before


async def test_a_changed_cookie_is_not_taken_for_the_one_that_was_signed() -> None:
    async with client_for(changing_app()) as client:
        first = await session_of(client, "/")
        cookie = client.cookies[COOKIE]
        for at in (0, len(cookie) // 2, len(cookie) - 1):
            forged = cookie[:at] + ("A" if cookie[at] != "A" else "B") + cookie[at + 1 :]
            client.cookies.clear()
            assert await session_of(client, "/", headers={"cookie": f"{COOKIE}={forged}"}) != first
        client.cookies.clear()
        assert await session_of(client, "/", headers={"cookie": f"other=1; {COOKIE}={cookie}"}) == first


CHANGES = st.lists(st.sampled_from(["a=1", "a=2", "b=1", "a=", "clear=", ""]), min_size=1, max_size=8)


@given(CHANGES)
def test_what_a_handler_keeps_in_the_session_is_kept_as_with_starlettes_own_middleware(
    changes: list[str],
) -> None:
    async def seen(app: FastAPI | Starlette) -> list[object]:
        async with client_for(app) as client:
            return [(await client.get(f"/change?{query}")).json() for query in changes]

    plain = Starlette(
        routes=[Route("/change", change)],
        middleware=[Middleware(SignedCookieMiddleware, secret_key="s" * 32, session_cookie=COOKIE)],
    )
    assert asyncio.run(seen(changing_app())) == asyncio.run(seen(plain))


async def test_an_emptied_session_ends() -> None:
    async with client_for(changing_app()) as client:
        first = await session_of(client, "/")
        await session_of(client, "/")
        ended = await client.get("/change?clear=")
        assert "expires=Thu, 01 Jan 1970" in ended.headers["set-cookie"]
        assert await session_of(client, "/") != first


async def test_the_cookies_that_are_known_are_bounded() -> None:
    recent = RecentCookies("c", max_cookies=2)
    for number in range(4):
        recent.note([(b"set-cookie", b"c=%d; path=/" % number)], {SESSION_ID_KEY: str(number)})
    known = [recent.find({"headers": [(b"cookie", b"c=%d" % number)]}) for number in range(4)]
    assert [issued and issued.session[SESSION_ID_KEY] for issued in known] == [None, None, "2", "3"]
    assert recent.find({"headers": [(b"cookie", b"c=2; c=3")]}) is None


async def test_clients_without_cookies_get_sessions_of_their_own() -> None:
    app = app_with_sessions()
    sessions = []
    for _ in range(3):
        async with client_for(app) as client:
            sessions.append(await session_of(client))
    assert len(set(sessions)) == 3


async def test_a_cookie_signed_with_another_secret_is_a_new_session() -> None:
    async with client_for(app_with_sessions("a" * 32)) as client:
        await client.get("/v1/responses")
        cookie = client.cookies[COOKIE]
    async with client_for(app_with_sessions("b" * 32), cookies={COOKIE: cookie}) as client:
        assert UUID4.fullmatch(await session_of(client))


async def test_a_cookie_signed_with_its_own_public_name_is_not_accepted() -> None:
    async with client_for(app_with_sessions(COOKIE)) as client:
        stolen = await session_of(client)
        forged = client.cookies[COOKIE]
    async with client_for(app_with_sessions(), cookies={COOKIE: forged}) as client:
        assert await session_of(client) != stolen


async def test_the_rollout_prefix_names_the_session_and_is_stripped() -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get("/ng-rollout/task-1.a_B/v1/responses")
    assert response.json() == {"session": "rollout:task-1.a_B", "path": "/v1/responses"}
    assert "set-cookie" not in response.headers


async def test_the_token_capture_segment_is_stripped_as_well() -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get("/ng-rollout/r1/training-token-capture/v1/responses")
        root = await client.get("/ng-rollout/r1")
        captured_root = await client.get("/ng-rollout/r1/training-token-capture")
    assert response.json() == {"session": "rollout:r1", "path": "/v1/responses"}
    assert root.json() == {"session": "rollout:r1", "path": "/"}
    assert captured_root.json() == {"session": "rollout:r1", "path": "/"}


async def test_one_client_with_a_cookie_jar_keeps_its_rollouts_apart() -> None:
    async with client_for(app_with_sessions()) as client:
        for rollout in ("a", "b", "a", "b"):
            assert await session_of(client, f"/ng-rollout/{rollout}/v1/responses") == f"rollout:{rollout}"
        assert not client.cookies


async def test_a_cookie_comes_before_prefix_and_header() -> None:
    async with client_for(app_with_sessions()) as client:
        first = await session_of(client)
        again = await session_of(client, "/ng-rollout/r1/v1/responses", headers={"X-Session-Id": "h"})
    assert again == first


async def test_the_prefix_comes_before_the_header() -> None:
    async with client_for(app_with_sessions()) as client:
        session = await session_of(client, "/ng-rollout/r1/v1/responses", headers={"X-Session-Id": "h"})
    assert session == "rollout:r1"


async def test_the_header_names_the_session_without_a_cookie() -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get("/v1/responses", headers={"x-session-id": "my:session/1"})
    assert response.json()["session"] == "header:my:session/1"
    assert "set-cookie" not in response.headers


async def test_a_chosen_id_cannot_name_the_session_behind_a_cookie() -> None:
    app = app_with_sessions()
    async with client_for(app) as victim:
        target = await session_of(victim)
    async with client_for(app) as thief:
        assert await session_of(thief, headers={"X-Session-Id": target}) != target
        assert await session_of(thief, f"/ng-rollout/{target}/v1/responses") != target
        assert await session_of(thief, headers={"X-Session-Id": "rollout:r1"}) != "rollout:r1"


@pytest.mark.parametrize("value", ["", "a b", "x" * 257, "a\tb", "caf\xe9"])
async def test_a_session_header_that_is_too_long_or_unprintable_is_refused(value: str) -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get("/v1/responses", headers=[(b"X-Session-Id", value.encode("latin-1"))])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Session-Id"


@pytest.mark.parametrize("rollout_id", ["", "a%20b", "caf%C3%A9", "a:b", "x" * 257, "a%00"])
async def test_a_rollout_id_of_other_characters_is_refused(rollout_id: str) -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get(f"/ng-rollout/{rollout_id}/v1/responses")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "rollout_id"


async def test_a_path_that_only_begins_like_the_prefix_is_no_prefix() -> None:
    async with client_for(app_with_sessions()) as client:
        response = await client.get("/ng-rollouts/a/v1/responses")
    assert response.status_code == 404


async def test_a_cookie_that_carries_no_session_id_gets_a_new_one() -> None:
    from itsdangerous import TimestampSigner

    payload = base64.b64encode(orjson.dumps({SESSION_ID_KEY: 5}))
    cookie = TimestampSigner("s" * 32).sign(payload).decode()
    async with client_for(app_with_sessions(), cookies={COOKIE: cookie}) as client:
        assert UUID4.fullmatch(await session_of(client))


async def test_concurrent_calls_do_not_mix_their_sessions() -> None:
    async with client_for(app_with_sessions()) as client:
        paths = [f"/ng-rollout/r{index}/v1/responses" for index in range(50)]
        sessions = await asyncio.gather(*(session_of(client, path) for path in paths))
    assert sessions == [f"rollout:r{index}" for index in range(50)]


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True),
    st.from_regex(r"(/[a-z0-9]{1,8}){1,4}", fullmatch=True),
)
def test_any_legal_id_before_any_path_is_split_off_exactly(rollout_id: str, path: str) -> None:
    assert split_rollout_prefix(f"/ng-rollout/{rollout_id}{path}") == (rollout_id, path)
    assert split_rollout_prefix(path) == (None, path)


@given(st.text(max_size=30))
def test_no_path_is_split_into_an_id_of_other_characters(text: str) -> None:
    try:
        rollout_id, _ = split_rollout_prefix(f"/ng-rollout/{text}")
    except RequestError:
        return
    assert rollout_id is not None
    assert re.fullmatch(r"[A-Za-z0-9._-]+", rollout_id)
