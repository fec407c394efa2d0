from __future__ import annotations

import asyncio
import io
import logging
import os
import select
import signal
from pathlib import Path

import httpx
import pytest

from nemo_gym.child_process import sink_to
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import load_global_config
from nemo_gym.launch_plan import plan_launch
from nemo_gym.launcher import Launcher, child_environment, wait_until_ready
from tests.support.launches import echo_yaml, ng_run_environment, write, write_echo_server


class Launch:
    """A launcher under way, with what its children have written."""

    def __init__(self, cwd: Path, *overrides: str, grace_seconds: float = 30.0) -> None:
        config = load_global_config(["+config_paths=[c.yaml]", *overrides], cwd=cwd, env={})
        self.plan = plan_launch(config, cwd=cwd, env={})
        self.out = bytearray()
        self.err = bytearray()
        self.launcher = Launcher(
            self.plan,
            cwd=cwd,
            env=ng_run_environment(),
            out=self.out.extend,
            err=self.err.extend,
            grace_seconds=grace_seconds,
        )

    async def answers(self) -> list[httpx.Response]:
        """The answer of every server to GET /, as soon as it has one."""
        transport = httpx.AsyncHTTPTransport(retries=20)
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            return [await client.get(server.url) for server in self.plan.servers]


def ended(pid: int) -> bool:
    """Whether a process that the launcher started has ended and was collected."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class Announcement(logging.Handler):
    """Waits for the launcher to say something."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self._said = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._words in record.getMessage():
            self._said.set()

    async def wait(self) -> None:
        logging.getLogger("nemo_gym").addHandler(self)
        try:
            await self._said.wait()
        finally:
            logging.getLogger("nemo_gym").removeHandler(self)


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    write_echo_server(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nemo_gym")


async def test_servers_get_their_configuration_through_the_environment(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("one", api_key="${policy_api_key}") + echo_yaml("two"))
    launch = Launch(cwd, "+policy_api_key=sk-5ecret")
    running = asyncio.create_task(launch.launcher.run())
    given = [answer.json() for answer in await launch.answers()]
    launch.launcher.request_stop()
    assert await running == 0
    assert [item["name"] for item in given] == ["one", "two"]
    assert given[0]["config"]["policy_api_key"] == "sk-5ecret"
    assert given[0]["argv"] == [str(cwd / "responses_api_models/echo_model/app.py")]
    assert given[0]["cwd"] == str(cwd)
    assert given[0]["secret"] == given[1]["secret"]
    assert len(given[0]["secret"]) >= 32
    assert all(ended(item["pid"]) for item in given)


async def test_readiness_is_reported_with_the_addresses_and_without_keys(
    cwd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(cwd / "c.yaml", echo_yaml("one", api_key="sk-5ecret") + echo_yaml("two"))
    launch = Launch(cwd)
    running = asyncio.create_task(launch.launcher.run())
    await Announcement("two: http").wait()
    launch.launcher.request_stop()
    await running
    assert "All 2 / 2 servers ready" in caplog.text
    assert all(server.url in caplog.text for server in launch.plan.servers)
    assert "5ecret" not in caplog.text


async def test_output_carries_the_name_of_its_server(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("one"))
    launch = Launch(cwd)
    running = asyncio.create_task(launch.launcher.run())
    await launch.answers()
    launch.launcher.request_stop()
    await running
    assert launch.out.decode() == f"(one) listening on {launch.plan.servers[0].port}\n"


async def test_a_server_that_ends_ends_the_launch_and_is_named(
    cwd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(cwd / "c.yaml", echo_yaml("steady") + echo_yaml("brittle"))
    launch = Launch(cwd)
    running = asyncio.create_task(launch.launcher.run())
    steady, _ = [answer.json() for answer in await launch.answers()]
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(f"{launch.plan.servers[1].url}/exit")
    assert await running == 1
    assert "The server brittle ended with exit code 7" in caplog.text
    assert ended(steady["pid"])


async def test_a_server_that_does_not_start_ends_the_launch_with_its_own_words(
    cwd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(cwd / "c.yaml", echo_yaml("sad", exit_code=2))
    launch = Launch(cwd)
    assert await launch.launcher.run() == 1
    assert "The server sad ended with exit code 2" in caplog.text
    assert launch.err.decode() == "(sad) no more\n"


async def test_a_server_that_is_killed_is_reported_with_the_signal(
    cwd: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(cwd / "c.yaml", echo_yaml("one"))
    launch = Launch(cwd)
    running = asyncio.create_task(launch.launcher.run())
    (answer,) = await launch.answers()
    os.kill(answer.json()["pid"], signal.SIGKILL)
    assert await running == 1
    assert "The server one was ended by signal 9 (SIGKILL)" in caplog.text


async def test_a_server_that_does_not_stop_is_killed_after_the_grace(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("stubborn", ignore_term="true"))
    launch = Launch(cwd, grace_seconds=0.2)
    running = asyncio.create_task(launch.launcher.run())
    (answer,) = await launch.answers()
    launch.launcher.request_stop()
    assert await asyncio.wait_for(running, 30) == 0
    assert ended(answer.json()["pid"])


async def test_a_second_request_does_not_wait_for_the_grace(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("stubborn", ignore_term="true"))
    launch = Launch(cwd, grace_seconds=3600.0)
    running = asyncio.create_task(launch.launcher.run())
    (answer,) = await launch.answers()
    launch.launcher.request_stop()
    launch.launcher.request_stop()
    assert await asyncio.wait_for(running, 30) == 0
    assert ended(answer.json()["pid"])


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a kernel with pidfd_open")
async def test_a_worker_does_not_outlive_its_server(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("one", worker="true"))
    launch = Launch(cwd)
    running = asyncio.create_task(launch.launcher.run())
    (answer,) = await launch.answers()
    worker = os.pidfd_open(int(launch.out.decode().split("worker ")[1].split()[0]))
    os.kill(answer.json()["pid"], signal.SIGKILL)
    assert await asyncio.wait_for(running, 30) == 1
    # Readable when the process has ended, whoever collects it.
    readable, _, _ = await asyncio.to_thread(select.select, [worker], [], [], 30)
    os.close(worker)
    assert readable


async def test_a_configuration_that_no_process_can_be_given_is_refused(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("one", template="x" * 200_000))
    with pytest.raises(ConfigError, match="move long texts, such as chat templates, into files"):
        await Launch(cwd).launcher.run()


async def test_what_cannot_be_started_leaves_nothing_behind(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("one"))
    launch = Launch(cwd)
    nowhere = Launcher(launch.plan, cwd=cwd / "nowhere", env={}, out=launch.out.extend, err=launch.err.extend)
    with pytest.raises(FileNotFoundError):
        await nowhere.run()


async def test_a_server_that_takes_long_is_named_now_and_then(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("slow"))
    waiting = asyncio.create_task(wait_until_ready(Launch(cwd).plan.servers, reminder_seconds=0.01))
    await Announcement("Still waiting for slow").wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_session_secret_that_is_set_stays(cwd: Path) -> None:
    write(cwd / "c.yaml", echo_yaml("one"))
    plan = Launch(cwd).plan
    env = {"NEMO_GYM_SESSION_SECRET": "chosen", "NEMO_GYM_CONFIG_PATH": "other"}
    environment = child_environment(plan, plan.servers[0], env, "random")
    assert environment["NEMO_GYM_SESSION_SECRET"] == "chosen"
    assert environment["NEMO_GYM_CONFIG_PATH"] == "one"
    assert child_environment(plan, plan.servers[0], {}, "random")["NEMO_GYM_SESSION_SECRET"] == "random"


def test_output_that_nobody_reads_is_dropped() -> None:
    read, write_end = os.pipe()
    os.close(read)
    with os.fdopen(write_end, "wb", buffering=0) as stream:
        sink = sink_to(stream)
        with pytest.raises(BrokenPipeError):
            stream.write(b"zero\n")
        assert [sink(b"one\n"), sink(b"two\n")] == [None, None]


def test_output_is_passed_on() -> None:
    stream = io.BytesIO()
    sink_to(stream)(b"one\n")
    assert stream.getvalue() == b"one\n"
