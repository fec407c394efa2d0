"""The same sampled ids show an agent the same answer on both transports."""

from __future__ import annotations

import pytest

from sglang_model.testing import Rule
from tests.support.engine_client import WEATHER
from tests.support.local_tokenizer import engine_with, post
from tests.support.replies import REPLIES, THOUGHT

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


async def shown(reply: str, transport: str, **fields: object) -> tuple[object, ...]:
    engine = engine_with(Rule(reply=reply), reasoning_parser="qwen3")
    response = await post(engine, asking(**fields), transport=transport)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    calls = [call["function"] for call in choice["message"].get("tool_calls") or []]
    return choice["finish_reason"], choice["message"]["content"], calls


@pytest.mark.parametrize("tools", [[WEATHER], None], ids=["tools", "no tools"])
@pytest.mark.parametrize("thought", [THOUGHT, ""], ids=["thinking", "no thinking"])
@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
async def test_the_same_ids_show_the_same_answer_on_both_transports(reply, thought, tools):
    """Without thinking the request says so: else the qwen3 parser takes all text without tags for thinking."""
    fields: dict[str, object] = {} if thought else {"chat_template_kwargs": {"enable_thinking": False}}
    if tools:
        fields["tools"] = tools
    over_chat = await shown(thought + reply, "chat", **fields)
    assert await shown(thought + reply, "generate", **fields) == over_chat
