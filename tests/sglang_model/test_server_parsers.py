"""The engine's own parsers for what `/generate` sampled: what is asked, and that no text is lost to them."""

from __future__ import annotations

import re

import pytest

from nemo_gym.errors import UpstreamContractError, UpstreamStatusError
from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from sglang_model.generation_parser import ParsedGeneration
from sglang_model.server_parsers import ServerParsers, with_opening_tag
from sglang_model.testing import Engine, Misbehaviour
from tests.support.local_tokenizer import engine_with, transport_of
from tests.support.model_servers import no_sleep

TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]
CALL = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'


def client_of(engine: Engine) -> NeMoGymAsyncOpenAI:
    pool = HTTPPool(HTTPClientConfig(max_attempts=2), transport=transport_of(engine), sleep=no_sleep)
    return NeMoGymAsyncOpenAI(base_url="http://engine/v1", api_key="k", http_pool=pool, name="policy")


async def parse(engine: Engine, text: str, **fields: object) -> ParsedGeneration:
    given = {"thinking_open": False, "tools": TOOLS, "tool_choice": "auto", "separate_reasoning": True}
    return await ServerParsers("policy").parse(client_of(engine), text, **{**given, **fields})  # type: ignore[arg-type]


def paths(engine: Engine) -> list[str]:
    return [request.path for request in engine.requests]


async def test_reasoning_is_cut_off_before_calls_are_looked_for():
    engine = engine_with()
    parsed = await parse(engine, f"<think>maybe {CALL}</think>So:\n{CALL}")
    assert parsed.reasoning == f"maybe {CALL}"
    assert parsed.content == "So:"
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["look"]
    assert paths(engine) == ["/server_info", "/separate_reasoning", "/parse_function_call"]


async def test_a_call_has_an_id_of_its_own():
    first, second = (await parse(engine_with(), CALL)).tool_calls + (
        await parse(engine_with(), CALL)
    ).tool_calls
    assert re.fullmatch(r"call_[0-9a-f]{32}", first["id"])
    assert first["id"] != second["id"]
    assert first["function"] == {"name": "look", "arguments": '{"a": 1}'}


async def test_the_parsers_are_asked_by_the_names_that_the_engine_was_started_with():
    engine = engine_with(tool_call_parser="hermes", reasoning_parser="deepseek-r1")
    await parse(engine, "a")
    assert engine.requests[1].body == {"text": "a", "reasoning_parser": "deepseek-r1"}
    assert engine.requests[2].body["tool_call_parser"] == "hermes"
    assert engine.requests[2].body["tools"] == TOOLS


async def test_the_names_are_asked_for_once_per_engine():
    one, other = engine_with(), engine_with()
    parsers = ServerParsers("policy")
    clients = [client_of(one), client_of(other)]
    for client in (*clients, *clients):
        await parsers.parse(
            client, "a", thinking_open=False, tools=None, tool_choice=None, separate_reasoning=False
        )
    assert paths(one) == paths(other) == ["/server_info"]


@pytest.mark.parametrize(
    "fields", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}], ids=["no tools", "empty", "none"]
)
async def test_without_tools_to_call_no_calls_are_looked_for(fields):
    engine = engine_with()
    parsed = await parse(engine, CALL, **fields)
    assert parsed.content == CALL
    assert parsed.tool_calls == ()
    assert "/parse_function_call" not in paths(engine)


async def test_reasoning_that_is_not_to_be_separated_stays():
    engine = engine_with()
    assert (await parse(engine, "<think>a</think>b", separate_reasoning=False)).content == "<think>a</think>b"
    assert "/separate_reasoning" not in paths(engine)


async def test_an_engine_without_parsers_leaves_text_and_is_warned_about_once(caplog):
    engine = engine_with(tool_call_parser=None, reasoning_parser=None)
    parsers, client = ServerParsers("policy"), client_of(engine)
    for _ in range(2):
        parsed = await parsers.parse(
            client,
            f"<think>a</think>{CALL}",
            thinking_open=False,
            tools=TOOLS,
            tool_choice="auto",
            separate_reasoning=True,
        )
    assert parsed.content == f"<think>a</think>{CALL}"
    assert parsed.tool_calls == ()
    assert [
        record.getMessage() for record in caplog.records if "--tool-call-parser" in record.getMessage()
    ] == ["the engine has no --tool-call-parser: with sglang_tool_format: server calls stay text"]


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13", "0.5.23"])
@pytest.mark.parametrize(
    "text", ["Look: <tool_call>\n{broken\n</tool_call> there", CALL.replace("look", "nope"), "<tool_call>\n"]
)
async def test_text_without_a_call_in_it_stays_word_for_word(version, text):
    parsed = await parse(engine_with(version=version), text)
    assert parsed.content == text
    assert parsed.tool_calls == ()


async def test_a_thinking_that_the_prompt_opened_is_closed_by_its_tag():
    parsed = await parse(engine_with(), "so\n</think>\n\nHello.", thinking_open=True)
    assert (parsed.reasoning, parsed.content) == ("so\n", "\n\nHello.")


async def test_a_thinking_that_the_prompt_opened_and_nobody_closed_is_thinking():
    parsed = await parse(engine_with(), f"so {CALL}", thinking_open=True)
    assert (parsed.reasoning, parsed.content, parsed.tool_calls) == (f"so {CALL}", "", ())


@pytest.mark.parametrize(
    ("text", "whole"),
    [("a", "<think>a"), ("<think>a", "<think>a"), ("\n<think>a", "\n<think>a"), ("", "<think>")],
)
def test_the_opening_tag_is_there_once(text, whole):
    assert with_opening_tag(text) == whole


@pytest.mark.parametrize("status", [400, 500])
async def test_a_parser_that_fails_on_what_a_model_wrote_leaves_text(status, caplog):
    failing = Misbehaviour(path="/parse_function_call", status=status, body="Internal Server Error")
    parsed = await parse(engine_with(misbehave=(failing,)), CALL)
    assert parsed.content == CALL
    assert parsed.tool_calls == ()
    assert "stays text" in caplog.text


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_an_engine_that_will_not_parse_is_an_error(status):
    failing = Misbehaviour(path="/parse_function_call", status=status, body={"error": "no"})
    with pytest.raises(UpstreamStatusError):
        await parse(engine_with(misbehave=(failing,)), CALL)


BROKEN: dict[str, tuple[str, object]] = {
    "reasoning that is no text": ("/separate_reasoning", {"reasoning_text": 3, "text": "a"}),
    "text that is none": ("/separate_reasoning", {"reasoning_text": "", "text": ["a"]}),
    "calls that are no list": ("/parse_function_call", {"normal_text": "a", "calls": {"name": "look"}}),
    "a call that is no object": ("/parse_function_call", {"normal_text": "a", "calls": ["look"]}),
    "a call without a name": ("/parse_function_call", {"normal_text": "a", "calls": [{"parameters": "{}"}]}),
    "arguments that are no text": (
        "/parse_function_call",
        {"normal_text": "a", "calls": [{"name": "look", "parameters": {}}]},
    ),
    "other text that is none": (
        "/parse_function_call",
        {"normal_text": 3, "calls": [{"name": "look", "parameters": "{}"}]},
    ),
}


@pytest.mark.parametrize("case", BROKEN)
async def test_an_answer_that_cannot_be_read_is_a_broken_contract(case):
    path, body = BROKEN[case]
    with pytest.raises(UpstreamContractError):
        await parse(engine_with(misbehave=(Misbehaviour(path=path, status=200, body=body),)), CALL)


async def test_nulls_in_an_answer_are_no_text_and_no_calls():
    misbehave = (
        Misbehaviour(path="/separate_reasoning", status=200, body={"reasoning_text": None, "text": "a"}),
        Misbehaviour(path="/parse_function_call", status=200, body={"normal_text": None, "calls": None}),
    )
    assert await parse(engine_with(misbehave=misbehave), "x") == ParsedGeneration(None, "a", (), ())
