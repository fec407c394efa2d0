from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from nemo_gym.config_directives import apply_directives
from nemo_gym.config_tree import plain
from nemo_gym.errors import ConfigError


def applied(text: str) -> dict[str, object]:
    return plain(apply_directives(OmegaConf.create(text)))  # type: ignore[arg-type]


def test_a_configuration_without_directives_stays_as_it_is() -> None:
    text = "a: {b: '${c}', d: '???', e: [1, {f: null}]}\nc: 1\n"
    assert applied(text) == plain(OmegaConf.create(text))  # type: ignore[arg-type]


def test_inherit_from_moves_a_block() -> None:
    assert applied("a: {b: {x: 1}}\nc: ${inherit_from:a.b}\n") == {"a": {}, "c": {"x": 1}}


def test_copy_leaves_the_block_where_it_was() -> None:
    assert applied("a: {x: 1}\nc: ${copy:a}\n") == {"a": {"x": 1}, "c": {"x": 1}}


def test_several_may_inherit_one_block() -> None:
    assert applied("a: 1\nb: ${inherit_from:a}\nc: ${inherit_from:a}\n") == {"b": 1, "c": 1}


def test_changes_are_merged_over_the_inherited_block() -> None:
    text = "a: {x: {y: 1, z: 2}, l: [1]}\nb: {_copy: a, x: {z: 3}, l: [2]}\nc: {_inherit_from: a, w: 4}\n"
    assert applied(text) == {
        "b": {"x": {"y": 1, "z": 3}, "l": [2]},
        "c": {"x": {"y": 1, "z": 2}, "l": [1], "w": 4},
    }


def test_delete_key_drops_what_was_inherited() -> None:
    assert applied("a: {x: 1, y: '???', z: 3}\nb: {_inherit_from: a, _delete_key: 'y, z'}\n") == {
        "b": {"x": 1}
    }


def test_a_block_may_be_reused_through_another() -> None:
    assert applied("a: {x: 1}\nb: ${copy:a}\nc: ${copy:b}\nl: [{d: '${copy:c}'}]\n")["l"] == [{"d": {"x": 1}}]


def test_what_reuses_an_unset_value_is_unset_itself() -> None:
    assert applied("a: '???'\nb: {_copy: a, x: 1}\nc: ${copy:a}\n") == {"a": "???", "b": "???", "c": "???"}


def test_reusing_what_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"names a\.b, which is not in the configuration"):
        applied("a: {c: 1}\nd: ${copy:a.b}\n")


def test_blocks_that_reuse_each_other_in_a_circle_are_refused() -> None:
    with pytest.raises(ConfigError, match="in a circle: b -> a -> b"):
        applied("a: ${copy:b}\nb: ${copy:a}\n")


def test_a_block_and_what_is_inside_it_may_both_move() -> None:
    assert applied("a: {b: 1}\nc: ${inherit_from:a}\nd: ${inherit_from:a.b}\n") == {"c": {"b": 1}, "d": 1}


def test_the_whole_configuration_cannot_become_a_word() -> None:
    with pytest.raises(ConfigError, match="not a mapping"):
        applied("_copy: a\na: 1\n")


def test_a_member_of_a_list_can_be_copied_but_not_moved() -> None:
    assert applied("a: [1, 2]\nb: ${copy:a.1}\n") == {"a": [1, 2], "b": 2}
    with pytest.raises(ConfigError, match=r"cannot move a\.1 out of a list"):
        applied("a: [1, 2]\nb: ${inherit_from:a.1}\n")


def test_deleting_what_the_block_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="_delete_key names y, which a does not have"):
        applied("a: {x: 1}\nb: {_copy: a, _delete_key: y}\n")
