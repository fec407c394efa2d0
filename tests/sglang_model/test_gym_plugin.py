from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from venv import EnvBuilder

import httpx
import pytest
import yaml

from nemo_gym.errors import ConfigError
from sglang_model.cli import main
from sglang_model.gym_plugin import FOLDER, write_gym_plugin
from tests.support.launches import REPOSITORY, free_port, write
from tests.support.server_process import ServerProcess

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")


def gym_environment(folder: Path, **variables: str) -> dict[str, str]:
    """What Gym 0.4.0 gives a server beside its configuration: the folder on PYTHONPATH, before what was there."""
    kept = {
        name: value for name, value in os.environ.items() if "NEMO_GYM" not in name and name != "PYTHONPATH"
    }
    return kept | {"PYTHONPATH": str(folder)} | variables


def configuration(port: int, **settings: object) -> dict[str, str]:
    block = {
        "entrypoint": "app.py",
        "host": "127.0.0.1",
        "port": port,
        "base_url": "http://127.0.0.1:9/v1",
        "api_key": "x",
        "model": "m",
        "return_token_id_information": True,
        "uses_reasoning_parser": True,
        **settings,
    }
    config = {"policy_model": {"responses_api_models": {"sglang_model": block}}}
    return {"NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config), "NEMO_GYM_CONFIG_PATH": "policy_model"}


# The command line of Gym 0.4.0 with +skip_venv_if_present=true. Bash from 5.1 on puts the `exec` there by itself.
GYM_COMMAND = "cd {folder} && source {folder}/.venv/bin/activate && exec python app.py"


@contextmanager
def started_as_gym_does(folder: Path, port: int, env: dict[str, str]) -> Iterator[ServerProcess]:
    """The server of the folder; it is gone when the block is left."""
    command = ["/bin/bash", "-c", GYM_COMMAND.format(folder=folder)]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own folder
    try:
        yield ServerProcess(process, port)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


def stand_in_python(path: Path, program: str) -> Path:
    """An executable that app.py continues in, and that runs `program` instead of a server."""
    write(path, f"#!{sys.executable}\n{program}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def snapshot(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".venv" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_folder_has_what_gym_looks_for(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    assert folder == tmp_path / "responses_api_models/sglang_model"
    assert set(snapshot(folder)) == {
        ".sglang-model.json",
        "app.py",
        "pyproject.toml",
        "configs/sglang_model.yaml",
        "configs/sglang_model_for_training.yaml",
        "configs/sglang_model_for_training_generate.yaml",
    }
    assert (folder / ".venv/bin/python").exists()
    assert (folder / ".venv/bin/activate").is_file()
    assert list(folder.glob(".venv/lib/python*/site-packages/*")) == []


def test_a_pyproject_two_levels_up_is_not_written_because_gym_would_take_it_for_its_checkout(
    tmp_path: Path,
) -> None:
    write_gym_plugin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["responses_api_models"]


@pytest.mark.parametrize(
    ("model_type", "source"),
    [
        ("sglang_model", "sglang_model_for_training"),
        ("sglang_model_for_training", "sglang_model_for_training"),
        ("sglang_model_for_training_generate", "sglang_model_for_training_generate"),
    ],
)
def test_the_configurations_are_those_of_the_project(tmp_path: Path, model_type: str, source: str) -> None:
    folder = write_gym_plugin(tmp_path)
    written = (folder / "configs" / f"{model_type}.yaml").read_text()
    assert written == (REPOSITORY / "configs" / f"{source}.yaml").read_text()


def test_written_again_the_folder_is_brought_up_to_date(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    before = snapshot(folder)
    (folder / "app.py").unlink()
    shutil.rmtree(folder / ".venv")
    write_gym_plugin(tmp_path)
    assert snapshot(folder) == before
    assert (folder / ".venv/bin/python").exists()


def test_an_environment_that_gym_has_made_is_left_alone(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    installed = write(folder / ".venv/lib/installed-by-gym", "")
    write_gym_plugin(tmp_path, force=True)
    assert installed.exists()


def test_an_environment_whose_python_has_gone_is_made_anew(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    python = folder / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    write_gym_plugin(tmp_path)
    assert python.exists()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    write(tmp_path / FOLDER / "app.py", "mine")
    with pytest.raises(ConfigError, match="was not written by sglang-model gym-plugin; --force"):
        write_gym_plugin(tmp_path)
    assert snapshot(tmp_path / FOLDER) == {"app.py": b"mine"}


def test_a_configuration_that_was_edited_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    write(folder / "configs/sglang_model.yaml", "mine")
    before = snapshot(folder)
    with pytest.raises(ConfigError, match=r"configs/sglang_model\.yaml changed since written; --force"):
        write_gym_plugin(tmp_path)
    assert snapshot(folder) == before


def test_force_replaces_both(tmp_path: Path) -> None:
    write(tmp_path / FOLDER / "app.py", "mine")
    folder = write_gym_plugin(tmp_path, force=True)
    written = snapshot(folder)
    write(folder / "configs/sglang_model.yaml", "mine")
    write_gym_plugin(tmp_path, force=True)
    assert snapshot(folder) == written
    assert written["app.py"] != b"mine"


def test_an_environment_that_holds_the_real_nemo_gym_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "site/nemo_gym-0.4.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: nemo-gym\nVersion: 0.4.0\n",
    )
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ConfigError, match=r"nemo-gym 0\.4\.0 is installed"):
        write_gym_plugin(tmp_path)
    assert not (tmp_path / FOLDER).exists()


def test_the_command_says_what_it_wrote_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gym-plugin", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert str(tmp_path / FOLDER) in said
    assert sys.executable in said
    assert "gym env start --model-type sglang_model" in said
    assert "+skip_venv_if_present=true" in said


def test_the_command_refuses_a_foreign_folder_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / FOLDER / "app.py", "mine")
    assert main(["gym-plugin", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["gym-plugin", str(tmp_path), "--force"]) == 0


def test_the_server_runs_in_the_recorded_environment_under_the_process_id_that_gym_has(
    tmp_path: Path,
) -> None:
    folder = write_gym_plugin(tmp_path)
    write(tmp_path / "gym/nemo_gym/__init__.py", "raise ImportError('the real nemo_gym was imported')")
    port = free_port()
    path = os.pathsep.join([str(folder), str(tmp_path / "gym")])
    env = gym_environment(folder, PYTHONPATH=path, **configuration(port))
    with started_as_gym_does(folder, port, env) as server:
        server.wait_for("Uvicorn running")
        assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).json() == {"status": "ok"}
        assert f"Started server process [{server.process.pid}]" in server.stderr
        assert server.end(signal.SIGINT) == 0


def test_two_workers_serve_from_the_folder(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    port = free_port()
    env = gym_environment(folder, **configuration(port, num_workers=2))
    with started_as_gym_does(folder, port, env) as server:
        server.wait_for("Application startup complete", times=2)
        assert httpx.get(f"http://127.0.0.1:{port}/", trust_env=False).json() == {"status": "ok"}
        assert server.end(signal.SIGINT) == 0


def test_a_wrong_configuration_ends_with_the_servers_own_exit_code(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    env = gym_environment(folder, **configuration(free_port(), transprot="chat"))
    with started_as_gym_does(folder, 0, env) as server:
        assert server.end(None) == 2
        assert "transprot" in server.stderr
        assert "Traceback" not in server.stderr


def test_a_missing_interpreter_is_one_line_that_names_the_variable(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    env = gym_environment(folder, NEMO_GYM_SGLANG_PYTHON="/nowhere/bin/python")
    with started_as_gym_does(folder, 0, env) as server:
        assert server.end(None) == 2
        assert server.stderr.count("\n") == 1
        assert "/nowhere/bin/python cannot be run: No such file or directory" in server.stderr
        assert "NEMO_GYM_SGLANG_PYTHON" in server.stderr


def test_the_variable_names_another_environment_and_our_paths_stay_out_of_it(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    say = "import os, sys; print(sys.argv[1:], os.environ.get('PYTHONPATH'), os.environ.get('VIRTUAL_ENV'))"
    other = stand_in_python(tmp_path / "python", say)
    write(tmp_path / "gym/nemo_gym/__init__.py", "")
    path = os.pathsep.join([str(folder), str(tmp_path / "gym"), "", str(tmp_path / "tools")])
    env = gym_environment(folder, PYTHONPATH=path, NEMO_GYM_SGLANG_PYTHON=str(other))
    command = ["/bin/bash", "-c", GYM_COMMAND.format(folder=folder)]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    assert said.stdout == f"['-P', '-m', 'sglang_model.app'] {tmp_path / 'tools'} None\n"


def test_nothing_but_the_standard_library_is_needed_to_continue(tmp_path: Path) -> None:
    folder = write_gym_plugin(tmp_path)
    EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "empty")
    other = stand_in_python(tmp_path / "python", "print('continued')")
    command = [str(tmp_path / "empty/bin/python"), "-I", str(folder / "app.py")]
    env = gym_environment(folder, NEMO_GYM_SGLANG_PYTHON=str(other))
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603
    assert said.stdout == "continued\n"


@linux_only
def test_the_server_ends_with_the_shell_that_gym_kills(tmp_path: Path) -> None:
    """With `nemo_gym_log_dir` a shell stands between Gym and the server, and Gym's signals end with that shell."""
    folder = write_gym_plugin(tmp_path)
    wait = "\n".join(
        [
            "import signal",
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})",
            "print('waiting', flush=True)",
            "print(signal.sigtimedwait({signal.SIGTERM}, 30) is not None, flush=True)",
        ]
    )
    other = stand_in_python(tmp_path / "python", wait)
    command = ["/bin/bash", "-c", f"({GYM_COMMAND.format(folder=folder)}) 2>&1 | tee {tmp_path / 'log'}"]
    env = gym_environment(folder, NEMO_GYM_SGLANG_PYTHON=str(other))
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as shell:  # noqa: S603
        assert shell.stdout is not None
        assert shell.stdout.readline() == "waiting\n"
        shell.kill()
        assert shell.stdout.read() == "True\n"
