"""What a response says of the kept part of its prompt: how the chat template would have rendered it."""

from __future__ import annotations

import pytest

from sglang_model.testing import Rule
from tests.support.local_tokenizer import engine_with, served_by

PLAIN = "Hello there!"
THINKING = "<think>\nhm\n</think>\n\nHello there!"
NOT_AS_THE_TEMPLATE_WRITES_IT = '<tool_call>\n{"name": "look", "arguments": {"a":1}}\n</tool_call>'
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.mark.parametrize(
    ("first", "note"),
    [(PLAIN, "preserved"), (THINKING, "thinking_stripped"), (NOT_AS_THE_TEMPLATE_WRITES_IT, "rewritten")],
)
async def test_the_third_turn_says_what_the_template_would_have_made_of_the_first(first, note):
    engine = engine_with(*(Rule(reply=reply, times=1) for reply in (first, "Second.", "Third.")))
    async with served_by(engine, "generate", "local") as client:
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        for turn in range(3):
            answer = await client.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
            choice = answer.json()["choices"][0]
            calls = choice["message"].get("tool_calls")
            new = {"role": "user", "content": f"on {turn}"}
            if calls:
                new = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "seen"}
            messages += [choice["message"], new]
        metrics = (await client.get("/metrics")).text
    assert choice["sglang"]["history"] == "spliced"
    assert choice["sglang"]["rendering_of_history"] == note
    assert f'event="history_rendering_{note}"' in metrics


async def test_with_the_engines_renderer_the_note_is_unknown_and_costs_no_call():
    engine = engine_with(Rule(reply=PLAIN))
    async with served_by(engine, "chat", "server") as client:
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        for turn in range(2):
            answer = await client.post("/v1/chat/completions", json={"messages": messages})
            choice = answer.json()["choices"][0]
            messages += [choice["message"], {"role": "user", "content": f"on {turn}"}]
    assert choice["sglang"]["history"] == "spliced"
    assert choice["sglang"]["rendering_of_history"] == "unknown"


async def test_a_conversation_with_an_image_is_rendered_by_the_engine_on_every_turn_and_says_so():
    engine = engine_with(Rule(reply=PLAIN))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    async with served_by(engine, "chat", "server") as client:
        messages: list[dict[str, object]] = [
            {"role": "user", "content": [image, {"type": "text", "text": "go"}]}
        ]
        said = []
        for turn in range(2):
            answer = await client.post("/v1/chat/completions", json={"messages": messages})
            assert answer.status_code == 200, answer.text
            said.append((answer.headers["x-sglang-history"], answer.headers["x-sglang-history-reason"]))
            messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": f"on {turn}"}]
    assert said == [("new", "not_only_text"), ("rerendered", "not_only_text")]
    assert not any("input_ids" in request.body for request in engine.requests if request.body)
