from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from nemo_gym.config_types import BaseRunServerInstanceConfig, ModelServerRef
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import load_global_config
from nemo_gym.implementations import installed_config_class
from nemo_gym.launch_plan import ConfigClassFinder, LaunchPlan, plan_launch
from nemo_gym.ports import is_free
from tests.support.launches import echo_yaml, free_port, write, write_echo_server

C = "+config_paths=[c.yaml]"
PORT = "policy_model.responses_api_models.echo_model.port"

PACKAGE_APP = """
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.server_utils import SimpleServer


class {name}Config(BaseRunServerInstanceConfig):
    tool_format: str = "hermes"


class Base(SimpleServer):
    config: {name}Config


class Server(Base):
    pass
"""


def plan(
    cwd: Path,
    *argv: str,
    env: Mapping[str, str] | None = None,
    find: ConfigClassFinder = installed_config_class,
) -> LaunchPlan:
    config = load_global_config(argv, cwd=cwd, env=env or {})
    return plan_launch(config, cwd=cwd, env=env or {}, find_config_class=find)


def refusal(cwd: Path, *argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(cwd, *argv)
    return caught.value.message


def test_a_server_without_an_address_gets_a_free_port_on_the_loopback(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    planned = plan(tmp_path, C)
    (server,) = planned.servers
    assert server.url == f"http://127.0.0.1:{server.port}"
    assert 10_001 <= server.port <= 20_000
    assert server.entrypoint == tmp_path / "responses_api_models/echo_model/app.py"
    block = planned.config.policy_model.responses_api_models.echo_model
    assert (block.host, block.port) == (server.host, server.port)


def free_range(size: int) -> int:
    """The first of `size` ports in a row that nobody listens on."""
    for low in range(20_001, 32_000, size):
        if all(is_free("127.0.0.1", port) for port in range(low, low + size)):
            return low
    raise AssertionError("no free ports in a row")


def test_no_two_servers_get_one_port(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    low = free_range(8)
    names = [f"server_{index}" for index in range(7)]
    write(tmp_path / "c.yaml", "".join(map(echo_yaml, names)) + echo_yaml("fixed", port=low + 3))
    planned = plan(tmp_path, C, f"+port_range_low={low}", f"+port_range_high={low + 7}")
    assert sorted(server.port for server in planned.servers) == list(range(low, low + 8))


def test_planning_leaves_the_configuration_as_it_was(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    config = load_global_config([C], cwd=tmp_path, env={})
    plan_launch(config, cwd=tmp_path, env={})
    assert set(config.values.policy_model.responses_api_models.echo_model) == {"entrypoint"}


def test_a_range_without_a_free_port_is_refused(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refusal(tmp_path, C, f"+port_range_low={port}", f"+port_range_high={port}")
    assert f"none of the ports {port} to {port} is free" in message


def test_disallowed_ports_and_that_of_gyms_head_server_are_left_alone(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    message = refusal(
        tmp_path, C, "+port_range_low=10999", "+port_range_high=11001", "+disallowed_ports=[10999,11001]"
    )
    assert "none of the ports" in message


def test_a_port_that_is_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write(tmp_path / "c.yaml", echo_yaml(port=port))
        message = refusal(tmp_path, C)
    assert f"policy_model cannot listen on 127.0.0.1 port {port}" in message
    assert f"++{PORT}=<port>" in message


def test_two_servers_that_want_one_port_are_refused(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    port = free_port()
    write(tmp_path / "c.yaml", echo_yaml("one", port=port) + echo_yaml("two", port=port))
    assert f"two and one both want port {port}" in refusal(tmp_path, C)


def test_a_server_on_all_addresses_is_reached_on_the_loopback(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(port=free_port()))
    (server,) = plan(tmp_path, C, "+default_host=0.0.0.0").servers
    assert server.host == "0.0.0.0"
    assert server.url == f"http://127.0.0.1:{server.port}"


def test_an_ipv6_address_is_written_in_brackets(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    (server,) = plan(tmp_path, C, "+default_host='::1'").servers
    assert server.url == f"http://[::1]:{server.port}"


def test_use_absolute_ip_listens_on_the_machines_own_address(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("this machine does not know its own name")
    assert plan(tmp_path, C, "+use_absolute_ip=true").servers[0].host == address


def test_a_machine_that_does_not_know_its_address_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-machine.invalid")
    assert "++default_host=<address>" in refusal(tmp_path, C, "+use_absolute_ip=true")


def test_the_users_directories_come_before_installed_packages(tmp_path: Path) -> None:
    write_echo_server(tmp_path / "extra")
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    env = {"NEMO_GYM_EXTRA_ROOTS": str(tmp_path / "extra")}
    assert plan(tmp_path, C, env=env).servers[0].entrypoint.is_relative_to(tmp_path / "extra")


def test_an_implementation_that_is_nowhere_is_refused_with_every_place(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", echo_yaml())
    message = refusal(tmp_path, C)
    assert f"{tmp_path}/responses_api_models/echo_model/app.py" in message
    assert "an installed package echo_model" in message
    assert "NEMO_GYM_EXTRA_ROOTS" in message


def test_an_agent_is_said_to_belong_into_gyms_environment(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {responses_api_agents: {simple_agent: {entrypoint: app.py}}}\n")
    assert "agents and resources servers run in NeMo Gym's environment" in refusal(tmp_path, C)


@pytest.mark.parametrize("entrypoint", ["/bin/app.py", "../app.py"])
def test_an_entrypoint_outside_its_directory_is_refused(tmp_path: Path, entrypoint: str) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    override = f"++policy_model.responses_api_models.echo_model.entrypoint={entrypoint}"
    assert "must be relative to the directory of the server" in refusal(tmp_path, C, override)


def test_a_block_without_an_entrypoint_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "policy_model: {responses_api_models: {echo_model: {port: 1}}}\n")
    assert "entrypoint has no value; add ++policy_model.responses_api_models" in refusal(tmp_path, C)


def test_a_configuration_without_a_server_is_refused(tmp_path: Path) -> None:
    assert "no server to start" in refusal(tmp_path)


def test_settings_of_the_launch_are_checked(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    assert "port_range_low (set on the command line)" in refusal(tmp_path, C, "+port_range_low=ten")


def test_what_the_launcher_needs_of_any_server_is_checked(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(port="many"))
    assert f"{PORT} (set in c.yaml, line 5): input should be a valid integer" in refusal(tmp_path, C)


def test_a_setting_that_is_given_at_the_top_level_is_refused(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml())
    assert f"port is given at the top level, where nothing reads it; write ++{PORT}=<value>" in refusal(
        tmp_path, C, "+port=8000"
    )


def test_a_top_level_name_that_something_refers_to_or_that_a_file_gives_is_accepted(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    port = free_port()
    write(tmp_path / "c.yaml", echo_yaml(port="${port}") + f"port: {port}\nhost: shared\n")
    assert plan(tmp_path, C, f"++port={port}").servers[0].port == port


def test_a_reference_to_a_server_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(judge="{type: responses_api_models, name: policy_modl}"))
    message = refusal(tmp_path, C)
    assert "judge refers to responses_api_models policy_modl, which is not configured" in message
    assert "did you mean policy_model? (set in c.yaml, line 5)" in message


def test_a_reference_to_a_configured_server_is_accepted(tmp_path: Path) -> None:
    write_echo_server(tmp_path)
    write(tmp_path / "c.yaml", echo_yaml(judge="{type: responses_api_models, name: policy_model}"))
    assert plan(tmp_path, C).servers


def write_package(root: Path, name: str) -> None:
    write(root / f"{name}/__init__.py", "")
    write(root / f"{name}/app.py", PACKAGE_APP.format(name=name.title()))
    write(root / "c.yaml", f"m: {{responses_api_models: {{{name}: {{entrypoint: app.py}}}}}}\n")


def test_an_installed_server_is_checked_against_its_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "launchplanmodel")
    monkeypatch.syspath_prepend(tmp_path)
    assert plan(tmp_path, C).servers[0].entrypoint == tmp_path / "launchplanmodel/app.py"
    message = refusal(tmp_path, C, "+m.responses_api_models.launchplanmodel.tool_formt=qwen")
    assert "tool_formt is not a setting of LaunchplanmodelConfig; did you mean tool_format?" in message


def test_an_installed_server_that_cannot_be_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "brokenmodel")
    write(tmp_path / "brokenmodel/app.py", "import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "brokenmodel.app cannot be imported: No module named 'no_such_library'" in refusal(tmp_path, C)


def test_a_module_without_one_server_of_its_own_has_no_settings_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(tmp_path, "severalmodel")
    other = "\n\nclass Other(Base):\n    pass\n\n\nword = 'x'\n"
    write(tmp_path / "severalmodel/app.py", PACKAGE_APP.format(name="Several") + other)
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_config_class("severalmodel.app") is None
    assert installed_config_class("nemo_gym.errors") is None


def test_references_among_servers_with_settings_of_their_own_are_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class JudgedConfig(BaseRunServerInstanceConfig):
        judge: ModelServerRef

    write_package(tmp_path, "judgedmodel")
    monkeypatch.syspath_prepend(tmp_path)
    override = "+m.responses_api_models.judgedmodel.judge={type: responses_api_models, name: m, nmae: m}"
    with pytest.raises(ConfigError, match=r"judge\.nmae is not a setting of m\.responses_api_models"):
        plan(tmp_path, C, override, find=lambda _module: JudgedConfig)
