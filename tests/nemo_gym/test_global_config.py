from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest
from omegaconf import OmegaConf
from pydantic import model_validator

from nemo_gym.config_tree import plain
from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import (
    GlobalConfig,
    global_config_from_environment,
    load_global_config,
    load_server_config,
)
from sglang_model.config import SGLangModelConfig
from tests.support.launches import REPOSITORY, write

BLOCK = "policy_model.responses_api_models.echo_model"


class EchoConfig(BaseRunServerInstanceConfig):
    """Settings of a server that exists only here."""

    tool_format: str = "hermes"
    """A word."""

    timeout: float = 1.0
    """A number."""

    window: int
    """Required."""

    @model_validator(mode="after")
    def _window_fits(self) -> Self:
        if self.window > 100:
            raise ValueError("window must be at most 100")
        return self


def load(cwd: Path, *argv: str, env: Mapping[str, str] | None = None) -> GlobalConfig:
    return load_global_config(argv, cwd=cwd, env=env or {})


def values(cwd: Path, *argv: str, env: Mapping[str, str] | None = None) -> dict[str, object]:
    tree = plain(load(cwd, *argv, env=env).values)
    del tree["config_paths"]
    return tree


def refusal(cwd: Path, *argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(cwd, *argv)
    return caught.value.message


def server_refusal(cwd: Path, *argv: str, name: str = "policy_model") -> str:
    config = load(cwd, *argv)
    with pytest.raises(ConfigError) as caught:
        load_server_config(EchoConfig, config.values, name, origins=config.origins)
    return caught.value.message


def write_server(cwd: Path, *settings: str) -> None:
    lines = "".join(f"      {setting}\n" for setting in ("entrypoint: app.py", "port: 8000", *settings))
    write(cwd / "c.yaml", f"policy_model:\n  responses_api_models:\n    echo_model:\n{lines}")


C = "+config_paths=[c.yaml]"


def test_later_sources_win(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "a: base\nb: base\nc: base\nd: base\n")
    write(tmp_path / "c.yaml", "config_paths: [base.yaml]\nb: including\nc: including\nd: including\n")
    write(tmp_path / "env.yaml", "c: env\nd: env\n")
    assert values(tmp_path, C, "+d=cli") == {"a": "base", "b": "including", "c": "env", "d": "cli"}


def test_env_yaml_may_name_the_files_and_the_command_line_replaces_its_list(tmp_path: Path) -> None:
    write(tmp_path / "env.yaml", "config_paths: [c.yaml]\n")
    write(tmp_path / "c.yaml", "a: 1\n")
    write(tmp_path / "d.yaml", "b: 2\n")
    assert values(tmp_path) == {"a": 1}
    assert values(tmp_path, "+config_paths=[d.yaml]") == {"b": 2}
    assert values(tmp_path, "~config_paths") == {}


def test_files_are_looked_for_in_the_extra_roots_first(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: here\n")
    write(tmp_path / "extra/c.yaml", "a: extra\n")
    assert values(tmp_path, C, env={"NEMO_GYM_EXTRA_ROOTS": f"nowhere:{tmp_path}/extra"}) == {"a": "extra"}
    assert values(tmp_path, C, env={"NEMO_GYM_EXTRA_ROOTS": "extra"}) == {"a": "extra"}


def test_the_loaded_files_are_listed_in_the_result(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "config_paths: [d.yaml]\n")
    write(tmp_path / "d.yaml", "")
    assert load(tmp_path, C).values.config_paths == [str(tmp_path / "d.yaml"), str(tmp_path / "c.yaml")]


def test_plus_adds_and_lays_over_what_a_file_says(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {b: 1, l: [1, 2], n: null, s: text}\n")
    overrides = ("+a.c.d=2", "+a.b=3", "+a.l=[4]", "+a.n.x=5", "+a.s.y=6")
    expected = {"b": 3, "l": [4], "n": {"x": 5}, "s": {"y": 6}, "c": {"d": 2}}
    assert values(tmp_path, C, *overrides) == {"a": expected}


def test_mappings_are_merged_and_lists_replaced(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {b: 1}\n")
    assert values(tmp_path, C, "+a={c: [1]}", "+a={c: [2]}") == {"a": {"b": 1, "c": [2]}}


def test_a_second_plus_for_one_key_is_refused_and_two_are_not(tmp_path: Path) -> None:
    assert "given twice" in refusal(tmp_path, "+a=1", "+a=2")
    assert "given twice" in refusal(tmp_path, "+a.b=1", "+a=2")
    assert values(tmp_path, "+a=1", "++a=2") == {"a": 2}


def test_without_a_sign_only_what_is_there_is_changed(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {bravo: 1}\n")
    assert values(tmp_path, C, "a.bravo=2") == {"a": {"bravo": 2}}
    message = refusal(tmp_path, C, "a.brvo=2")
    assert "a.brvo is not in the configuration" in message
    assert "did you mean a.bravo?" in message
    assert "+a.brvo=<value>" in message


def test_tilde_deletes(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {b: 1, c: 2}\n1: x\n")
    assert values(tmp_path, C, "~a.b", "~a.c=2", "+a.d=3") == {"a": {"d": 3}, 1: "x"}
    assert "cannot delete what is not in the configuration" in refusal(tmp_path, C, "~a.x")
    assert "cannot delete what is not in the configuration" in refusal(tmp_path, C, "~a.b.x")
    assert "has another one" in refusal(tmp_path, C, "~a.b=2")


def test_members_of_a_list_cannot_be_overridden(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {l: [1, 2]}\n")
    assert "++a.l=[...]" in refusal(tmp_path, C, "++a.l.0=5")
    assert "++a.l=[...]" in refusal(tmp_path, C, "~a.l.0")


def test_sources_that_do_not_fit_each_other_are_named(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", "a: [1]\n")
    write(tmp_path / "c.yaml", "a: {b: 1}\n")
    assert "c.yaml does not fit" in refusal(tmp_path, "+config_paths=[base.yaml,c.yaml]")


def test_an_override_that_omegaconf_cannot_read_is_refused_without_its_value(tmp_path: Path) -> None:
    message = refusal(tmp_path, "+policy_api_key='${5ecret'")
    assert "policy_api_key" in message
    assert "5ecret" not in message


def test_a_file_that_omegaconf_cannot_read_is_refused_without_its_value(tmp_path: Path) -> None:
    write(tmp_path / "env.yaml", "policy_api_key: ab${5ecret\n")
    message = refusal(tmp_path)
    assert "env.yaml cannot be read: policy_api_key has a ${" in message
    assert "5ecret" not in message


def test_config_paths_on_the_command_line_must_be_a_list(tmp_path: Path) -> None:
    assert "+config_paths=[a.yaml]" in refusal(tmp_path, "+config_paths=c.yaml")


def test_directives_are_carried_out_after_the_overrides(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "a: {x: '???', y: 1}\n")
    assert values(tmp_path, C, "+b='${inherit_from:a}'", "+a.x=2") == {"b": {"x": 2, "y": 1}}


def test_all_that_is_missing_is_reported_at_once_with_the_override_for_each(tmp_path: Path) -> None:
    write_server(tmp_path, "base_url: ${policy_base_url}", "model: ${policy_model_name}", "window: ???")
    message = refusal(tmp_path, C, "+other.here=1", "+other.l=[1,'???']")
    assert "4 settings have no value" in message
    assert f"+policy_base_url=<value>   for {BLOCK}.base_url (set in c.yaml, line 6)" in message
    assert f"+policy_model_name=<value>   for {BLOCK}.model (set in c.yaml, line 7)" in message
    assert f"++{BLOCK}.window=<value> (set in c.yaml, line 8)" in message
    assert "++other.l=[<value>,...] (set on the command line)" in message


def test_the_overrides_of_the_message_complete_the_configuration(tmp_path: Path) -> None:
    write_server(tmp_path, "model: ${policy_model_name}", "window: ???")
    asked = [line.split("=")[0].strip() for line in refusal(tmp_path, C).splitlines()[1:]]
    config = load(tmp_path, C, *(f"{key}=12" for key in asked))
    assert OmegaConf.select(config.values, f"{BLOCK}.model") == 12
    assert OmegaConf.select(config.values, f"{BLOCK}.window") == 12


def test_a_key_that_is_missing_behind_another_reference_is_found(tmp_path: Path) -> None:
    write_server(tmp_path, "model: ${policy_model_name}", "near: ${.far}")
    message = refusal(tmp_path, C, "+policy_model_name='${organisation}/${model}'")
    assert "+organisation=<value>" in message
    assert "+model=<value>" in message
    assert f"+{BLOCK}.far=<value>" in message
    assert "+policy_model_name=" not in message


def test_a_misspelt_key_is_recognised(tmp_path: Path) -> None:
    write_server(tmp_path, "model: ${policy_model_name}")
    assert "policy_modl_name is given; did you mean policy_model_name?" in refusal(
        tmp_path, C, "+policy_modl_name=m"
    )


def test_a_value_that_refers_to_an_unset_one_is_not_asked_for_itself(tmp_path: Path) -> None:
    write_server(tmp_path, "model: ${policy_model_name}")
    message = refusal(tmp_path, C, "+policy_model_name='???'")
    assert "1 setting has no value" in message
    assert "++policy_model_name=<value>" in message


def test_an_environment_variable_that_is_not_set_is_named(tmp_path: Path) -> None:
    write_server(tmp_path, "api_key: ${oc.env:NEMO_GYM_TEST_NO_SUCH_KEY}")
    message = refusal(tmp_path, C)
    assert f"{BLOCK}.api_key" in message
    assert "NEMO_GYM_TEST_NO_SUCH_KEY" in message


def test_references_into_lists_and_in_circles_are_reported(tmp_path: Path) -> None:
    write_server(tmp_path, "model: ${names.1}", "a: ${.b}", "b: ${.a}", "c: ${names.0}", "d: '${names[2]}'")
    message = refusal(tmp_path, C, "+names=[m]")
    assert "+names.1=<value>" in message
    assert "+names.2=<value>" in message
    assert f"{BLOCK}.a: Recursive interpolation detected" in message
    assert "names.0" not in message


def test_a_broken_reference_inside_a_referenced_block_names_the_server(tmp_path: Path) -> None:
    write_server(tmp_path, "window: 1", "extra: ${shared}")
    message = server_refusal(tmp_path, C, "+shared.x='${nobody}'")
    assert BLOCK in message
    assert "nobody" in message


def test_references_outside_server_blocks_may_stay_open(tmp_path: Path) -> None:
    write(tmp_path / "c.yaml", "notes: {x: '${nobody}'}\n")
    assert values(tmp_path, C) == {"notes": {"x": "${nobody}"}}


def test_a_server_gets_its_settings_resolved_with_its_name(tmp_path: Path) -> None:
    write_server(tmp_path, "window: ${n}", "tool_format: '${word}-${n}'")
    config = load(tmp_path, C, "+n=12", "+word=qwen")
    server = load_server_config(EchoConfig, config.values, "policy_model")
    assert (server.name, server.port, server.window, server.tool_format) == (
        "policy_model",
        8000,
        12,
        "qwen-12",
    )
    assert server.host == "127.0.0.1"


def test_a_plain_mapping_serves_as_a_configuration_too() -> None:
    block = {"entrypoint": "app.py", "port": 1, "window": 2}
    mapping = {"policy_model": {"responses_api_models": {"echo_model": block}}}
    assert load_server_config(EchoConfig, mapping, "policy_model").window == 2


def test_a_misspelt_setting_is_refused_with_the_one_that_was_meant_and_where_it_stands(
    tmp_path: Path,
) -> None:
    write_server(tmp_path, "window: 1", "tool_formt: qwen")
    assert server_refusal(tmp_path, C) == (
        f"{BLOCK}.tool_formt is not a setting of EchoConfig; did you mean tool_format? (set in c.yaml, line 7)"
    )


def test_a_misspelt_setting_of_the_command_line_is_refused(tmp_path: Path) -> None:
    write_server(tmp_path, "window: 1")
    message = server_refusal(tmp_path, C, f"+{BLOCK}.nmae=x")
    assert message == f"{BLOCK}.nmae is not a setting of EchoConfig (set on the command line)"


def test_every_problem_of_a_block_is_reported_at_once(tmp_path: Path) -> None:
    write_server(tmp_path, "tool_formt: qwen", "timeout: never", "num_workers: 0")
    message = server_refusal(tmp_path, C)
    assert "4 settings cannot be used" in message
    assert f"{BLOCK}.window has no value; add ++{BLOCK}.window=<value>" in message
    assert f"{BLOCK}.timeout (set in c.yaml, line 7): input should be a valid number" in message
    assert "never" not in message


def test_a_number_where_text_is_wanted_is_refused_with_the_way_to_quote_it(tmp_path: Path) -> None:
    write_server(tmp_path, "window: 1", "tool_format: 12")
    message = server_refusal(tmp_path, C)
    assert f"not int; what is text needs quotes of its own: ++{BLOCK}.tool_format=" in message
    quoted = load(tmp_path, C, f"++{BLOCK}.tool_format='12'")
    assert load_server_config(EchoConfig, quoted.values, "policy_model").tool_format == "12"


def test_what_a_settings_class_says_itself_is_passed_on(tmp_path: Path) -> None:
    write_server(tmp_path, "window: 101")
    assert server_refusal(tmp_path, C) == f"{BLOCK} (set in c.yaml, line 3): window must be at most 100"


def test_a_list_where_text_is_wanted_is_refused(tmp_path: Path) -> None:
    write_server(tmp_path, "window: 1", "tool_format: [a]")
    assert server_refusal(tmp_path, C).endswith("valid string, not list")


def test_a_server_that_does_not_exist_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    write_server(tmp_path, "window: 1")
    message = server_refusal(tmp_path, C, name="policy_modl")
    assert "no server is named policy_modl; did you mean policy_model?" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "responses_api_models: {a: {}, b: {}}",
            "exactly one implementation under it, such as sglang_model; it has a, b",
        ),
        ("responses_api_models: {}", "it has none"),
        ("responses_api_models: x", "it has none"),
        ("responses_api_models: {a: x}", "responses_api_models.a must be a mapping"),
        ("responses_api_models: {a: {}}\n  resources_servers: {a: {}}", "a server of 2 types"),
    ],
)
def test_a_block_of_the_wrong_shape_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    write(tmp_path / "c.yaml", f"policy_model:\n  {text}\n")
    assert expected in refusal(tmp_path, C)


def test_a_server_reads_its_configuration_from_the_environment() -> None:
    block = "{entrypoint: app.py, port: 1, window: '${n}'}"
    text = f"n: 3\npolicy_model: {{responses_api_models: {{echo_model: {block}}}}}"
    config = global_config_from_environment({"NEMO_GYM_CONFIG_DICT": text})
    assert load_server_config(EchoConfig, config, "policy_model").window == 3


def test_a_configuration_that_nemo_gym_has_completed_is_accepted_as_it_stands() -> None:
    text = """
policy_model:
  responses_api_models:
    sglang_model:
      entrypoint: app.py
      base_url: ${policy_base_url}
      api_key: ${policy_api_key}
      model: ${policy_model_name}
      return_token_id_information: true
      uses_reasoning_parser: true
      host: 127.0.0.1
      port: 12855
policy_base_url: http://127.0.0.1:1/v1
policy_api_key: x
policy_model_name: m
use_absolute_ip: false
port_range_low: 10001
port_range_high: 20000
head_server: {host: 127.0.0.1, port: 11000}
disallowed_ports: [11000, 12855]
head_server_deps: ['ray[default]==2.60.0', openai==2.7.2]
python_version: 3.12.1
skip_venv_if_present: false
dry_run: false
uv_venv_dir: /somewhere
"""
    config = global_config_from_environment({"NEMO_GYM_CONFIG_DICT": text})
    server = load_server_config(SGLangModelConfig, config, "policy_model")
    assert (server.host, server.port, server.model) == ("127.0.0.1", 12855, "m")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "NEMO_GYM_CONFIG_DICT is not set"),
        ({"NEMO_GYM_CONFIG_DICT": ""}, "NEMO_GYM_CONFIG_DICT is not set"),
        ({"NEMO_GYM_CONFIG_DICT": "a: ["}, "NEMO_GYM_CONFIG_DICT is not valid YAML: line 1"),
        ({"NEMO_GYM_CONFIG_DICT": "word"}, "top level must be a mapping"),
    ],
)
def test_an_environment_without_a_usable_configuration_is_refused(env: dict[str, str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        global_config_from_environment(env)
    assert expected in caught.value.message


@pytest.mark.parametrize("name", ["sglang_model_for_training", "sglang_model_for_training_generate"])
def test_the_training_configurations_pin_the_sampling_that_differs_between_the_transports(name: str) -> None:
    keys = ("base_url", "api_key", "model_name")
    window = "++policy_model.responses_api_models.sglang_model.context_length=4096"
    overrides = [f"+config_paths=[configs/{name}.yaml]", window, *(f"+policy_{key}=x" for key in keys)]
    block = load(REPOSITORY, *overrides).values.policy_model.responses_api_models.sglang_model
    assert block.return_token_id_information is True
    assert block.transport == ("generate" if name.endswith("generate") else "chat")
    assert block.extra_body == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }


def test_the_generate_configuration_asks_for_the_context_length() -> None:
    message = refusal(REPOSITORY, "+config_paths=[configs/sglang_model_for_training_generate.yaml]")
    assert "++policy_model.responses_api_models.sglang_model.context_length=<value>" in message
