from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

from nemo_gym.cli import main
from nemo_gym.parent_death import ending_with_this_process
from tests.support.launches import (
    REPOSITORY,
    echo_yaml,
    free_port,
    ng_run_command,
    ng_run_environment,
    write,
    write_echo_server,
)

TRAINING = "+config_paths=[configs/sglang_model_for_training.yaml]"
BLOCK = "policy_model.responses_api_models.sglang_model"


@contextlib.contextmanager
def running(cwd: Path, *overrides: str, wrapper: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    """`ng_run` as a process of its own; what a test leaves running is killed, and with it the servers."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        [*wrapper, *ng_run_command(*overrides)],
        cwd=cwd,
        env=ng_run_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # The tests themselves may run under nohup, which a child inherits.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=30)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    seen = ""
    assert process.stdout is not None
    for line in process.stdout:
        seen += line
        if words in line:
            return seen
    raise AssertionError(f"{words!r} never came: {seen}\n{process.communicate()}")


def finished(cwd: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own command
        ng_run_command(*overrides),
        cwd=cwd,
        env=ng_run_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_server_runs_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(api_key="${policy_api_key}"))
    write(tmp_path / "env.yaml", "policy_api_key: sk-5ecret\n")
    port = free_port()
    override = f"+policy_model.responses_api_models.echo_model.port={port}"
    with running(tmp_path, "+config_paths=[c.yaml]", override) as process:
        seen = read_until(process, f"policy_model: http://127.0.0.1:{port}\n")
        given = httpx.get(f"http://127.0.0.1:{port}", trust_env=False).json()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "All 1 / 1 servers ready" in seen
    assert "(policy_model) listening" in seen
    assert "5ecret" not in seen + out + err
    assert given["config"]["policy_api_key"] == "sk-5ecret"
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}", trust_env=False)


def test_a_server_under_nohup_survives_the_end_of_the_terminal(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    with running(tmp_path, "+config_paths=[c.yaml]", wrapper=["nohup"]) as process:
        url = read_until(process, "policy_model: http://").split()[-1]
        process.send_signal(signal.SIGHUP)
        assert httpx.get(url, trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_ends_with_an_ng_run_that_is_killed(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    with running(tmp_path, "+config_paths=[c.yaml]") as process:
        url = read_until(process, "policy_model: http://").split()[-1]
        server = httpx.get(url, trust_env=False).json()["pid"]
        descriptor = os.pidfd_open(server)
        try:
            process.kill()
            ended, _, _ = select.select([descriptor], [], [], 30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
    assert ended
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_server_whose_launcher_has_gone_already_does_not_start() -> None:
    command = ending_with_this_process([sys.executable, "-c", "print('started')"])
    gone = [*command[:4], str(os.getpid() + 1), *command[5:]]
    for argv, printed in ((command, b"started\n"), (gone, b"")):
        done = subprocess.run(argv, capture_output=True, timeout=60, check=False)  # noqa: S603 - our own command
        assert done.stdout == printed


def test_the_death_of_a_server_is_the_end_with_exit_code_1(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(exit_code=3))
    done = finished(tmp_path, "+config_paths=[c.yaml]")
    assert done.returncode == 1
    assert "The server policy_model ended with exit code 3" in done.stdout
    assert "(policy_model) no more" in done.stderr


def test_missing_keys_are_all_named_with_the_way_to_give_them() -> None:
    done = finished(REPOSITORY, TRAINING, "+policy_base_url=http://127.0.0.1:1/v1")
    assert done.returncode == 2
    assert done.stderr.startswith("ng_run: 2 settings have no value")
    assert "+policy_api_key=<value>" in done.stderr
    assert "+policy_model_name=<value>" in done.stderr
    assert "Traceback" not in done.stderr


def policy(name: str = "m") -> list[str]:
    return ["+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=x", f"+policy_model_name={name}"]


def test_a_misspelt_key_of_a_real_server_is_refused_before_it_starts() -> None:
    done = finished(REPOSITORY, TRAINING, *policy(), f"+{BLOCK}.sglang_tool_formt=qwen3_coder")
    assert done.returncode == 2
    assert done.stderr == (
        f"ng_run: {BLOCK}.sglang_tool_formt is not a setting of SGLangModelConfig; did you mean sglang_tool_format? "
        "(set on the command line)\n"
    )


def test_the_command_of_the_readme_starts_the_server() -> None:
    port = free_port()
    with running(REPOSITORY, TRAINING, *policy(), f"+{BLOCK}.port={port}") as process:
        seen = read_until(process, f"policy_model: http://127.0.0.1:{port}\n")
        answer = httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert answer.json() == {"status": "ok"}
    assert process.returncode == 0, seen + out + err
    assert "Traceback" not in out + err


def test_a_dry_run_checks_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(exit_code=3))
    monkeypatch.chdir(tmp_path)
    assert main(["+config_paths=[c.yaml]", "+dry_run=true", "+verbose=true"]) == 0
    assert "nothing was started" in capsys.readouterr().out


def test_a_wrong_configuration_is_one_message_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["+config_paths=[c.yaml]"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ng_run: config_paths: there is no file c.yaml")


def test_an_environment_shared_with_nemo_gym_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path / "nemo_gym-0.4.0.dist-info/METADATA",
        "Metadata-Version: 2.1\nName: nemo-gym\nVersion: 0.4.0\n",
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main([TRAINING]) == 2
    assert capsys.readouterr().err.startswith("ng_run: nemo-gym 0.4.0 is installed in the Python environment")


def test_help_explains_the_grammar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(form in text for form in ("+key=value", "++key=value", "key=value", "~key", "env.yaml"))
    assert max(map(len, text.splitlines())) <= 110
