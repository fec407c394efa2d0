"""The promise over HTTP with templates of other families: how a turn ends is derived, never assumed to be ChatML.

What stands behind the sampled ids is compared with the template's own rendering of the whole conversation.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from sglang_model.renderer import load_renderer
from sglang_model.splice_types import Rendered, RenderRequest
from sglang_model.testing import Engine, Rule
from sglang_model.testing.template_families import FAMILIES, family
from tests.support.conversations import Agent, Answer, assert_extends
from tests.support.local_tokenizer import engine_with, family_folder, served_by, tokenizer_folder
from tests.support.turns import assistant, user

QUESTIONS = ("first question", "second question", "third question")
REPLIES = ("zebra one", "zebra two", "zebra three")
OPENS_THINKING = {"bars"}
"""Their generation prompt opens a thinking, so the reply closes it."""
NEEDS_VARIABLES = {"inst", "bars"}
"""Their templates use `eos_token`, which the embedded engine's own renderer does not have."""
REFUSED_ON_THE_ENGINE = {"parts": "assistant_not_rendered", "no-end": "turn_end_not_found"}
"""SGLang hands texts on as texts, where one reads lists of parts only; and without a tokenizer here nothing proves
where a turn ends that the other does not end."""
NAMES = [one.name for one in FAMILIES]
CASES = [
    (name, transport, renderer)
    for name in NAMES
    for transport in ("generate", "chat")
    for renderer in ("local", "server")
    if renderer == "local" or name not in {*NEEDS_VARIABLES, *REFUSED_ON_THE_ENGINE}
]


def engine_of(name: str) -> Engine:
    """Samples the replies byte by byte, which no encoder would choose, each with the stop token of the family."""
    folder = family_folder(name)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stops = tuple(tokenizer.token_to_id(token) for token in family(name).facts.stops)
    engine = engine_with(tokenizer_folder=folder, eos_token_ids=stops, reasoning_parser=None)
    stop = tokenizer.token_to_id(family(name).facts.text_stop)
    opening = engine.tokenizer.encode("hm</think>") if name in OPENS_THINKING else []
    for reply in REPLIES:
        ids = (*opening, *engine.tokenizer.encode_bytewise(reply), stop)
        engine.rules.append(Rule(ids=ids, eos=False, times=1))
    return engine


async def three_turns(
    name: str, transport: str, renderer: str, **settings: object
) -> tuple[Engine, list[Answer]]:
    engine = engine_of(name)
    local = {"sglang_tokenizer": str(family_folder(name))} if renderer == "local" else {}
    async with served_by(engine, transport, renderer, **local, **settings) as client:
        agent = Agent(client, engine)
        return engine, [await agent.ask(question) for question in QUESTIONS]


def rendered_behind(name: str, reply: str, question: str) -> str:
    """What the template itself writes behind the reply when the question follows."""
    renderer = load_renderer(str(family_folder(name)))
    messages = (user("a"), assistant(reply), user(question))
    shown = renderer.render(RenderRequest(messages, None, {}, add_generation_prompt=True))
    if not isinstance(shown, Rendered) or reply not in shown.text:
        parts = [
            {**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages
        ]
        shown = renderer.render(RenderRequest(tuple(parts), None, {}, add_generation_prompt=True))
    assert isinstance(shown, Rendered)
    return shown.text.split(reply)[1]


def behind_the_end(name: str, tail: str, engine: Engine) -> list[int]:
    """The ids of a tail from the end of the turn on; encoded behind its token, which may take blanks along."""
    end = family(name).facts.text_end
    return (
        engine.tokenizer.encode(tail[tail.index(end) :])[1:] if end in tail else engine.tokenizer.encode(tail)
    )


@pytest.mark.parametrize(("name", "transport", "renderer"), CASES)
async def test_each_prompt_extends_the_one_before_as_the_template_would_write_it(name, transport, renderer):
    engine, turns = await three_turns(name, transport, renderer)
    for turn, following, reply, question in zip(turns, turns[1:], REPLIES, QUESTIONS[1:], strict=False):
        tail = rendered_behind(name, reply, question)
        assert assert_extends(turn, following) == behind_the_end(name, tail, engine)


@pytest.mark.parametrize("name", NAMES)
async def test_the_stop_token_of_each_family_leaves_the_text_and_not_the_ids(name):
    engine, turns = await three_turns(name, "generate", "local")
    thought = "<think>hm</think>" if name in OPENS_THINKING else ""
    assert [turn.message["content"] for turn in turns] == [f"{thought}{reply}" for reply in REPLIES]
    stop = family(name).facts.text_stop
    assert all(engine.tokenizer.decode(turn.generation[-1:]) == stop for turn in turns)


@pytest.mark.parametrize("transport", ["generate", "chat"])
@pytest.mark.parametrize(("name", "reason"), REFUSED_ON_THE_ENGINE.items())
async def test_what_the_engines_rendering_cannot_prove_starts_new_segments_and_says_why(
    name, reason, transport
):
    _, turns = await three_turns(name, transport, "server")
    assert [turn.history for turn in turns[1:]] == [("rerendered", reason)] * 2


@pytest.mark.parametrize("transport", ["generate", "chat"])
@pytest.mark.parametrize("name", NAMES)
async def test_an_answer_cut_by_the_budget_is_closed_as_the_family_closes_it(name, transport):
    engine = engine_of(name)
    cut = engine.rules.pop(0)
    assert cut.ids is not None
    engine.rules.insert(0, Rule(ids=cut.ids[:-1], eos=False, times=1))
    async with served_by(engine, transport, sglang_tokenizer=str(family_folder(name))) as client:
        agent = Agent(client, engine)
        first = await agent.ask(QUESTIONS[0], max_tokens=len(cut.ids) - 1)
        second = await agent.ask(QUESTIONS[1])
    assert first.choice["finish_reason"] == "length"
    tail = rendered_behind(name, REPLIES[0], QUESTIONS[1])
    assert assert_extends(first, second) == engine.tokenizer.encode(tail)


@pytest.mark.parametrize("transport", ["generate", "chat"])
async def test_sampled_text_that_begins_like_the_close_is_text(transport):
    """This family's close begins with a newline; one that was sampled is the answer's own."""
    engine = engine_of("extra-ids")
    ids = (*engine.tokenizer.encode_bytewise(REPLIES[0]), *engine.tokenizer.encode("\n"))
    engine.rules.insert(0, Rule(ids=ids, eos=False, times=1))
    async with served_by(engine, transport, sglang_tokenizer=str(family_folder("extra-ids"))) as client:
        agent = Agent(client, engine)
        first = await agent.ask(QUESTIONS[0], max_tokens=len(ids))
        second = await agent.ask(QUESTIONS[1])
    assert assert_extends(first, second) == engine.tokenizer.encode(
        rendered_behind("extra-ids", REPLIES[0], QUESTIONS[1])
    )


async def test_a_chatml_suffix_on_another_family_is_refused_at_the_start():
    """W5: it was written into every prompt."""
    with pytest.raises(ValueError, match="sglang_turn_suffix"):
        await three_turns("header-ids", "generate", "local", sglang_turn_suffix="<|im_end|>\n")


NUMBERED = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {{ messages | length + 1 }}\n{% endif %}"
)


async def test_a_template_that_numbers_its_messages_is_rendered_from_all_of_them():
    """The end of the conversation alone would give every message the same low number."""
    engine = engine_with(Rule(reply="Hello there!"), reasoning_parser=None, tool_call_parser=None)
    async with served_by(engine, sglang_tokenizer=str(tokenizer_folder(NUMBERED))) as client:
        agent = Agent(client, engine)
        turns = [await agent.ask(f"question {number}") for number in range(8)]
    for number, (before, after) in enumerate(pairwise(turns)):
        behind = engine.tokenizer.decode(assert_extends(before, after))
        assert f"<|im_start|>user {2 * number + 3}\n" in behind
        assert behind.endswith(f"<|im_start|>assistant {2 * number + 4}\n")
