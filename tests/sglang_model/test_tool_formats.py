"""One contract for all tool-call formats.

1. A call is read back as it was written: name, arguments, their JSON types, whatever the strings hold.
2. Calls keep their order, and the text around them stays.
3. Nothing vanishes: the segments of a text, joined, are the text; what is no call stays in the content.
4. A generation that was cut inside a call yields no call.
5. A block that is no call does not take its neighbours with it.
6. What a model wrote never raises, and arguments are always the strict JSON of an object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nemo_gym.errors import ConfigError
from sglang_model.argument_types import DeclaredTools
from sglang_model.config import SGLangModelConfig
from sglang_model.tool_formats import TOOL_FORMATS, tool_format
from sglang_model.tool_formats.segments import ParseStatus
from sglang_model.tool_parsers import ParsedToolCalls, parse_tool_calls
from tests.support.rendered_calls import ARGUMENTS, DIALECTS, SOUP, TAGS, Call, Dialect, as_markup, tool

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.label)
each_format = pytest.mark.parametrize(
    "format_name", sorted({row.parse: name for name, row in TOOL_FORMATS.items()}.values())
)

ARGS: Mapping[str, object] = {"city": "Paris", "days": 3, "tags": ["a", ["b"]]}
TOOLS = [tool("get_weather", ARGS), tool("ls")]


def parse(text: str, dialect: Dialect, *, finished: bool = True, parallel: bool = True) -> ParsedToolCalls:
    return parse_tool_calls(
        text, format_name=dialect.format_name, tools=TOOLS, finished=finished, parallel_tool_calls=parallel
    )


def strict_loads(text: str) -> object:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is not JSON")

    text.encode()
    return json.loads(text, parse_constant=refuse)


def calls_of(parsed: ParsedToolCalls) -> list[Call]:
    calls: list[Call] = []
    for call in parsed.tool_calls:
        assert set(call) == {"id", "type", "function"}
        assert call["type"] == "function"
        arguments = strict_loads(call["function"]["arguments"])
        assert isinstance(arguments, dict)
        calls.append((call["function"]["name"], arguments))
    return calls


def statuses(parsed: ParsedToolCalls) -> list[ParseStatus]:
    return [attempt.status for attempt in parsed.report]


@each_dialect
def test_a_call_is_taken_out_of_the_text_and_reported(dialect: Dialect) -> None:
    text = dialect.render("get_weather", ARGS)
    parsed = parse(text, dialect)
    assert calls_of(parsed) == [("get_weather", ARGS)]
    assert parsed.content == ""
    [attempt] = parsed.report
    assert (attempt.status, attempt.raw, attempt.name) == (ParseStatus.OK, text, "get_weather")
    assert attempt.call_id == parsed.tool_calls[0]["id"]


@each_dialect
def test_a_call_without_arguments_has_an_empty_object(dialect: Dialect) -> None:
    assert calls_of(parse(dialect.render("ls", {}), dialect)) == [("ls", {})]


@each_dialect
def test_several_calls_keep_their_order_and_the_text_around_them(dialect: Dialect) -> None:
    calls: list[Call] = [("ls", {}), ("get_weather", ARGS), ("get_weather", {"city": "Nice"}), ("ls", {})]
    text = f"First.\n{dialect.render_all(calls[:2])} and then {dialect.render_all(calls[2:])}\nDone.\n"
    parsed = parse(text, dialect)
    assert calls_of(parsed) == calls
    assert [part.strip() for part in parsed.content.split("and then")] == ["First.", "Done."]
    assert parsed.content == parsed.content.strip()
    assert statuses(parsed) == [ParseStatus.OK] * 4
    assert len({call["id"] for call in parsed.tool_calls}) == 4


@each_dialect
def test_only_whitespace_between_calls_is_no_content(dialect: Dialect) -> None:
    text = "\n\n" + dialect.render_all([("ls", {}), ("ls", {})], between="\n") + "\n"
    assert parse(text, dialect).content == ""


@each_format
def test_a_text_without_calls_is_handed_on_verbatim(format_name: str) -> None:
    text = "\n\n 3 < 4 > 2 & {x: [1, 2]} \n"
    parsed = parse_tool_calls(text, format_name=format_name, tools=TOOLS)
    assert (parsed.tool_calls, parsed.content, parsed.report) == ((), text, ())


@each_dialect
def test_a_call_to_no_tool_of_the_request_is_kept_and_reported(dialect: Dialect) -> None:
    parsed = parse(dialect.render("nope", {"a": "b"}), dialect)
    assert calls_of(parsed) == [("nope", {"a": "b"})]
    assert statuses(parsed) == [ParseStatus.UNKNOWN_TOOL]
    assert parsed.report[0].call_id == parsed.tool_calls[0]["id"]


@each_dialect
@pytest.mark.parametrize(("tools", "status"), [(None, ParseStatus.OK), ([], ParseStatus.UNKNOWN_TOOL)])
def test_without_a_list_of_tools_no_tool_is_unknown(
    dialect: Dialect, tools: list[object] | None, status: ParseStatus
) -> None:
    text = dialect.render("anything", {"a": "b"})
    parsed = parse_tool_calls(text, format_name=dialect.format_name, tools=tools)
    assert calls_of(parsed) == [("anything", {"a": "b"})]
    assert statuses(parsed) == [status]


@each_dialect
def test_parallel_calls_that_were_not_asked_for_are_kept_and_reported(dialect: Dialect) -> None:
    text = dialect.render_all([("ls", {}), ("ls", {}), ("nope", {})])
    parsed = parse(text, dialect, parallel=False)
    assert [name for name, _ in calls_of(parsed)] == ["ls", "ls", "nope"]
    assert statuses(parsed) == [ParseStatus.OK, ParseStatus.SECOND_CALL, ParseStatus.UNKNOWN_TOOL]


@each_dialect
def test_a_block_that_cannot_be_read_stays_in_the_content_and_its_neighbours_are_read(
    dialect: Dialect,
) -> None:
    text = f"{dialect.render('ls', {})}\n{dialect.broken}\n{dialect.render('get_weather', ARGS)}"
    parsed = parse(text, dialect)
    assert calls_of(parsed) == [("ls", {}), ("get_weather", ARGS)]
    assert parsed.content.strip() == dialect.broken
    assert parsed.report[1].raw.strip() == dialect.broken
    assert parsed.report[1].status in (ParseStatus.INVALID_JSON, ParseStatus.INVALID_MARKUP)
    assert parsed.report[1].call_id is None


@each_dialect
def test_a_block_alone_that_cannot_be_read_is_the_content(dialect: Dialect) -> None:
    text = f" {dialect.broken} \n"
    parsed = parse(text, dialect)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    assert len(parsed.report) == 1


@each_dialect
def test_a_call_without_a_name_stays_in_the_content(dialect: Dialect) -> None:
    parsed = parse(dialect.nameless, dialect)
    assert (parsed.tool_calls, parsed.content) == ((), dialect.nameless)
    assert statuses(parsed) == [ParseStatus.MISSING_NAME]


@each_dialect
def test_a_call_cut_by_the_token_budget_anywhere_is_never_executed(dialect: Dialect) -> None:
    before, call = f"Go. {dialect.render('ls', {})} ", dialect.render("get_weather", ARGS)
    for length in range(len(call)):
        text = before + call[:length]
        parsed = parse(text, dialect, finished=False)
        assert calls_of(parsed) == [("ls", {})], text
        assert parsed.content.rstrip().endswith(call[:length].rstrip()), text
    assert statuses(parsed) == [ParseStatus.OK, ParseStatus.UNCLOSED_BLOCK]
    assert len(calls_of(parse(before + call, dialect, finished=False))) == 2


@each_dialect
def test_calls_that_a_cut_argument_quotes_are_never_executed(dialect: Dialect) -> None:
    quoted = f"Write it like this:\n{dialect.render('ls', {})}\nand so on"
    call = dialect.render("get_weather", {"city": quoted})
    end = call.index("and so on")
    parsed = parse(call[:end], dialect, finished=False)
    assert (parsed.tool_calls, parsed.content) == ((), call[:end])


@each_dialect
def test_a_call_after_a_torso_counts_only_if_the_model_went_on_to_its_end(dialect: Dialect) -> None:
    call = dialect.render("get_weather", {"city": "Paris"})
    text = f"{call[: call.index('ris')]}\n{dialect.render('ls', {})}"
    finished, cut = parse(text, dialect), parse(text, dialect, finished=False)
    assert calls_of(finished) == [("ls", {})]
    assert finished.content.startswith(call[: call.index("ris")])
    assert (cut.tool_calls, cut.content) == ((), text)
    assert statuses(cut) == [ParseStatus.UNCLOSED_BLOCK]


@each_dialect
def test_an_argument_that_holds_a_whole_call_is_a_string(dialect: Dialect) -> None:
    arguments = {"city": f"before {dialect.render('ls', {'x': 'y'})} after"}
    parsed = parse(dialect.render("get_weather", arguments), dialect)
    assert calls_of(parsed) == [("get_weather", arguments)]
    assert parsed.content == ""


@pytest.mark.parametrize(
    ("dialect", "closing"),
    [
        (dialect, dialect.render("ls", {}).rpartition("<")[2])
        for dialect in DIALECTS
        if dialect.broken[-1] == ">"
    ],
    ids=lambda value: value.label if isinstance(value, Dialect) else "",
)
def test_a_finished_call_may_lack_its_last_tag(dialect: Dialect, closing: str) -> None:
    text = dialect.render("get_weather", ARGS).removesuffix(f"<{closing}")
    for name_and_text in (text, text.rstrip()):
        parsed = parse(name_and_text, dialect)
        assert calls_of(parsed) == [("get_weather", ARGS)]
        assert [(entry.status, entry.repaired) for entry in parsed.report] == [(ParseStatus.OK, True)]
        assert parse(name_and_text, dialect, finished=False).tool_calls == ()
    followed = parse(f"{text}{dialect.render('ls', {})}", dialect)
    assert calls_of(followed) == [("get_weather", ARGS), ("ls", {})]


PROSE = st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="<[{"))


@each_dialect
@given(arguments=ARGUMENTS, before=PROSE, after=PROSE)
@settings(max_examples=60)
def test_any_json_arguments_come_back_as_written(
    dialect: Dialect, arguments: dict[str, object], before: str, after: str
) -> None:
    assume(not any(tag in as_markup(value) for value in arguments.values() for tag in TAGS))
    text = f"{before}{dialect.render('f', arguments)}{after}"
    parsed = parse_tool_calls(text, format_name=dialect.format_name, tools=[tool("f", arguments)])
    assert calls_of(parsed) == [("f", arguments)]
    assert statuses(parsed) == [ParseStatus.OK]


@each_format
@given(text=SOUP, finished=st.booleans())
@settings(max_examples=300)
def test_no_text_raises_and_every_character_is_accounted_for(
    format_name: str, text: str, finished: bool
) -> None:
    segments = TOOL_FORMATS[format_name].parse(text, DeclaredTools(TOOLS), finished=finished)
    assert "".join(segment.raw for segment in segments) == text
    assert all(segment.raw and bool(segment.calls) == (segment.status == "ok") for segment in segments)
    parsed = parse_tool_calls(text, format_name=format_name, tools=TOOLS, finished=finished)
    kept = "".join(segment.raw for segment in segments if not segment.calls)
    assert parsed.content == kept if not parsed.tool_calls else parsed.content.strip() == kept.strip()
    assert len(calls_of(parsed)) == sum(len(segment.calls) for segment in segments)


@each_format
@given(text=SOUP, finished=st.booleans())
def test_a_failed_block_stays_in_the_content_to_the_last_space(
    format_name: str, text: str, finished: bool
) -> None:
    parsed = parse_tool_calls(text, format_name=format_name, finished=finished)
    position = 0
    for attempt in parsed.report:
        if attempt.call_id is None:
            found = parsed.content.find(attempt.raw, position)
            assert found >= position
            position = found + len(attempt.raw)


LOOPS = (
    "<tool_call><function=f><parameter=a>",
    "<function=f>\n<parameter=a>\n",
    "<function=undeclared>\n<parameter=a{n}>\n",
    "<tool_call>f<arg_key>a</arg_key><arg_value>",
    '<tool_call>{"name": "f", "arguments": {"a": "',
    '<|python_tag|>{"name": "',
    '[TOOL_CALLS] [{"name": ',
    "<tool_call>[[",
)


def python_calls(function: Callable[[], object]) -> int:
    """How many Python functions are called while this one runs: work, counted and not timed."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@each_format
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("closings", [0, 1], ids=["open", "closed"])
@pytest.mark.parametrize("unit", LOOPS)
def test_a_model_stuck_in_a_loop_costs_linear_work(
    format_name: str, finished: bool, closings: int, unit: str
) -> None:
    def parse_loop(length: int) -> None:
        opened = "".join(unit.replace("{n}", str(number)) for number in range(length))
        text = opened + "</tool_call>" * (1 + closings * length)
        parsed = parse_tool_calls(text, format_name=format_name, tools=[tool("f", ARGS)], finished=finished)
        assert (parsed.tool_calls, parsed.content) == ((), text)

    assert python_calls(lambda: parse_loop(800)) < 3 * python_calls(lambda: parse_loop(400))


def test_deeply_nested_json_is_refused_rather_than_left_to_the_stack() -> None:
    for depth in (101, 100_000):
        text = f'<tool_call>{{"name": "ls", "arguments": {{"a": {"[" * depth}{"]" * depth}}}}}</tool_call>'
        parsed = parse_tool_calls(text, format_name="hermes")
        assert (parsed.tool_calls, parsed.content) == ((), text)
        assert statuses(parsed) == [ParseStatus.INVALID_JSON]
    brackets = {"a": "[" * 500, "b": [["x"]]}
    text = json.dumps({"name": "ls", "arguments": brackets})
    assert calls_of(parse_tool_calls(f"<tool_call>{text}</tool_call>", format_name="hermes")) == [
        ("ls", brackets)
    ]


def test_an_unknown_format_is_a_configuration_error_that_lists_the_choices() -> None:
    with pytest.raises(
        ConfigError, match=r"sglang_tool_format is 'hermse'; expected one of glm45, .*hermes"
    ) as caught:
        tool_format("hermse")
    assert caught.value.param == "sglang_tool_format"


def test_every_format_has_a_way_of_writing_calls_to_be_tried_on() -> None:
    """Without a dialect in `tests/support/rendered_calls.py` the contract above would pass over it."""
    tried = {TOOL_FORMATS[dialect.format_name].parse for dialect in DIALECTS}
    assert {row.parse for row in TOOL_FORMATS.values()} == tried


def test_the_setting_names_every_format() -> None:
    named = SGLangModelConfig.model_fields["sglang_tool_format"].description or ""
    unnamed = {row.parse for row in TOOL_FORMATS.values()} - {
        row.parse for name, row in TOOL_FORMATS.items() if f"`{name}`" in named
    }
    assert unnamed == set()
