from __future__ import annotations

import asyncio
import re
import shutil
import signal
import sys
from pathlib import Path

import httpx
import pytest

from nemo_gym.workers import (
    announce_workers,
    app_import,
    get_nemo_gym_fastapi_num_workers,
    is_nemo_gym_fastapi_entrypoint,
    is_nemo_gym_fastapi_worker,
)
from tests.support import tiny_server
from tests.support.server_process import ROOT, server_process

TINY_FILE = Path(tiny_server.__file__)


def plugin_folder(tmp_path: Path) -> Path:
    """The folder of a NeMo Gym plugin, which is importable under no dotted name."""
    folder = tmp_path / "responses_api_models" / "tiny_model"
    folder.mkdir(parents=True)
    shutil.copy(TINY_FILE, folder / "app.py")
    return folder


async def who(port: int, cookies: dict[str, str] | None = None) -> tuple[dict[str, object], dict[str, str]]:
    async with httpx.AsyncClient(cookies=cookies) as client:
        response = await client.get(f"http://127.0.0.1:{port}/who")
        return response.json(), dict(response.cookies)


async def one_answer_of_each_worker(port: int, cookies: dict[str, str]) -> dict[object, object]:
    """Ask over new connections until two workers have answered; return their sessions by pid."""
    sessions: dict[object, object] = {}
    async with asyncio.timeout(30):
        while len(sessions) < 2:
            answers = await asyncio.gather(*(who(port, cookies) for _ in range(8)))
            sessions.update((answer["pid"], answer["session"]) for answer, _ in answers)
    return sessions


@pytest.mark.parametrize("how", ["module", "file_of_a_package", "plugin"])
async def test_two_workers_share_one_port_and_their_sessions(how: str, tmp_path: Path) -> None:
    command, cwd = {
        "module": (["-m", "tests.support.tiny_server"], ROOT),
        "file_of_a_package": ([str(TINY_FILE)], ROOT),
        "plugin": (["app.py"], plugin_folder(tmp_path)),
    }[how]
    with server_process(command, cwd=cwd, num_workers=2) as server:
        await asyncio.to_thread(server.wait_for, "Application startup complete", 2)
        answer, cookies = await who(server.port)
        assert answer["num_workers"] == 2
        sessions = await one_answer_of_each_worker(server.port, cookies)
        assert set(sessions.values()) == {answer["session"]}
        code = await asyncio.to_thread(server.end, signal.SIGINT)
    assert code == 0
    assert "Traceback" not in server.stderr
    # Once in the process that starts the workers, once in each worker.
    assert len(re.findall(r"TINY built \d+", server.stderr)) == 3
    assert set(sessions) < {int(pid) for pid in re.findall(r"TINY started (\d+)", server.stderr)}


def test_what_cannot_start_ends_before_any_worker_is_started() -> None:
    with server_process(["-m", "tests.support.tiny_server"], num_workers=2, fail_at="startup") as server:
        assert server.end(None) == 2
    assert len(re.findall(r"TINY built \d+", server.stderr)) == 1
    assert "configuration error: fail_at: startup cannot be used" in server.stderr
    assert "Traceback" not in server.stderr


def test_an_entry_point_is_only_that_file_and_only_in_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "IS_NEMO_GYM_FASTAPI_WORKER",
        "IS_NEMO_GYM_FASTAPI_ENTRYPOINT",
        "NEMO_GYM_FASTAPI_NUM_WORKERS",
    ):
        monkeypatch.setenv(name, "")  # so that what the code sets is undone after the test
        monkeypatch.delenv(name)
    mine, other = str(tmp_path / "app.py"), str(tmp_path / "other_app.py")
    assert not is_nemo_gym_fastapi_worker()
    assert not is_nemo_gym_fastapi_entrypoint(mine)
    assert get_nemo_gym_fastapi_num_workers() == 1
    announce_workers(Path(mine), 3)
    assert is_nemo_gym_fastapi_worker()
    assert is_nemo_gym_fastapi_entrypoint(mine)
    assert not is_nemo_gym_fastapi_entrypoint(other)
    assert get_nemo_gym_fastapi_num_workers() == 3
    # NeMo Gym's own launcher records the last parts of the path only.
    monkeypatch.setenv("IS_NEMO_GYM_FASTAPI_ENTRYPOINT", f"{tmp_path.name}/app.py")
    assert is_nemo_gym_fastapi_entrypoint(mine)
    monkeypatch.setenv("IS_NEMO_GYM_FASTAPI_ENTRYPOINT", "app.py")
    assert not is_nemo_gym_fastapi_entrypoint(other)


def test_the_file_of_an_installed_package_is_imported_by_its_dotted_name() -> None:
    assert app_import(TINY_FILE) == ("tests.support.tiny_server:app", str(ROOT))


def test_a_plugin_folder_named_like_an_installed_package_is_imported_from_itself(tmp_path: Path) -> None:
    folder = tmp_path / "responses_api_models" / "nemo_gym"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "app.py").touch()
    assert app_import(folder / "app.py") == ("app:app", str(folder))
    assert "nemo_gym" in sys.modules
