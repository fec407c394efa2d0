from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal

import httpx
import pytest
from fastapi import FastAPI
from omegaconf import OmegaConf
from pydantic import PrivateAttr
from starlette.testclient import TestClient

from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import global_config_from_environment
from nemo_gym.server_utils import ServerClient, SimpleServer
from nemo_gym.webserver import CancelledAtShutdownFilter, raise_open_files_limit, uvicorn_options
from tests.support.model_server import client_for, scripted_model
from tests.support.server_process import NAME, environment, server_process
from tests.support.tiny_server import TinyServer

TINY = ["-m", "tests.support.tiny_server"]


class Recorder(SimpleServer):
    _events: list[str] = PrivateAttr(default_factory=list)
    _fail: Exception | None = PrivateAttr(default=None)

    async def on_startup(self) -> None:
        if self._fail is not None:
            raise self._fail
        self._events.append("up")

    async def on_shutdown(self) -> None:
        self._events.append("down")

    def setup_webserver(self) -> FastAPI:
        app = FastAPI()
        for _ in range(2):
            self.setup_standard(app)
        return app


def recorder() -> Recorder:
    config = BaseRunServerInstanceConfig(port=1, entrypoint="app.py", name="policy_model")
    return Recorder(config=config, server_client=ServerClient(global_config_dict={}))


def test_the_session_cookie_is_named_after_class_and_server() -> None:
    assert recorder().get_session_middleware_key() == "Recorder___policy_model"


async def test_installing_twice_is_installing_once() -> None:
    server = recorder()
    app = server.setup_webserver()
    assert len(app.user_middleware) == 4
    async with client_for(app) as client:
        response = await client.get("/")
    assert response.json() == {"status": "ok"}
    assert len(response.headers.get_list("set-cookie")) == 1
    assert len(response.headers.get_list("x-request-id")) == 1


def test_start_up_and_shut_down_run_once_around_the_applications_life() -> None:
    server = recorder()
    with TestClient(server.setup_webserver()) as client:
        assert server._events == ["up"]
        assert client.get("/").status_code == 200
    assert server._events == ["up", "down"]


def test_the_client_to_other_servers_is_closed_with_the_server() -> None:
    class Client(ServerClient):
        closed = 0

        async def aclose(self) -> None:
            self.closed += 1

    client = Client(global_config_dict={})
    server = Recorder(config=recorder().config, server_client=client)
    with TestClient(server.setup_webserver()):
        assert client.closed == 0
    assert client.closed == 1


def test_what_a_failed_start_up_opened_is_closed_and_the_error_is_seen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = recorder()
    server._fail = ConfigError("context_length is 10\nthe engine's is 5")
    with pytest.raises(ConfigError), TestClient(server.setup_webserver()):
        pass
    assert server._events == ["down"]
    [record] = [record for record in caplog.records if record.name == "policy_model"]
    assert record.getMessage() == "configuration error: context_length is 10 the engine's is 5"


def test_a_server_reads_its_own_block_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(5000, fail_at="later", top={"dry_run": True}).items():
        monkeypatch.setenv(name, value)
    server = TinyServer.from_global_config(global_config_from_environment())
    assert server.config.name == NAME
    assert server.config.port == 5000
    assert server.config.fail_at == "later"
    assert server.server_client.global_config_dict["dry_run"] is True


def test_a_config_error_while_building_is_not_hidden_in_a_validation_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment(5000, fail_at="construction").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        TinyServer.from_global_config(global_config_from_environment())
    assert caught.value.param == "fail_at"


def test_a_process_without_a_server_name_says_which_variable_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NEMO_GYM_CONFIG_PATH", raising=False)
    with pytest.raises(ConfigError, match="NEMO_GYM_CONFIG_PATH is not set"):
        TinyServer.from_global_config(OmegaConf.create({}))


def test_a_server_whose_config_is_no_server_config_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(Recorder):
        config: dict[str, int]  # type: ignore[assignment]

    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", NAME)
    with pytest.raises(ConfigError, match=r"Wrong\.config must be annotated"):
        Wrong.from_global_config(OmegaConf.create({}))


def test_a_field_that_a_server_misses_is_a_config_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Demanding(TinyServer):
        tokenizer: str

    for name, value in environment(5000).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="Demanding: tokenizer: Field required"):
        Demanding.from_global_config(global_config_from_environment())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"fail_at": "construction"}, "configuration error: fail_at: construction cannot be used"),
        ({"fail_at": "startup"}, "configuration error: fail_at: startup cannot be used"),
        ({"fail_ad": "never"}, "fail_ad"),
    ],
)
def test_a_config_error_at_start_is_one_line_and_exit_code_2(fields: dict[str, object], said: str) -> None:
    with server_process(TINY, **fields) as server:
        assert server.end(None) == 2
    [line] = [line for line in server.stderr.splitlines() if "configuration error" in line]
    assert said in line
    assert f"ERROR ({NAME})" in line
    assert "Traceback" not in server.stderr


def test_a_bug_at_start_is_a_traceback_and_another_exit_code() -> None:
    with server_process(TINY, fail_at="startup_bug") as server:
        assert server.end(None) == 3
    assert "KeyError: 'a bug'" in server.stderr


def test_a_dry_run_builds_the_server_and_ends() -> None:
    with server_process(TINY, top={"dry_run": True}) as server:
        assert server.end(None) == 0
    assert "TINY built" in server.stderr
    assert "TINY started" not in server.stderr


async def test_a_server_runs_until_the_signal_and_drops_what_hangs_quietly() -> None:
    with server_process(TINY) as server:
        await asyncio.to_thread(server.wait_for, "Application startup complete")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30) as client:
            assert (await client.get("/")).json() == {"status": "ok"}
            assert "nemo_gym_requests_total" in (await client.get("/metrics")).text
            assert (await client.get("/nowhere")).json()["error"]["code"] == "not_found"
            hanging = asyncio.create_task(client.get("/hang"))
            await asyncio.to_thread(server.wait_for, "TINY hanging")
            code = await asyncio.to_thread(server.end, signal.SIGINT)
            with pytest.raises(httpx.HTTPError):
                (await hanging).raise_for_status()
    assert code == 0
    assert "TINY stopped" in server.stderr
    assert "Traceback" not in server.stderr
    assert "GET / HTTP/1.1" not in server.stderr


async def test_a_server_raises_its_limit_of_open_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        with server_process(TINY) as server:
            await asyncio.to_thread(server.wait_for, "Application startup complete")
            async with httpx.AsyncClient() as client:
                answer = (await client.get(f"http://127.0.0.1:{server.port}/who")).json()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert answer["open_files"] > 256


def test_an_idle_connection_outlives_the_patience_of_nemo_gyms_client() -> None:
    options = uvicorn_options(host="127.0.0.1", port=1, server_name="x", access_log=False)
    assert options["timeout_keep_alive"] > 15


def test_the_filter_drops_cancelled_requests_and_nothing_else() -> None:
    def record(exc: BaseException | None) -> logging.LogRecord:
        info = None if exc is None else (type(exc), exc, None)
        return logging.LogRecord("uvicorn.error", logging.ERROR, "x", 1, "m", (), info)

    keep = CancelledAtShutdownFilter().filter
    assert not keep(record(asyncio.CancelledError()))
    assert keep(record(KeyError()))
    assert keep(record(None))


def test_the_limit_of_open_files_is_raised_but_never_lowered() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_open_files_limit(512)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, before[1])
        raise_open_files_limit(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (512, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_what_the_start_made_is_left_out_of_later_garbage_collections_and_those_are_short() -> None:
    app = scripted_model().setup_webserver()
    threshold = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    try:
        async with app.router.lifespan_context(app):
            assert gc.get_freeze_count() > 1000
            assert gc.get_threshold() == (1_500, 1, 1_000)
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
