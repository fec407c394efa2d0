"""The pool over real sockets: what is sent again, what never is, and what reaches the caller."""

from __future__ import annotations

import asyncio
import http.cookies

import httpx
import pytest
from pydantic import ValidationError

from nemo_gym.errors import UpstreamContractError, UpstreamError, UpstreamUnavailableError
from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from tests.support.socket_servers import Connection, answering, socket_server, unused_url


class Recorder:
    """In place of sleep, chance and the counter: remembers instead of waiting, draws the longest wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.events: list[str] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def jitter(self) -> float:
        return 1.0

    def count(self, event: str, /) -> None:
        self.events.append(event)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def make_pool(
    recorder: Recorder,
    config: HTTPClientConfig | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> HTTPPool:
    return HTTPPool(
        config or HTTPClientConfig(),
        transport=transport,
        observer=recorder,
        sleep=recorder.sleep,
        jitter=recorder.jitter,
    )


async def hang_up(connection: Connection) -> None:
    """Read a request and close without a word."""
    await connection.read_request()


async def reset(connection: Connection) -> None:
    await connection.read_request()
    connection.reset()


async def answer_and_close(connection: Connection) -> None:
    await connection.read_request()
    await connection.answer(headers=("Connection: close",))


async def test_refused_connection_is_tried_max_attempts_times_with_growing_waits(recorder: Recorder) -> None:
    pool = make_pool(recorder, HTTPClientConfig(max_attempts=4, backoff_initial=1.0, backoff_max=3.0))
    with pytest.raises(
        UpstreamUnavailableError, match=r"no connection could be made .*max_attempts"
    ) as caught:
        await pool.send("POST", unused_url() + "/generate", content=b"{}")
    await pool.aclose()
    assert recorder.waits == [1.0, 2.0, 3.0]
    assert (caught.value.status_code, caught.value.status) == (503, None)
    assert "failed 4 times" in caught.value.message
    assert "POST /generate at 127.0.0.1:" in caught.value.message
    assert recorder.events.count("http_attempt") == 4
    assert recorder.events[-1] == "http_failure_connect"


@pytest.mark.parametrize("end", [hang_up, reset])
async def test_connection_lost_before_an_answer_is_tried_again(recorder: Recorder, end: object) -> None:
    async with socket_server(end, answering) as server:  # type: ignore[arg-type]
        pool = make_pool(recorder)
        response = await pool.send("POST", server.url + "/generate", content=b'{"a":1}')
        await pool.aclose()
    assert response.status_code == 200
    assert [request.body for request in server.requests] == [b'{"a":1}', b'{"a":1}']
    assert recorder.waits == [0.5]
    assert recorder.events == ["http_attempt", "http_retry_disconnected", "http_attempt"]


async def test_connection_by_name_that_is_lost_on_its_first_use_is_not_taken_for_a_kept_one(
    recorder: Recorder,
) -> None:
    async with socket_server(hang_up, answering) as server:
        pool = make_pool(recorder)
        named = server.url.replace("127.0.0.1", "localhost")  # two addresses, tried beside one another
        assert (await pool.send("POST", named, content=b"{}")).status_code == 200
        await pool.aclose()
    assert recorder.events == ["http_attempt", "http_retry_disconnected", "http_attempt"]


async def test_engine_that_always_hangs_up_is_unavailable_after_max_attempts(recorder: Recorder) -> None:
    async with socket_server(hang_up) as server:
        pool = make_pool(recorder, HTTPClientConfig(max_attempts=3))
        with pytest.raises(UpstreamUnavailableError, match="closed before an answer came"):
            await pool.send("POST", server.url + "/generate", content=b"{}")
        await pool.aclose()
    assert len(server.requests) == 3


async def test_kept_connection_that_turns_out_dead_costs_no_attempt_and_no_wait(recorder: Recorder) -> None:
    async def answer_once_then_drop_the_next(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer()
        await connection.read_request()

    async with socket_server(answer_once_then_drop_the_next, answering) as server:
        pool = make_pool(recorder, HTTPClientConfig(max_attempts=1))
        await pool.send("POST", server.url + "/generate", content=b"1")
        response = await pool.send("POST", server.url + "/generate", content=b"2")
        await pool.aclose()
    assert response.status_code == 200
    assert [request.body for request in server.requests] == [b"1", b"2", b"2"]
    assert server.connections == 2
    assert recorder.waits == []
    assert "http_retry_stale_connection" in recorder.events


async def test_dead_kept_connections_cannot_keep_a_call_going_for_ever(recorder: Recorder) -> None:
    async def answer_once_then_drop_the_next(connection: Connection) -> None:
        await connection.read_request()
        await both.wait()
        await connection.answer()
        await connection.read_request()

    both = asyncio.Barrier(6)
    async with socket_server(answer_once_then_drop_the_next) as server:
        pool = make_pool(recorder, HTTPClientConfig(max_attempts=1))
        url = server.url + "/generate"
        await asyncio.gather(*(pool.send("POST", url, content=b"1") for _ in range(6)))
        with pytest.raises(UpstreamUnavailableError, match="keepalive_expiry"):
            await pool.send("POST", url, content=b"2")
        await pool.aclose()
    assert [request.body for request in server.requests].count(b"2") == 4


async def test_idle_connection_that_the_server_closed_never_surfaces(recorder: Recorder) -> None:
    async def answer_once(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer()

    async with socket_server(answer_once) as server:
        pool = make_pool(recorder, HTTPClientConfig(max_attempts=1))
        for _ in range(5):
            assert (await pool.send("POST", server.url, content=b"{}")).status_code == 200
        await pool.aclose()
    assert recorder.waits == []


async def test_connection_is_kept_for_the_next_call(recorder: Recorder) -> None:
    async with socket_server(answering) as server:
        pool = make_pool(recorder)
        for _ in range(3):
            await pool.send("GET", server.url)
        await pool.aclose()
    assert server.connections == 1


async def test_connection_that_lay_idle_too_long_is_not_used_again(recorder: Recorder) -> None:
    async with socket_server(answering) as server:
        pool = make_pool(recorder, HTTPClientConfig(keepalive_expiry=1e-9))
        for _ in range(3):
            await pool.send("GET", server.url)
        await pool.aclose()
    assert server.connections == 3


async def test_answer_that_broke_off_in_its_head_is_not_asked_for_again(recorder: Recorder) -> None:
    async def half_a_head(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Le")

    async with socket_server(half_a_head) as server:
        pool = make_pool(recorder)
        with pytest.raises(UpstreamError, match="broke off inside its head") as caught:
            await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert len(server.requests) == 1
    assert caught.value.status_code == 500


@pytest.mark.parametrize(
    "cut",
    [
        b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"text":',
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{"text":\r\n',
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Encoding: gzip\r\n\r\n!!!!",
    ],
)
async def test_answer_that_broke_off_in_its_body_is_not_asked_for_again(
    recorder: Recorder, cut: bytes
) -> None:
    async def half_a_body(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(cut)

    async with socket_server(half_a_body) as server:
        pool = make_pool(recorder)
        with pytest.raises(UpstreamContractError, match=r"after \d bytes .*not asked for again") as caught:
            await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert len(server.requests) == 1
    assert caught.value.status_code == 500
    assert recorder.events == ["http_attempt", "http_failure_broken_off"]


async def test_error_status_survives_a_body_that_broke_off(recorder: Recorder) -> None:
    async def refuse(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 100\r\n\r\n{")

    async with socket_server(refuse) as server:
        pool = make_pool(recorder)
        response = await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert (response.status_code, response.content) == (400, b"")


async def test_answer_that_is_not_http_is_not_asked_for_again(recorder: Recorder) -> None:
    async def speak_ssh(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"SSH-2.0-OpenSSH_9.6 secret banner\r\n\r\n")

    async with socket_server(speak_ssh) as server:
        pool = make_pool(recorder)
        with pytest.raises(UpstreamError, match="not HTTP") as caught:
            await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert len(server.requests) == 1
    assert "banner" not in caught.value.message


async def test_engine_that_stays_silent_is_given_up_once_and_is_no_503(recorder: Recorder) -> None:
    async def stay_silent(connection: Connection) -> None:
        await connection.read_request()
        await connection.until_client_closes()

    async with socket_server(stay_silent) as server:
        pool = make_pool(recorder, HTTPClientConfig(read_timeout=0.05))
        with pytest.raises(UpstreamError, match="read_timeout") as caught:
            await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert len(server.requests) == 1
    assert (caught.value.status_code, caught.value.code) == (500, "upstream_timeout")


async def test_engine_that_falls_silent_inside_the_body_is_given_up_once(recorder: Recorder) -> None:
    async def fall_silent(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await connection.until_client_closes()

    async with socket_server(fall_silent) as server:
        pool = make_pool(recorder, HTTPClientConfig(read_timeout=0.05))
        with pytest.raises(UpstreamError, match="fell silent after 1 bytes") as caught:
            await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert (len(server.requests), caught.value.code) == (1, "upstream_timeout")


async def test_body_whose_chunks_stop_making_sense_is_given_up(recorder: Recorder) -> None:
    """aiohttp 3.14 closes the connection and tells nobody who waits for the rest."""

    async def lose_the_thread(connection: Connection) -> None:
        await connection.read_request()
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        for _ in range(20):  # turns of the loop that both ends run in: the client waits for the next chunk
            await asyncio.sleep(0)
        await connection.send(b"?\r\n")
        await connection.until_client_closes()

    async with socket_server(lose_the_thread) as server:
        pool = make_pool(recorder, HTTPClientConfig(read_timeout=0.2))
        async with asyncio.timeout(5):
            with pytest.raises(UpstreamError) as caught:
                await pool.send("POST", server.url, content=b"{}")
        await pool.aclose()
    assert (len(server.requests), caught.value.status_code) == (1, 500)


@pytest.mark.parametrize("size", [1, 1 << 15, (1 << 15) + 1, 1 << 20])
async def test_engine_that_accepts_and_never_reads_is_given_up_with_a_body_of_any_size(
    recorder: Recorder, size: int
) -> None:
    async def ignore(connection: Connection) -> None:
        await asyncio.Event().wait()

    async with socket_server(ignore) as server:
        pool = make_pool(recorder, HTTPClientConfig(write_timeout=0.05, read_timeout=0.05, pool_timeout=0.05))
        with pytest.raises(UpstreamError) as caught:
            await pool.send("POST", server.url, content=bytes(size))
        await pool.aclose()
    assert caught.value.code == "upstream_timeout"


async def test_engine_that_does_not_read_is_given_up(recorder: Recorder) -> None:
    async def ignore(connection: Connection) -> None:
        await asyncio.Event().wait()

    async with socket_server(ignore) as server:
        pool = make_pool(recorder, HTTPClientConfig(write_timeout=0.05, read_timeout=0.05, pool_timeout=0.05))
        with pytest.raises(UpstreamError, match="write_timeout") as caught:
            await pool.send("POST", server.url, content=bytes(64 << 20))
        await pool.aclose()
    assert caught.value.code == "upstream_timeout"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 3 << 20])
async def test_body_of_any_size_arrives_whole(recorder: Recorder, size: int) -> None:
    body = b"0123456789abcdef" * (size // 16) + b"x" * (size % 16)
    async with socket_server(answering) as server:
        pool = make_pool(recorder)
        await pool.send("POST", server.url, content=body)
        await pool.aclose()
    (request,) = server.requests
    assert request.body == body
    assert request.headers["content-length"] == str(size)
    assert "transfer-encoding" not in request.headers


async def test_headers_of_the_caller_replace_the_pools_whatever_their_case(recorder: Recorder) -> None:
    async with socket_server(answering) as server:
        pool = make_pool(recorder)
        await pool.send("POST", server.url, content=b"{}", headers={"Accept": "text/plain", "X-Own": "1"})
        await pool.send("POST", server.url)
        await pool.aclose()
    host = server.url.removeprefix("http://")
    own = {"host": host, "accept-encoding": "identity", "user-agent": "nemo-gym-sglang"}
    first, second = (request.headers for request in server.requests)
    del first["content-type"]  # aiohttp's own guess
    assert first == {**own, "accept": "text/plain", "x-own": "1", "content-length": "2"}
    assert (second["accept"], second["content-length"]) == ("*/*", "0")


async def test_refusal_before_the_body_is_read_arrives_at_once(recorder: Recorder) -> None:
    async def refuse_unread(connection: Connection) -> None:
        await connection.answer(b'{"error":"too large"}', status="413 Content Too Large")
        await asyncio.Event().wait()

    async with socket_server(refuse_unread) as server:
        pool = make_pool(recorder)
        async with asyncio.timeout(5):
            response = await pool.send("POST", server.url, content=bytes(64 << 20))
            await pool.aclose()
    assert response.status_code == 413


async def test_call_waits_for_a_free_connection_and_is_tried_again_when_none_comes(
    recorder: Recorder,
) -> None:
    release = asyncio.Event()

    async def answer_when_released(connection: Connection) -> None:
        await connection.read_request()
        await release.wait()
        await connection.answer()

    async def sleep(seconds: float) -> None:
        release.set()
        await first

    async with socket_server(answer_when_released, answering) as server:
        pool = HTTPPool(
            HTTPClientConfig(max_connections=1, pool_timeout=0.05),
            observer=recorder,
            sleep=sleep,
            jitter=recorder.jitter,
        )
        first = asyncio.create_task(pool.send("POST", server.url, content=b"1"))
        second = await pool.send("POST", server.url, content=b"2")
        await pool.aclose()
    assert second.status_code == 200
    assert "http_retry_connect_timeout" in recorder.events


async def test_more_calls_than_connections_all_get_their_answer(recorder: Recorder) -> None:
    async with socket_server(answering) as server:
        pool = make_pool(recorder, HTTPClientConfig(max_connections=4))
        responses = await asyncio.gather(*(pool.send("POST", server.url, content=b"{}") for _ in range(64)))
        await pool.aclose()
    assert [response.status_code for response in responses] == [200] * 64
    assert server.connections == 4


@pytest.mark.parametrize("begun", [False, True])
async def test_cancelled_call_closes_its_connection(recorder: Recorder, begun: bool) -> None:
    received, closed = asyncio.Event(), asyncio.Event()

    async def generate_until_closed(connection: Connection) -> None:
        await connection.read_request()
        if begun:
            await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        received.set()
        await connection.until_client_closes()
        closed.set()

    async with socket_server(generate_until_closed) as server:
        pool = make_pool(recorder)
        call = asyncio.create_task(pool.send("POST", server.url, content=b"{}"))
        await received.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(5):
            await closed.wait()
        await pool.aclose()
    assert len(server.requests) == 1


async def test_plain_http_behind_an_https_url_is_not_tried_again(recorder: Recorder) -> None:
    async def refuse_tls(connection: Connection) -> None:
        await connection.read_some()
        await connection.answer(status="400 Bad Request")

    async with socket_server(refuse_tls) as server:
        pool = make_pool(recorder)
        with pytest.raises(UpstreamError, match="TLS was refused") as caught:
            await pool.send("GET", server.url.replace("http://", "https://"))
        await pool.aclose()
    assert caught.value.status_code == 500
    assert recorder.events == ["http_attempt", "http_failure_tls"]


@pytest.mark.parametrize("status", [429, 502, 503, 504, 520, 529])
async def test_status_that_can_pass_is_waited_out(recorder: Recorder, status: int) -> None:
    answers = iter([httpx.Response(status, headers={"retry-after": "7"}), httpx.Response(200)])
    pool = make_pool(recorder, transport=httpx.MockTransport(lambda _: next(answers)))
    assert (await pool.send("POST", "http://engine/generate")).status_code == 200
    assert recorder.waits == [7.5]
    assert recorder.events == ["http_attempt", f"http_retry_status_{status}", "http_attempt"]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 501])
async def test_status_that_cannot_pass_is_returned_at_once(recorder: Recorder, status: int) -> None:
    pool = make_pool(recorder, transport=httpx.MockTransport(lambda _: httpx.Response(status)))
    assert (await pool.send("POST", "http://engine/generate")).status_code == status
    assert recorder.events == ["http_attempt", f"http_failure_status_{status}"]


async def test_last_refusal_keeps_status_body_and_retry_after(recorder: Recorder) -> None:
    body = b'{"object":"error","message":"The request queue is full."}'
    refusal = httpx.Response(503, content=body, headers={"retry-after": "500"})
    config = HTTPClientConfig(max_attempts=2, retry_after_max=10.0)
    pool = make_pool(recorder, config, httpx.MockTransport(lambda _: refusal))
    with pytest.raises(UpstreamUnavailableError, match=r"The request queue is full\.") as caught:
        await pool.send("POST", "http://engine:30000/generate", name="policy")
    assert (caught.value.status, caught.value.response_content, caught.value.retry_after) == (
        503,
        body,
        500.0,
    )
    assert caught.value.message.startswith("policy: POST /generate at engine:30000 failed 2 times")
    assert recorder.waits == [10.5]


async def test_redirect_is_returned_and_not_followed(recorder: Recorder) -> None:
    seen: list[str] = []

    def redirect(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(307, headers={"location": "http://elsewhere/"})

    pool = make_pool(recorder, transport=httpx.MockTransport(redirect))
    assert (await pool.send("POST", "http://engine/generate")).status_code == 307
    assert seen == ["/generate"]


async def test_cookies_of_an_answer_are_not_sent_with_the_next_call(recorder: Recorder) -> None:
    async def set_cookie(connection: Connection) -> None:
        for _ in range(2):
            await connection.read_request()
            await connection.answer(headers=("Set-Cookie: session=alice; Path=/",))

    async with socket_server(set_cookie) as server:
        pool = make_pool(recorder)
        named = server.url.replace(
            "127.0.0.1", "localhost"
        )  # aiohttp keeps no cookies of bare addresses anyway
        first = await pool.send("GET", named)
        await pool.send("GET", named)
        await pool.aclose()
    assert http.cookies.SimpleCookie(first.headers["set-cookie"])["session"].value == "alice"
    assert ["cookie" in request.headers for request in server.requests] == [False, False]


async def test_proxy_of_the_environment_is_not_used(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, unused_url())
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with socket_server(answering) as server:
        pool = make_pool(recorder, HTTPClientConfig(max_attempts=1))
        assert (await pool.send("GET", server.url)).status_code == 200
        await pool.aclose()


async def test_closed_pool_opens_again_on_the_next_call(recorder: Recorder) -> None:
    async with socket_server(answering) as server:
        pool = make_pool(recorder)
        await pool.send("GET", server.url)
        await pool.aclose()
        await pool.aclose()
        assert (await pool.send("GET", server.url)).status_code == 200
        await pool.aclose()
    assert server.connections == 2


def test_pool_serves_a_second_event_loop(recorder: Recorder) -> None:
    pool = make_pool(recorder)

    async def call() -> int:
        async with socket_server(answer_and_close) as server:
            return (await pool.send("GET", server.url)).status_code

    assert asyncio.run(call()) == 200
    assert asyncio.run(call()) == 200
    asyncio.run(pool.aclose())


async def test_pool_left_open_by_another_loop_can_be_closed_and_used(recorder: Recorder) -> None:
    pool = make_pool(recorder)

    async def open_in_another_loop() -> None:
        async with socket_server(answer_and_close) as server:
            await pool.send("GET", server.url)

    await asyncio.to_thread(asyncio.run, open_in_another_loop())
    await pool.aclose()
    async with socket_server(answering) as server:
        assert (await pool.send("GET", server.url)).status_code == 200
        await pool.aclose()


async def test_injected_transport_outlives_the_pool(recorder: Recorder) -> None:
    class Lent(httpx.MockTransport):
        closed = False

        async def aclose(self) -> None:
            self.closed = True

    lent = Lent(lambda _: httpx.Response(200))
    pool = make_pool(recorder, transport=lent)
    await pool.send("GET", "http://engine/")
    await pool.aclose()
    assert not lent.closed
    assert (await pool.send("GET", "http://engine/")).status_code == 200


@pytest.mark.parametrize(
    "setting",
    [
        {"connect_timeout": 0},
        {"read_timeout": float("inf")},
        {"max_attempts": 0},
        {"max_connections": 0},
        {"backoff_initial": 5.0, "backoff_max": 1.0},
        {"retry_statuses": [200]},
        {"conect_timeout": 5},
    ],
)
def test_unusable_setting_is_refused(setting: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        HTTPClientConfig.model_validate(setting)


def test_no_default_waits_for_ever() -> None:
    config = HTTPClientConfig()
    assert None not in (
        config.connect_timeout,
        config.read_timeout,
        config.write_timeout,
        config.pool_timeout,
    )
    assert config.keepalive_expiry < 5.0  # after which SGLang's uvicorn closes an idle connection
