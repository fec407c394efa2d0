"""Fields that a client dumped as null, as openai-style clients do with what they did not set."""

from __future__ import annotations

import pytest

from tests.support.engine_client import WEATHER
from tests.support.local_tokenizer import engine_with, post
from tests.support.turns import user

NULLS = dict.fromkeys(
    (
        *("n", "frequency_penalty", "presence_penalty", "parallel_tool_calls", "min_tokens", "ignore_eos"),
        *("no_stop_trim", "skip_special_tokens", "temperature", "top_p", "stop"),
    )
)


@pytest.mark.parametrize("transport", ["chat", "generate"])
async def test_fields_that_are_null_say_nothing(transport):
    """SGLang's chat refuses most of them (0.5.13, 0.5.23)."""
    body = {"messages": [user("hello")], "tools": [WEATHER], **NULLS}
    response = await post(engine_with(), body, transport=transport)
    assert response.status_code == 200, response.text
