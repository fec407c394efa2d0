from __future__ import annotations

from collections.abc import Iterator

import pytest

from sglang_model.json_size import exceeds
from sglang_model.testing import Rule
from tests.support.local_tokenizer import engine_with, tokenizer_folder, transport_of
from tests.support.model_servers import agent, make_sglang


def test_all_values_count_together_up_to_the_limit() -> None:
    assert not exceeds(["a" * 6, None, [], {"b": 1}], 6 + len('{"b":1}'))
    assert exceeds(["a" * 6, None, [], {"b": 1}], 5 + len('{"b":1}'))


def test_no_more_values_are_looked_at_than_it_takes() -> None:
    def values() -> Iterator[object]:
        yield "long"
        raise AssertionError("looked on")

    assert exceeds(values(), 3)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("unwritable", [nested(300), ["\ud83d"], [object()]])
def test_what_json_cannot_hold_is_too_large(unwritable: object) -> None:
    assert exceeds([unwritable], 10**9)


@pytest.mark.parametrize(("transport", "status"), [("chat", 400), ("generate", 200)])
async def test_a_deep_value_in_a_call_is_no_internal_error(transport: str, status: int) -> None:
    """To be sent to the engine it is too deep, and the caller is told so; a template may leave it out."""
    server = make_sglang(
        transport_of(engine_with(Rule(reply="ok"))),
        transport=transport,
        context_length=4096 if transport == "generate" else None,
        sglang_splice_history=True,
        sglang_tokenizer=str(tokenizer_folder()),
    )
    deep = '{"a":' * 300 + "1" + "}" * 300
    call = f'{{"id":"c","type":"function","function":{{"name":"f","arguments":"{{}}","x":{deep}}}}}'
    body = f"""{{"messages":[{{"role":"user","content":"a"}},
        {{"role":"assistant","content":"b","tool_calls":[{call}]}},{{"role":"user","content":"c"}}]}}"""
    async with agent(server) as client:
        response = await client.post("/v1/chat/completions", content=body.encode())
    assert response.status_code == status, response.text
    assert status == 200 or "nesting depth" in response.json()["error"]["message"]
