"""Tool calls as models of each format write them: small renderers, and what a property test draws from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

Call = tuple[str, Mapping[str, object]]

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True)
ARGUMENTS = st.dictionaries(KEYS, JSON_VALUES, max_size=4)

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def schema_of(value: object) -> dict[str, object]:
    """A schema that the value fits; for None any nullable type but the string, whose null is a word."""
    return {"type": ["integer", "null"]} if value is None else {"type": _TYPES[type(value)]}


def tool(
    name: str, arguments: Mapping[str, object] | None = None, description: str = ""
) -> dict[str, object]:
    properties = {key: schema_of(value) for key, value in (arguments or {}).items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties},
        },
    }


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def as_markup(value: object) -> str:
    return value if isinstance(value, str) else dumps(value)


def render_hermes(name: str, arguments: Mapping[str, object]) -> str:
    return f"<tool_call>\n{dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def render_nemotron(name: str, arguments: Mapping[str, object]) -> str:
    return f"<TOOLCALL>[{dumps({'name': name, 'arguments': arguments})}]</TOOLCALL>"


def render_qwen3_coder(name: str, arguments: Mapping[str, object]) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{as_markup(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def render_bare_function(name: str, arguments: Mapping[str, object]) -> str:
    return render_qwen3_coder(name, arguments).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


def render_glm45(name: str, arguments: Mapping[str, object]) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{as_markup(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def render_glm47(name: str, arguments: Mapping[str, object]) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{as_markup(value)}</arg_value>"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}{pairs}</tool_call>"


def render_llama3(name: str, arguments: Mapping[str, object]) -> str:
    return f"<|python_tag|>{dumps({'name': name, 'parameters': arguments})}"


def render_mistral_array(name: str, arguments: Mapping[str, object]) -> str:
    return f"[TOOL_CALLS] [{dumps({'name': name, 'arguments': arguments})}]"


def render_mistral_args(name: str, arguments: Mapping[str, object]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{dumps(arguments)}"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to write a format: how a call looks, and a block of it that is closed but cannot be read."""

    label: str
    format_name: str
    render: Callable[[str, Mapping[str, object]], str]
    broken: str
    nameless: str

    def render_all(self, calls: Sequence[Call], between: str = "\n") -> str:
        return between.join(self.render(name, arguments) for name, arguments in calls)


DIALECTS = (
    Dialect(
        "hermes",
        "hermes",
        render_hermes,
        '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
    ),
    Dialect(
        "nemotron",
        "nemotron",
        render_nemotron,
        "<TOOLCALL>[{'name': 'f'}]</TOOLCALL>",
        '<TOOLCALL>[{"name": " "}]</TOOLCALL>',
    ),
    Dialect(
        "qwen3_coder",
        "qwen3_coder",
        render_qwen3_coder,
        "<tool_call>\n<function=f>\njunk\n</function>\n</tool_call>",
        "<tool_call><function=></function></tool_call>",
    ),
    Dialect(
        "qwen3_coder-bare",
        "qwen3_coder",
        render_bare_function,
        "<function=f>junk</function>",
        "<function= ></function>",
    ),
    Dialect(
        "glm45",
        "glm45",
        render_glm45,
        "<tool_call>f<arg_value>1</arg_value></tool_call>",
        "<tool_call></tool_call>",
    ),
    Dialect(
        "glm47",
        "glm47",
        render_glm47,
        '<tool_call>{"name": "f"}</tool_call>',
        "<tool_call><arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    ),
    Dialect(
        "llama3_json",
        "llama3_json",
        render_llama3,
        "<|python_tag|>print(1)",
        '<|python_tag|>{"parameters": {}}',
    ),
    Dialect(
        "mistral-array",
        "mistral",
        render_mistral_array,
        "[TOOL_CALLS] [{'name': 'f'}]",
        '[TOOL_CALLS] [{"arguments": {}}]',
    ),
    Dialect(
        "mistral-args",
        "mistral",
        render_mistral_args,
        "[TOOL_CALLS]f[ARGS]{a: 1}",
        "[TOOL_CALLS][ARGS]{}",
    ),
)

TAGS = ("tool_call>", "function", "parameter", "arg_key>", "arg_value>")
"""What the tags of the formats without escapes have in them. Hypothesis finds such strings in the sources."""

MARKUP = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<TOOLCALL>",
        "</TOOLCALL>",
        "<function=f>",
        "<function=>",
        "</function>",
    ),
    *("<parameter=a>", "<parameter=b>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>"),
    *("</arg_value>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<think>", "</think>"),
    *('{"name": "f", "arguments": {}}', '{"name": "f", "parameters": {"a": 1}}', '{"a": 1}', "[", "]", "{"),
    *("}", '"', "f", "a", ";", ",", "\n", " ", "NaN", "1e999", "\\ud800", "é🚀", '{"name"', '"arguments": '),
)
SOUP = st.lists(st.sampled_from(MARKUP) | st.text(max_size=3), max_size=30).map("".join)
"""Texts that are full of markup in no sensible order."""
