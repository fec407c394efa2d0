"""The same sampled ids show an agent the same answer on both transports."""

from __future__ import annotations

import pytest

from tests.support.engine_client import WEATHER
from tests.support.local_tokenizer import engine_with, post

TRANSPORTS = pytest.mark.parametrize("transport", ["chat", "generate"])
NULLS = {
    **dict.fromkeys(("n", "frequency_penalty", "presence_penalty", "parallel_tool_calls", "min_tokens")),
    **dict.fromkeys(("ignore_eos", "no_stop_trim", "skip_special_tokens", "temperature", "stop", "top_p")),
}


def asking(**fields: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


@TRANSPORTS
async def test_fields_that_a_client_dumped_as_null_say_nothing(transport):
    response = await post(engine_with(), asking(tools=[WEATHER], **NULLS), transport=transport)
    assert response.status_code == 200, response.text
