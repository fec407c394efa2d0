from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment
from jinja2.ext import loopcontrols

from nemo_gym.errors import ConfigError
from sglang_model.generation_parser import ParsedGeneration, parse_generation, visible_text
from sglang_model.reasoning_split import REASONING_TAGS, split_reasoning
from sglang_model.tool_formats import TOOL_FORMATS
from tests.support.rendered_calls import DIALECTS, SOUP, Dialect, tool

CHATML = ("<|im_end|>", "<|endoftext|>")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [tool("f", {"a": 1})]


def parse(text: str, **options: object) -> ParsedGeneration:
    return parse_generation(
        text, **{"format_name": "hermes", "tools": TOOLS, "thinking_open": False, **options}
    )  # type: ignore[arg-type]


def names(parsed: ParsedGeneration) -> list[str]:
    return [call["function"]["name"] for call in parsed.tool_calls]


def statuses(parsed: ParsedGeneration) -> list[str]:
    return [attempt.status.value for attempt in parsed.report]


@pytest.mark.parametrize(
    ("decoded", "text"),
    [
        ("Hi", "Hi"),
        ("Hi<|im_end|>", "Hi"),
        ("Hi<|im_end|>\n", "Hi"),
        ("Hi\n<|im_end|>\n\n<|endoftext|>\n", "Hi\n"),
        ("Hi\n\n", "Hi\n\n"),
        ("Hi\n\n<|im_end|>", "Hi\n\n"),
        ("Hi<|im_end|><|im_end|>", "Hi"),
        ("<|im_end|>", ""),
        ("", ""),
        ("Say <|im_end|> twice", "Say <|im_end|> twice"),
        ("  Hi \t<|im_end|>", "  Hi \t"),
    ],
)
def test_end_markers_and_the_newlines_behind_them_are_not_shown(decoded: str, text: str) -> None:
    assert visible_text(decoded, CHATML) == text


@pytest.mark.parametrize(
    ("decoded", "matched", "text"),
    [
        ("one STOP", "STOP", "one "),
        ("one STOP. Tw", "STOP", "one "),
        ("one\n\n", "\n", "one"),
        ("xaaa", "aa", "x"),
        ("let STOP pass STOP", "STOP", "let STOP pass "),
        ("one", "STOP", "one"),
        ("one<|im_end|>", 151645, "one"),
        ("one<|im_end|>", None, "one"),
        ("one", "", "one"),
        ("STOP", "STOP", ""),
    ],
)
def test_a_matched_stop_string_is_cut_from_the_text(
    decoded: str, matched: str | int | None, text: str
) -> None:
    assert visible_text(decoded, CHATML, matched) == text


def test_without_markers_the_text_stays_as_it_is() -> None:
    assert visible_text("a<|im_end|>\n", ()) == "a<|im_end|>\n"
    assert visible_text("a\n", ("",)) == "a\n"


def test_a_call_whose_closing_tag_was_the_stop_string_is_a_call() -> None:
    text = visible_text(CALL, CHATML, "</tool_call>")
    parsed = parse(text)
    assert (names(parsed), parsed.content) == (["f"], "")
    assert parsed.report[0].repaired


def test_reasoning_content_and_calls_are_told_apart() -> None:
    parsed = parse(f"<think>\nneed it\n</think>\n\nLooking.\n{CALL}")
    assert (parsed.reasoning, parsed.content) == ("\nneed it\n", "Looking.")
    assert parsed.tool_calls[0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert statuses(parsed) == ["ok"]


def test_an_answer_without_calls_keeps_its_whitespace() -> None:
    assert parse("<think>a</think>\n\nb ").content == "\n\nb "


@pytest.mark.parametrize("finished", [True, False])
def test_nothing_in_an_open_thinking_is_executed(finished: bool) -> None:
    parsed = parse(f"I could {CALL} or", thinking_open=True, finished=finished)
    assert (parsed.reasoning, parsed.content, parsed.tool_calls) == (f"I could {CALL} or", "", ())
    assert statuses(parsed) == ["inside_reasoning"]
    assert parsed.report[0].raw == CALL


def test_a_call_in_closed_thinking_is_reported_and_the_one_after_it_executed() -> None:
    parsed = parse(f"a {CALL} b</think>{CALL}", thinking_open=True)
    assert (parsed.reasoning, parsed.content, names(parsed)) == (f"a {CALL} b", "", ["f"])
    assert statuses(parsed) == ["inside_reasoning", "ok"]


def test_a_call_in_a_second_thinking_block_is_not_executed() -> None:
    second = f"<think>or {CALL} {CALL}</think>"
    parsed = parse(f"<think>a</think>b {second} c {CALL}")
    assert (parsed.reasoning, names(parsed)) == ("a", ["f"])
    assert parsed.content == f"b {second} c"
    assert statuses(parsed) == ["inside_reasoning", "inside_reasoning", "ok"]


def test_a_second_thinking_block_that_was_cut_is_not_executed_either() -> None:
    text = f"b {CALL} <think>or {CALL}"
    parsed = parse(text, finished=False)
    assert (len(parsed.tool_calls), parsed.content) == (1, f"b  <think>or {CALL}")
    assert statuses(parsed) == ["ok", "inside_reasoning"]


def test_a_finished_answer_that_mentions_the_tag_may_call_tools() -> None:
    assert names(parse(f"The <think> tag opens it. {CALL}")) == ["f"]


def test_thinking_tags_inside_an_argument_are_the_argument() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": "<think>"}}</tool_call>'
    parsed = parse(f"{call}{CALL} </think>")
    assert names(parsed) == ["f", "f"]
    assert json.loads(parsed.tool_calls[0]["function"]["arguments"]) == {"a": "<think>"}
    assert parsed.content == "</think>"


def test_with_tool_choice_none_nothing_is_parsed() -> None:
    parsed = parse(f"<think>a</think> {CALL}\n", tool_choice="none")
    assert (parsed.reasoning, parsed.content) == ("a", f" {CALL}\n")
    assert (parsed.tool_calls, parsed.report) == ((), ())


@pytest.mark.parametrize(
    "choice", [None, "auto", "required", {"type": "function", "function": {"name": "f"}}]
)
def test_with_any_other_tool_choice_calls_are_parsed(choice: object) -> None:
    assert names(parse(CALL, tool_choice=choice)) == ["f"]


def test_second_call_under_parallel_tool_calls_false_is_kept_and_reported() -> None:
    parsed = parse(CALL + CALL, parallel_tool_calls=False)
    assert names(parsed) == ["f", "f"]
    assert statuses(parsed) == ["ok", "second_call"]
    assert statuses(parse(CALL + CALL, parallel_tool_calls=None)) == ["ok", "ok"]


def test_without_separation_thinking_stays_in_the_content_and_is_still_not_executed() -> None:
    thinking = f"\n<think>maybe {CALL}</think>"
    parsed = parse(f"{thinking}Now {CALL}", separate_reasoning=False)
    assert (parsed.reasoning, parsed.content, names(parsed)) == (None, f"{thinking}Now", ["f"])
    unclosed = parse(f"maybe {CALL}", separate_reasoning=False, thinking_open=True)
    assert (unclosed.reasoning, unclosed.content, unclosed.tool_calls) == (None, f"maybe {CALL}", ())


def test_other_reasoning_tags_are_honoured() -> None:
    tags = REASONING_TAGS["kimi"]
    parsed = parse(f"◁think▷{CALL}◁/think▷<think>b", reasoning_tags=tags)
    assert (parsed.reasoning, parsed.content, parsed.tool_calls) == (CALL, "<think>b", ())


def test_an_unknown_format_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="sglang_tool_format"):
        parse("x", format_name="nope", tool_choice="none")


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.label)
def test_every_format_is_parsed_after_thinking(dialect: Dialect) -> None:
    call = dialect.render("f", {"a": 1})
    parsed = parse(f"a {call}</think>\n\n{call}\n", thinking_open=True, format_name=dialect.format_name)
    assert (parsed.reasoning, parsed.content, names(parsed)) == (f"a {call}", "", ["f"])
    assert statuses(parsed) == ["inside_reasoning", "ok"]
    assert json.loads(parsed.tool_calls[0]["function"]["arguments"]) == {"a": 1}


@pytest.mark.parametrize("format_name", sorted(TOOL_FORMATS))
@given(
    text=SOUP,
    thinking_open=st.none() | st.booleans(),
    finished=st.booleans(),
    separate=st.booleans(),
    calls=st.booleans(),
)
@settings(max_examples=200)
def test_no_text_raises_and_all_of_it_is_reasoning_content_or_a_call(
    format_name: str, text: str, thinking_open: bool | None, finished: bool, separate: bool, calls: bool
) -> None:
    parsed = parse(
        text,
        format_name=format_name,
        thinking_open=thinking_open,
        finished=finished,
        separate_reasoning=separate,
        tool_choice="auto" if calls else "none",
    )
    executed = [attempt for attempt in parsed.report if attempt.call_id is not None]
    assert [attempt.call_id for attempt in executed] == [call["id"] for call in parsed.tool_calls]
    split = split_reasoning(text, thinking_open=thinking_open)
    thinking = "" if separate else f"{split.opening}{split.reasoning or ''}{split.closing}"
    assert parsed.reasoning == (split.reasoning if separate else None)
    assert parsed.content.startswith(thinking)
    content = parsed.content.removeprefix(thinking)
    if not executed:
        assert content == split.content
    raws = {attempt.raw for attempt in executed}
    if len(raws) == len(executed):
        assert letters(content, *raws) == letters(split.content)


def letters(*texts: str) -> Counter[str]:
    return Counter("".join("".join(texts).split()))


DATA = os.environ.get("SGLANG_GYM_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="SGLANG_GYM_TEST_DATA is not set")


def captured_turns(pattern: str) -> Iterator[tuple[str, dict[str, object], dict[str, object], str]]:
    """Version, request, choice and sampled text of captured chat completions."""
    for path in sorted(Path(DATA or "", "sglang", "captures").glob(f"0.5.*/{pattern}.json")):
        capture = json.loads(path.read_bytes())
        [choice] = capture["response"]["body"]["choices"]
        sampled = "".join(entry["token"] for entry in choice["logprobs"]["content"])
        yield path.parent.name, capture["request"]["body"], choice, sampled


@needs_data
def test_calls_reasoning_and_content_are_those_of_sglangs_own_parsers() -> None:
    compared = 0
    for version, request, choice, sampled in captured_turns("chat_tool_c*"):
        if choice["finish_reason"] == "length":
            continue
        message = choice["message"]
        assert isinstance(message, dict)
        parsed = parse(
            visible_text(sampled, CHATML), tools=request["tools"], tool_choice=request.get("tool_choice")
        )
        assert [call["function"] for call in parsed.tool_calls] == [
            call["function"] for call in message.get("tool_calls") or []
        ]
        assert parsed.content == (message["content"] or "")
        expected = message["reasoning_content"]
        assert (
            (parsed.reasoning or "").lstrip() == expected
            if version == "0.5.12"
            else parsed.reasoning == expected
        )
        compared += 1
    assert compared >= 8


@needs_data
def test_what_sglang_drops_is_kept_and_reported() -> None:
    [(_, request, _, malformed)] = [
        turn for turn in captured_turns("chat_tool_malformed") if turn[0] == "0.5.23"
    ]
    parsed = parse(visible_text(malformed, CHATML), tools=request["tools"])
    assert (
        parsed.content
        == '\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"\n</tool_call>'
    )
    assert statuses(parsed) == ["invalid_json"]
    [(_, request, _, unknown)] = [
        turn for turn in captured_turns("chat_tool_unknown_name") if turn[0] == "0.5.23"
    ]
    parsed = parse(visible_text(unknown, CHATML), tools=request["tools"])
    assert (names(parsed), parsed.content) == (["no_such_tool"], "text before  text after")
    assert statuses(parsed) == ["unknown_tool"]


def render(template: str, messages: list[dict[str, object]]) -> str:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])  # noqa: S701
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["strftime_now"] = lambda _: "2025-01-01"
    environment.globals["raise_exception"] = lambda message: pytest.fail(message)
    source = Path(DATA or "", "chat_templates", f"{template}.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        messages=messages,
        tools=[EXAMPLE],
        bos_token="",
        eos_token=END,
    )


ARGUMENTS = {
    "path": "a <b> & 'c'.txt",
    "lines": [1, [2]],
    "text": 'def f():\n    return "你好"\n',
    "count": 3,
}
EXAMPLE = tool("write", ARGUMENTS, description="Writes a file.")
END = "<|end|>"


@needs_data
@pytest.mark.parametrize(
    ("template", "format_name"),
    [
        ("qwen2.5", "hermes"),
        ("qwen3", "hermes"),
        ("hermes-3", "hermes"),
        ("qwen3-coder", "qwen3_coder"),
        ("qwen3.5-4b", "qwen3_coder"),
        ("nemotron-3-nano", "qwen3_coder"),
        ("glm-4.5", "glm45"),
        ("glm-4.7-flash", "glm47"),
        ("llama-3.1", "llama3_json"),
        ("mistral-nemo", "mistral"),
        ("mistral-small-3.2", "mistral"),
        ("devstral-small", "mistral"),
        ("nemotron-nano-v2", "nemotron"),
    ],
)
def test_a_call_as_the_models_own_template_writes_it_is_read_back(template: str, format_name: str) -> None:
    call = {"id": "a1B2c3D4e", "type": "function", "function": {"name": "write", "arguments": ARGUMENTS}}
    user: dict[str, object] = {"role": "user", "content": "Write it."}
    assistant: dict[str, object] = {"role": "assistant", "content": "", "tool_calls": [call]}
    before, whole = render(template, [user]), render(template, [user, assistant])
    common = len(os.path.commonprefix([before, whole]))  # noqa: RUF071
    turn = whole[common:].removeprefix("<|start_header_id|>assistant<|end_header_id|>\n\n")
    markers = (*CHATML, END, "<|eot_id|>", "<|eom_id|>", "<SPECIAL_12>")
    parsed = parse(visible_text(turn, markers), format_name=format_name, tools=[EXAMPLE])
    [parsed_call] = parsed.tool_calls
    assert parsed_call["function"]["name"] == "write"
    assert json.loads(parsed_call["function"]["arguments"]) == ARGUMENTS
    assert statuses(parsed) == ["ok"]


def test_a_generation_of_very_many_end_markers_is_trimmed_in_one_pass() -> None:
    """Hundreds of thousands of them took minutes, on the event loop."""
    assert visible_text("answer" + "<|im_end|>\n" * 500_000, ("<|im_end|>", "<|endoftext|>")) == "answer"
    assert visible_text("\n" * 500_000, ("<|im_end|>",)) == "\n" * 500_000
    assert visible_text("", ("<|im_end|>",)) == ""
