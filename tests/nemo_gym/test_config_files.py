from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nemo_gym.config_files import collect_files, find_file, install_root, read_config_file
from nemo_gym.config_tree import paths, plain
from nemo_gym.errors import ConfigError
from tests.support.launches import write


def names(root: Path, *entries: str) -> list[str]:
    return [str(file.path.relative_to(root)) for file in collect_files(entries, [root])]


def test_the_training_configurations_are_found_from_anywhere(tmp_path: Path) -> None:
    roots = [tmp_path, install_root()]
    for name in (
        "sglang_model_for_training",
        "sglang_model_for_training_generate",
        "vllm_model_for_training",
    ):
        assert "policy_model" in read_config_file(find_file(f"configs/{name}.yaml", roots)).config


def test_earlier_roots_come_first(tmp_path: Path) -> None:
    for root in ("one", "two"):
        write(tmp_path / root / "c.yaml", "a: 1\n")
    assert find_file("c.yaml", [tmp_path / "two", tmp_path / "one"]).parent.name == "two"


def test_an_absolute_path_needs_no_root(tmp_path: Path) -> None:
    file = write(tmp_path / "c.yaml", "a: 1\n")
    assert find_file(str(file), [Path("/nowhere")]) == file


def test_a_file_that_is_nowhere_is_reported_with_every_place(tmp_path: Path) -> None:
    (tmp_path / "two/c.yaml").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        find_file("c.yaml", [tmp_path / "one", tmp_path / "two"])
    assert "no file c.yaml" in caught.value.message
    assert f"{tmp_path}/one/c.yaml" in caught.value.message
    assert f"{tmp_path}/two/c.yaml" in caught.value.message


def test_an_including_file_comes_after_what_it_includes(tmp_path: Path) -> None:
    write(tmp_path / "top.yaml", "config_paths: [mid.yaml]\n")
    write(tmp_path / "mid.yaml", "config_paths: [low.yaml]\n")
    write(tmp_path / "low.yaml", "a: 1\n")
    assert names(tmp_path, "top.yaml") == ["low.yaml", "mid.yaml", "top.yaml"]


def test_a_later_sibling_comes_after_an_earlier_one_and_all_it_includes(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "config_paths: [low.yaml]\n")
    write(tmp_path / "b.yaml", "config_paths: [other.yaml]\n")
    write(tmp_path / "low.yaml", "")
    write(tmp_path / "other.yaml", "")
    assert names(tmp_path, "a.yaml", "b.yaml") == ["low.yaml", "a.yaml", "other.yaml", "b.yaml"]


def test_a_file_that_is_named_twice_is_loaded_once_and_said_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path / "a.yaml", "config_paths: [b.yaml]\n")
    write(tmp_path / "b.yaml", "config_paths: [a.yaml]\n")
    assert names(tmp_path, "a.yaml", str(tmp_path / "b.yaml")) == ["b.yaml", "a.yaml"]
    assert "loaded once" in caplog.text


def test_config_paths_may_be_interpolated(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "base: low\nconfig_paths: ['${base}.yaml']\n")
    write(tmp_path / "low.yaml", "")
    assert names(tmp_path, "a.yaml") == ["low.yaml", "a.yaml"]


@pytest.mark.parametrize(
    "text", ["config_paths: low.yaml\n", "config_paths: [1]\n", "config_paths: {a: b}\n"]
)
def test_config_paths_must_be_a_list_of_paths(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a.yaml", text)
    with pytest.raises(ConfigError, match="must be a list of paths"):
        names(tmp_path, "a.yaml")


def test_a_broken_interpolation_in_config_paths_names_the_file(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "config_paths: ['${nope}']\n")
    with pytest.raises(ConfigError, match=r"config_paths in .*a\.yaml.*nope"):
        names(tmp_path, "a.yaml")


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("a: \x01\n", "character 3: special characters are not allowed"),
        ("a: 1\nb: [1, 2\nc: 3\n", "line 3, column"),
        ("a: 1\n b: 2\n", "line 2, column 3"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: found duplicate key a"),
        ("a: !!python/object:os.system x\n", "line 1, column 4"),
    ],
)
def test_bad_yaml_is_reported_with_file_line_and_column(tmp_path: Path, text: str, position: str) -> None:
    path = write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(path)
    assert str(path) in caught.value.message
    assert position in caught.value.message


@pytest.mark.parametrize("text", ["word\n", "12\n", "- a\n- b\n"])
def test_a_file_whose_top_level_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="top level must be a mapping"):
        read_config_file(write(tmp_path / "c.yaml", text))


@pytest.mark.parametrize("text", ["~: 1\n", "a: ${\n"])
def test_what_omegaconf_cannot_hold_is_refused_with_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"c\.yaml cannot be read"):
        read_config_file(write(tmp_path / "c.yaml", text))


def test_an_empty_file_is_an_empty_configuration(tmp_path: Path) -> None:
    assert plain(read_config_file(write(tmp_path / "c.yaml", "# nothing\n")).config) == {}


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8: byte 3"):
        read_config_file(path)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config_file(tmp_path)


def test_every_key_has_its_line(tmp_path: Path) -> None:
    text = "a:\n  b: 1\n  c:\n    - d: 2\n    - e\nf: &x\n  g: 1\nh:\n  <<: *x\n  i: 1\n"
    file = read_config_file(write(tmp_path / "c.yaml", text))
    assert set(paths(plain(file.config))) <= set(file.lines)
    assert file.lines[("a", "c", "0", "d")] == 4
    assert file.lines[("h", "g")] == 7
