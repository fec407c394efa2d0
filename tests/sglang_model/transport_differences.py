"""Replies that a model may sample, and where the two transports show an agent something else for the same ids.

Data, held by test_transport_differences.py against the embedded engine (SGLang 0.5.13 with its qwen25 and qwen3
parsers) and `sglang_tool_format: hermes`. The sampled ids are the same in every case; only what is shown differs.
`as_markdown` makes the table of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OSLO = CALL.replace("Paris", "Oslo")
BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": \n</tool_call>'
THOUGHT = "<think>\nneed it\n</think>\n\n"
NO_THINKING: Mapping[str, object] = {"chat_template_kwargs": {"enable_thinking": False}}
"""Without it SGLang's qwen3 parser takes a reply without tags for reasoning."""


@dataclass(frozen=True)
class Reply:
    """What is sampled; `cut_behind` names the text behind which the budget ends it."""

    text: str
    fields: Mapping[str, object] = field(default_factory=lambda: NO_THINKING)
    tools: bool = True
    cut_behind: str | None = None


@dataclass(frozen=True)
class Shown:
    """What an agent sees of a turn: reasoning in think tags, calls as (name, arguments)."""

    content: str | None
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = "stop"


@dataclass(frozen=True)
class Difference:
    reply: Reply
    chat: Shown
    generate: Shown
    reason: str


THINKS: Mapping[str, object] = {}

ALIKE: dict[str, Reply] = {
    "text": Reply("Hello there!"),
    "text without tools": Reply("Hello there!", tools=False),
    "unicode": Reply("Grüße, 世界! 🚀"),
    "white space at both ends": Reply("\n  Hello there! \n\n"),
    "nothing": Reply(""),
    "thinking and an answer": Reply(f"{THOUGHT}Hello.", THINKS),
    "thinking and a call": Reply(THOUGHT + CALL, THINKS),
    "thinking, text and a call": Reply(f"{THOUGHT}Let me see.\n{CALL}", THINKS),
    "empty thinking": Reply("<think>\n\n</think>\n\nHello.", THINKS),
    "nothing but thinking": Reply("<think>\nhm\n</think>", THINKS),
    "thinking that is never closed": Reply("<think>\nhm, hm", THINKS),
    "thinking cut by the budget": Reply("<think>\none two three", THINKS, cut_behind="one two"),
    "a call inside unclosed thinking": Reply(f"<think>\nmaybe {CALL}", THINKS),
    "a call": Reply(CALL),
    "text and a call": Reply(f"Let me see.\n{CALL}"),
    "parallel calls": Reply(f"{CALL}\n{OSLO}"),
    "a call with unicode": Reply(CALL.replace("Paris", "Zürich 🚀")),
    "a call with nested arguments": Reply(CALL.replace('"Paris"', '{"a": [1, {"b": "}"}]}')),
    "a call without arguments": Reply('<tool_call>\n{"name": "get_weather"}\n</tool_call>'),
    "a broken call": Reply(f"Let me see.\n{BROKEN}"),
    "a call cut by the budget": Reply(CALL, cut_behind='"city"'),
    "text cut by the budget": Reply("one two three four", cut_behind="one two"),
    "a call cut behind its end": Reply(f"{CALL}\nand more", cut_behind="</tool_call>"),
    "markup without tools": Reply(CALL, tools=False),
    "tool_choice none": Reply(CALL, {**NO_THINKING, "tool_choice": "none"}),
    "a stop string": Reply("one Observation: two", {**NO_THINKING, "stop": ["Observation:"]}),
    "a stop string that stays": Reply(
        "one Observation: two", {**NO_THINKING, "stop": ["Observation:"], "no_stop_trim": True}
    ),
    "a stop string inside thinking": Reply("<think>\none STOP two", {"stop": ["STOP"]}),
    "a stop token": Reply("one two three", {**NO_THINKING, "stop_token_ids": [605]}),
    "a list of calls in one block": Reply(
        '<tool_call>\n[{"name": "get_weather", "arguments": {}}]\n</tool_call>'
    ),
    "a call without a name": Reply('<tool_call>\n{"arguments": {}}\n</tool_call>'),
    "a call with its closing tag in an argument": Reply(CALL.replace("Paris", "</tool_call>")),
    "a call with a line break in an argument": Reply(CALL.replace("Paris", "a\nb")),
    "a call inside thinking": Reply(f"<think>{CALL}</think>No.", THINKS),
    "two thinking blocks": Reply("<think>a</think>b<think>c</think>d", THINKS),
    "text without an end": Reply("one two", {**NO_THINKING, "ignore_eos": True, "max_tokens": 12}),
    "control tokens in the text": Reply("see <|im_start|> there", tools=False),
    "control tokens beside tools": Reply("see <|im_start|> there"),
}

WEATHER = ("get_weather", '{"city": "Paris"}')
OSLO_WEATHER = ("get_weather", '{"city": "Oslo"}')
LENIENT = "the engine's parser executes it; what cannot be a call of a function with named arguments is not one here"
TEXT_KEPT = (
    "the engine's parser drops all text from the first call on; nothing that was sampled is dropped here"
)

DIFFERENT: dict[str, Difference] = {
    "no thinking tags, thinking on": Difference(
        Reply("Hello there!", THINKS),
        Shown("<think>Hello there!</think>"),
        Shown("Hello there!"),
        "SGLang's qwen3 parser takes it for reasoning unless enable_thinking is false; here the prompt's end decides",
    ),
    "only a closing thinking tag, thinking on": Difference(
        Reply("a</think>b", THINKS),
        Shown("<think>a</think>b"),
        Shown("a</think>b"),
        "as above: the prompt did not open a thinking, so nothing was closed; counted as reasoning_not_parsed",
    ),
    "text in front of the thinking": Difference(
        Reply("pre<think>a</think>b", THINKS),
        Shown("<think>pre<think>a</think>b"),
        Shown("pre<think>a</think>b"),
        "the engine's parser takes all in front of the closing tag; here only a thinking that comes first is split off",
    ),
    "blanks in front of the thinking": Difference(
        Reply("\n<think>\nhm\n</think>\n\nHi", THINKS),
        Shown("<think>\n<think>\nhm\n</think>\n\nHi"),
        Shown("<think>\nhm\n</think>\n\nHi"),
        "the engine's parser keeps the model's own opening tag behind blanks as reasoning",
    ),
    "a call in a later thinking block": Difference(
        Reply(f"<think>a</think>b<think>{CALL}</think>d", THINKS),
        Shown("<think>a</think>b<think>", (WEATHER,), "tool_calls"),
        Shown(f"<think>a</think>b<think>{CALL}</think>d"),
        "what is thought is never executed here",
    ),
    "a tool that was not offered": Difference(
        Reply(CALL.replace("get_weather", "nope")),
        Shown(CALL.replace("get_weather", "nope")),
        Shown("", (("nope", '{"city": "Paris"}'),), "tool_calls"),
        "the engine's parser leaves it as text; here the agent gets the call, and can say that there is no such tool",
    ),
    "text between calls": Difference(
        Reply(f"{CALL}\nand\n{OSLO}"),
        Shown("", (WEATHER, OSLO_WEATHER), "tool_calls"),
        Shown("and", (WEATHER, OSLO_WEATHER), "tool_calls"),
        TEXT_KEPT,
    ),
    "text behind a call": Difference(
        Reply(f"{CALL}\nWait."),
        Shown("", (WEATHER,), "tool_calls"),
        Shown("Wait.", (WEATHER,), "tool_calls"),
        TEXT_KEPT,
    ),
    "a broken call in front of a good one": Difference(
        Reply(f"{BROKEN}\n{CALL}"),
        Shown("", (WEATHER,), "tool_calls"),
        Shown(BROKEN, (WEATHER,), "tool_calls"),
        TEXT_KEPT + "; the attempt is reported",
    ),
    "a broken call behind a good one": Difference(
        Reply(f"{CALL}\n{BROKEN}"),
        Shown("", (WEATHER,), "tool_calls"),
        Shown(BROKEN, (WEATHER,), "tool_calls"),
        TEXT_KEPT + "; the attempt is reported",
    ),
    "a call without line breaks": Difference(
        Reply(CALL.replace("\n", "")),
        Shown(CALL.replace("\n", "")),
        Shown("", (WEATHER,), "tool_calls"),
        "the engine's qwen25 parser wants the line breaks, its hermes parser does not",
    ),
    "a call whose end is missing": Difference(
        Reply('<tool_call>\n{"name": "get_weather", "arguments": {}}'),
        Shown('<tool_call>\n{"name": "get_weather", "arguments": {}}'),
        Shown("", (("get_weather", "{}"),), "tool_calls"),
        "a model that stopped by itself has left the tag out, and the JSON is whole",
    ),
    "a call that its own closing tag stopped": Difference(
        Reply(CALL, {**NO_THINKING, "stop": ["</tool_call>"]}),
        Shown(CALL.removesuffix("</tool_call>")),
        Shown("", (WEATHER,), "tool_calls"),
        "the stop string is cut off the text before it is parsed, and the engine's parser wants it",
    ),
    "two calls in one block": Difference(
        Reply('<tool_call>\n{"name": "get_weather"}{"name": "get_weather"}\n</tool_call>'),
        Shown('<tool_call>\n{"name": "get_weather"}{"name": "get_weather"}\n</tool_call>'),
        Shown("", (("get_weather", "{}"), ("get_weather", "{}")), "tool_calls"),
        "both are whole JSON",
    ),
    "arguments as text": Difference(
        Reply(CALL.replace('{"city": "Paris"}', '"{\\"city\\": \\"Paris\\"}"')),
        Shown("", (("get_weather", '"{\\"city\\": \\"Paris\\"}"'),), "tool_calls"),
        Shown("", (WEATHER,), "tool_calls"),
        "the engine's parser encodes the text once more; here arguments are always the JSON of an object",
    ),
    "arguments that are null": Difference(
        Reply(CALL.replace('{"city": "Paris"}', "null")),
        Shown("", (("get_weather", "null"),), "tool_calls"),
        Shown("", (("get_weather", "{}"),), "tool_calls"),
        "here arguments are always the JSON of an object",
    ),
    "arguments that are a list": Difference(
        Reply(CALL.replace('{"city": "Paris"}', "[1]")),
        Shown("", (("get_weather", "[1]"),), "tool_calls"),
        Shown(CALL.replace('{"city": "Paris"}', "[1]")),
        LENIENT,
    ),
    "a number that JSON does not have": Difference(
        Reply(CALL.replace('"Paris"', "1e400")),
        Shown("", (("get_weather", '{"city": Infinity}'),), "tool_calls"),
        Shown(CALL.replace('"Paris"', "1e400")),
        "the engine's parser writes Infinity, which is not JSON",
    ),
    "arguments with other white space": Difference(
        Reply(CALL.replace('": "Paris"', '":"Paris"')),
        Shown("", (WEATHER,), "tool_calls"),
        Shown("", (("get_weather", '{"city":"Paris"}'),), "tool_calls"),
        "the engine's parser writes arguments anew; here they stay as they were sampled",
    ),
    "arguments with escapes": Difference(
        Reply(CALL.replace("Paris", "Z\\u00fcrich")),
        Shown("", (("get_weather", '{"city": "Zürich"}'),), "tool_calls"),
        Shown("", (("get_weather", '{"city": "Z\\u00fcrich"}'),), "tool_calls"),
        "the engine's parser writes arguments anew; here they stay as they were sampled",
    ),
    "a key that comes twice": Difference(
        Reply(CALL.replace('"Paris"', '1, "city": 2')),
        Shown("", (("get_weather", '{"city": 2}'),), "tool_calls"),
        Shown("", (("get_weather", '{"city": 1, "city": 2}'),), "tool_calls"),
        "the engine's parser writes arguments anew; here they stay as they were sampled",
    ),
}


_DROPPED = Shown("")
CHAT_OF_0_5_23: dict[str, Shown] = {
    "a call inside unclosed thinking": Shown("<think>\nmaybe </think>", (WEATHER,), "tool_calls"),
    "a broken call": Shown("Let me see."),
    "a call cut by the budget": Shown("", finish="length"),
    "a call without a name": _DROPPED,
    "a call with a line break in an argument": _DROPPED,
    "a tool that was not offered": _DROPPED,
    "a call whose end is missing": _DROPPED,
    "a call that its own closing tag stopped": _DROPPED,
    "two calls in one block": _DROPPED,
}
"""What chat shows with SGLang 0.5.23: it ends thinking at a call, and drops markup in which it finds none."""


def as_markdown() -> str:
    """The table of the differences."""
    lines = ["| sampled | chat shows | generate shows | why |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {name} | {_cell(difference.chat)} | {_cell(difference.generate)} | {difference.reason} |"
        for name, difference in DIFFERENT.items()
    ]
    return "\n".join([*lines, ""])


def _cell(shown: Shown) -> str:
    parts = [_code(shown.content)] if shown.content else []
    parts += [f"call {_code(f'{name} {arguments}')}" for name, arguments in shown.calls]
    return ", ".join(parts) or "nothing"


def _code(text: str) -> str:
    return "`" + text.replace("\n", "⏎").replace("|", "\\|") + "`"
