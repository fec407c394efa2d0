from __future__ import annotations

import orjson
import pytest
from pydantic import BaseModel, ConfigDict

from nemo_gym.errors import UpstreamContractError
from nemo_gym.json_response import json_bytes


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("kind", [Open, dict])
def test_what_can_be_read_but_not_written_breaks_the_contract(kind: type[Open | dict[str, object]]) -> None:
    assert orjson.loads(json_bytes(kind(field=nested(200)))) == {"field": nested(200)}
    with pytest.raises(UpstreamContractError, match="nesting"):
        json_bytes(kind(field=nested(600)))


def test_a_value_that_is_no_json_stays_a_mistake_of_the_handler() -> None:
    with pytest.raises(TypeError):
        json_bytes(Open(field=object()))
    with pytest.raises(TypeError):
        json_bytes({"field": object()})
