"""Faults of chat templates and of text that is encoded again: our own families, real templates, a real tokenizer.

Real templates run where SGLANG_GYM_TEST_DATA has them, and Qwen3's tokenizer where a set-up of SGLang has left it
(REAL_SGLANG_HOME). What else guards against these faults is in docs/verification.md.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

from sglang_model.message_forms import Message
from sglang_model.splice import full_render_steps, run, splice_steps
from sglang_model.splice_types import (
    EndKind,
    Fragment,
    FullRendering,
    GenerationEnd,
    Refusal,
    RenderRequest,
    SpecialTokens,
    SpliceRequest,
)
from sglang_model.template_probe import probe_template
from sglang_model.template_profile import TemplateProfile
from sglang_model.testing import Engine, EngineSettings, Rule, create_engine_app
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.splice_shapes import TOOLS, call, called, said, system, tool, user
from sglang_model.testing.template_facts import TemplateFacts, facts_of
from sglang_model.testing.template_families import FAMILIES, family
from tests.support.conversations import Agent, assert_extends
from tests.support.family_tokenizer import family_tokenizer
from tests.support.local_tokenizer import SETUPS, served_by

TEST_DATA = os.environ.get("SGLANG_GYM_TEST_DATA")
HOME = Path(os.environ.get("REAL_SGLANG_HOME", "~/.cache/real-sglang")).expanduser()
QWEN3 = HOME / "qwen3/package/models"
needs_data = pytest.mark.skipif(TEST_DATA is None, reason="SGLANG_GYM_TEST_DATA is not set")
needs_qwen3 = pytest.mark.skipif(
    not (QWEN3 / "tokenizer.json").exists(), reason="REAL_SGLANG_HOME has no Qwen3 tokenizer"
)


@cache
def family_folder(name: str) -> Path:
    """A tokenizer folder of a family: its special tokens, its template, its stop tokens."""
    made = family(name)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = family_tokenizer(made)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": made.facts.text_stop,
        "chat_template": made.template,
        **made.facts.variables,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    stops = {"eos_token_id": [tokenizer.token_to_id(stop) for stop in made.facts.stops]}
    (folder / "generation_config.json").write_text(json.dumps(stops), encoding="utf-8")
    return folder


def family_engine(name: str, *replies: str) -> Engine:
    """Samples each reply in ids of single bytes, which no encoder would choose, and the family's stop token."""
    facts = family(name).facts
    backend = family_tokenizer(family(name))
    engine = create_engine_app(
        EngineSettings(
            tokenizer_folder=family_folder(name),
            eos_token_ids=tuple(backend.token_to_id(stop) for stop in facts.stops),
            reasoning_parser=None,
            tool_call_parser=None,
        )
    )
    stop = backend.token_to_id(facts.text_stop)
    engine.rules.extend(
        Rule(ids=(*engine.tokenizer.encode_bytewise(reply), stop), eos=False, times=1) for reply in replies
    )
    return engine


@pytest.mark.parametrize("name", [made.name for made in FAMILIES])
async def test_every_family_of_templates_keeps_the_sampled_ids_over_http(name):
    """W4, W5: alternating roles, no system role, ends that are not ChatML's; all three were silent losses."""
    engine = family_engine(name, "Hello there", "the weather", "ok")
    settings = {"sglang_tokenizer": str(family_folder(name)), "uses_reasoning_parser": False}
    async with served_by(engine, "generate", "local", **settings) as client:
        agent = Agent(client, engine)
        turns = [await agent.ask("say it"), await agent.ask("brimtolka"), await agent.ask("drasnivel")]
    assert len(turns[0].generation) > len("Hello there")
    for before, after, new in zip(turns, turns[1:], ("brimtolka", "drasnivel"), strict=False):
        behind = engine.tokenizer.decode(assert_extends(before, after))
        assert behind.count(new) == 1
        own_rendering = engine.tokenizer.decode(turns[0].prompt)
        generation_prompt = own_rendering.partition("say it")[2]
        assert behind.endswith(generation_prompt)


def qwen3_engine(*ids: tuple[int, ...]) -> Engine:
    settings = EngineSettings(tokenizer_folder=QWEN3, reasoning_parser=None, tool_call_parser=None)
    engine = create_engine_app(settings)
    engine.rules.extend(Rule(ids=one, times=1) for one in ids)
    return engine


NEWLINE, IM_START, IM_END = 198, 151644, 151645


@needs_qwen3
@SETUPS
@pytest.mark.parametrize(
    ("sampled", "encoded"),
    [((NEWLINE, NEWLINE), [271]), ((53122, 316), [393, 30002])],
)
async def test_ids_that_qwen3_would_encode_otherwise_stay_as_sampled(transport, renderer, sampled, encoded):
    """prime-rl#1863, rllm#272, TRL#5224, SkyRL#123, slime#117; verl#6921: exactly one newline behind the end."""
    engine = qwen3_engine(sampled, (1782,))
    settings = {"sglang_tokenizer": str(QWEN3)} if renderer == "local" else {}
    async with served_by(engine, transport, renderer, **settings) as client:
        agent = Agent(client, engine)
        first = await agent.ask("a")
        second = await agent.ask("b")
    assert engine.tokenizer.encode(engine.tokenizer.decode(sampled)) == encoded
    assert first.generation == [*sampled, IM_END]
    assert assert_extends(first, second)[:2] == [NEWLINE, IM_START]


def real_templates() -> list[Path]:
    return sorted((Path(TEST_DATA) / "chat_templates").glob("*.jinja")) if TEST_DATA else []


REAL = pytest.mark.parametrize("path", real_templates(), ids=lambda path: path.stem)


@cache
def real(path: Path) -> tuple[JinjaRenderer, TemplateFacts, TemplateProfile]:
    template = path.read_text(encoding="utf-8")
    facts = facts_of(path.stem, template)
    assert facts is not None
    renderer = JinjaRenderer(template, facts.variables)
    return renderer, facts, probe_template(renderer, SpecialTokens(facts.specials, facts.stops))


def spliced(path: Path, previous: tuple[Message, ...], reply: Message, *new: Message) -> Fragment | Refusal:
    renderer, facts, profile = real(path)
    stop = facts.call_end if reply.get("tool_calls") else facts.text_stop
    request = SpliceRequest(
        previous,
        reply,
        new,
        GenerationEnd(EndKind.STOP_TOKEN, stop),
        SpecialTokens(facts.specials, facts.stops),
        TOOLS,
        forms=profile.forms,
    )
    return run(splice_steps(request), renderer)


def rendered(path: Path, *messages: Message, generation_prompt: bool = True) -> FullRendering | Refusal:
    renderer, _, profile = real(path)
    asked = RenderRequest(messages, TOOLS, {}, generation_prompt)
    return run(full_render_steps(asked, profile.forms), renderer)


QUESTION = user("What is the weather in Oslo?")
CALLED = called(call(1, "get_weather", city="Oslo"))
RESULT = tool(1, "get_weather", "It rains in brimtolka.")


@needs_data
@REAL
def test_what_is_appended_has_no_thought_that_nobody_thought(path):
    """SkyRL#438: the empty thought that a template puts into its last turn got into the tool's message."""
    behind_text = spliced(path, (QUESTION,), said("It rains."), user("And then, brimtolka?"))
    behind_call = spliced(path, (QUESTION,), CALLED, RESULT)
    assert isinstance(behind_text, Fragment)
    # Gemma 3 and the Phi templates show no tool results.
    assert isinstance(behind_call, Fragment) or path.stem.startswith(("gemma3", "phi"))
    for fragment in (behind_text, behind_call):
        if isinstance(fragment, Fragment):
            assert "think>" not in fragment.text.partition("brimtolka")[0]


@needs_data
@REAL
def test_what_is_appended_ends_with_the_templates_generation_prompt(path):
    """verifiers#476: it was missing from the second turn on."""
    new = user("And then, brimtolka?")
    fragment = spliced(path, (QUESTION,), said("It rains."), new)
    whole = rendered(path, QUESTION, said("It rains."), new)
    assert isinstance(fragment, Fragment)
    assert isinstance(whole, FullRendering)
    end = whole.text.rpartition("brimtolka")[2]
    assert fragment.text.rpartition("brimtolka")[2] == end


@needs_data
@REAL
def test_arguments_as_text_and_as_a_mapping_are_one_prompt(path):
    """Qwen3-Coder#444: the template iterates over what a client sends as text."""
    _, _, profile = real(path)
    if not profile.tool_calls:
        pytest.skip("a template without tool calls")
    function = CALLED["tool_calls"][0]["function"]
    arguments = function["arguments"]
    as_mapping = json.loads(arguments) if isinstance(arguments, str) else arguments
    texts = []
    for form in (as_mapping, json.dumps(as_mapping)):
        made = {**CALLED["tool_calls"][0], "function": {**function, "arguments": form}}
        found = rendered(path, QUESTION, {**CALLED, "tool_calls": [made]}, RESULT)
        assert isinstance(found, FullRendering), found
        texts.append(found.text)
    assert texts[0] == texts[1]
    assert "Oslo" in texts[0].rpartition("What is the weather in Oslo?")[2]


@needs_data
def test_results_of_one_turn_stand_in_one_block_of_qwens_templates():
    """slime#2263: each got a block of its own."""
    two = called(call(1, "get_weather", city="Oslo"), call(2, "get_weather", city="Rome"))
    checked = 0
    for path in real_templates():
        if not path.stem.startswith("qwen"):
            continue
        new = (RESULT, tool(2, "get_weather", "It snows in drasnivel."))
        fragment = spliced(path, (QUESTION,), two, *new)
        assert isinstance(fragment, Fragment), path.stem
        assert fragment.text.count("<|im_start|>user") == 1, path.stem
        assert fragment.text.count("<tool_response>") == 2
        whole = rendered(path, QUESTION, two, *new)
        assert isinstance(whole, FullRendering)
        assert whole.text.endswith(fragment.text)
        checked += 1
    assert checked >= 4


@needs_data
def test_a_conversation_without_a_user_is_refused_in_the_templates_words_and_spliced_from_what_was_sampled():
    """vllm#36432, ollama#18303: Qwen3.5's template raises, which was a 500."""
    path = next(path for path in real_templates() if path.stem.startswith("qwen3.5"))
    refused = rendered(path, system("You look up weather."), CALLED, RESULT)
    assert isinstance(refused, Refusal)
    assert "No user query found" in refused.detail
    fragment = spliced(path, (system("s"), QUESTION), CALLED, RESULT)
    assert isinstance(fragment, Fragment)
    assert "brimtolka" in fragment.text


@needs_data
@REAL
def test_a_turn_that_is_nothing_but_reasoning_is_never_left_out_or_doubled(path):
    """NeMo RL#1903: the template drops the turn; its ids stay, and only the new message stands behind them."""
    reply = said("", reasoning_content="It may rain quorvexal.")
    fragment = spliced(path, (QUESTION,), reply, user("And then, brimtolka?"))
    assert isinstance(fragment, Fragment)
    assert fragment.text.count("brimtolka") == 1
    assert "quorvexal" not in fragment.text
