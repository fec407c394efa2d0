"""What may take long is not done where every session is served: steps of a turn, watched over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sglang_model import generate_transport
from sglang_model.app import CHARACTERS_ON_THE_LOOP
from sglang_model.generate_transport import TEXT_ON_THE_LOOP
from sglang_model.history import History
from sglang_model.testing import Rule
from tests.support.conversations import Agent
from tests.support.local_tokenizer import engine_with, served_by

Watch = Callable[[object, str], list[bool]]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Watches a function; the list says of each call whether it was made on the event loop's thread."""
    loop = threading.current_thread()

    def watched(owner: object, name: str) -> list[bool]:
        function = getattr(owner, name)
        calls: list[bool] = []

        def noting(*args: object, **kwargs: object) -> object:
            calls.append(threading.current_thread() is loop)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, noting)
        return calls

    return watched


async def test_a_long_conversation_is_digested_in_a_thread(watch: Watch):
    on_the_loop = watch(History, "conversation")
    engine = engine_with(Rule(reply="ok"))
    async with served_by(engine, context_length=10 * CHARACTERS_ON_THE_LOOP) as client:
        await Agent(client, engine).ask("a short question")
        await Agent(client, engine).ask("x " * CHARACTERS_ON_THE_LOOP)
    assert on_the_loop == [True, False]


async def test_a_long_answer_is_parsed_in_a_thread(watch: Watch):
    """A sampler that is stuck opens tool calls until its budget ends: 150 ms for 30,000 tokens."""
    on_the_loop = watch(generate_transport, "parse_generation")
    engine = engine_with(Rule(reply="ok", times=1), Rule(reply="<tool_call> " * TEXT_ON_THE_LOOP))
    async with served_by(engine, context_length=20 * TEXT_ON_THE_LOOP) as client:
        short = await Agent(client, engine).ask("a short one")
        long = await Agent(client, engine).ask("a long one")
    assert short.message["content"] == "ok"
    assert long.message["content"].startswith("<tool_call>")
    assert on_the_loop == [True, False]
