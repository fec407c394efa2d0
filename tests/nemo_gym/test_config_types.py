from __future__ import annotations

import pytest
from pydantic import ValidationError

from nemo_gym.config_types import (
    AgentServerRef,
    BaseRunServerInstanceConfig,
    BaseServerConfig,
    ModelServerRef,
    ResourcesServerRef,
    server_ref,
)


def test_a_server_listens_on_the_loopback_address_unless_told_otherwise() -> None:
    assert BaseServerConfig(port=8000).host == "127.0.0.1"


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="hots"):
        BaseServerConfig.model_validate({"hots": "x", "port": 1})


@pytest.mark.parametrize("settings", [{"port": 0}, {"port": 65536}, {"port": 1, "num_workers": 0}])
def test_ports_and_workers_have_bounds(settings: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        BaseServerConfig.model_validate(settings)


def test_every_setting_has_a_description_for_the_documentation() -> None:
    for config in (BaseRunServerInstanceConfig, ModelServerRef):
        assert all(field.description for field in config.model_fields.values())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("responses_api_models", ModelServerRef),
        ("resources_servers", ResourcesServerRef),
        ("responses_api_agents", AgentServerRef),
    ],
)
def test_a_reference_is_known_by_its_shape(kind: str, expected: type) -> None:
    assert server_ref({"type": kind, "name": "x"}) == expected(type=kind, name="x")


@pytest.mark.parametrize("value", [{"type": "other", "name": "x"}, {"type": "resources_servers"}, "x", None])
def test_other_values_are_no_references(value: object) -> None:
    assert server_ref(value) is None
