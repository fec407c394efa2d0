"""The names that the pull request gives, and what each format does beyond the contract of all formats."""

from __future__ import annotations

import copy
import json

import pytest

from sglang_model.tool_formats.segments import ParseStatus
from sglang_model.tool_parsers import (
    ParsedToolCalls,
    normalize_tool_call_arguments,
    parse_qwen3_coder_tool_calls,
    parse_tool_calls,
)


def function_tool(name: str, **properties: object) -> dict[str, object]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }


BASH = function_tool("bash", command={"type": "string"}, timeout={"type": "integer"})


def qwen3_coder(name: str, **arguments: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def arguments_of(parsed: ParsedToolCalls) -> list[object]:
    return [json.loads(call["function"]["arguments"]) for call in parsed.tool_calls]


def outcome(parsed: ParsedToolCalls) -> list[tuple[str, bool]]:
    return [(attempt.status.value, attempt.repaired) for attempt in parsed.report]


def test_parses_multiline_tool_call_and_keeps_content() -> None:
    script = "cat <<'EOF' > a.py\ndef f():\n    return 1\n\nEOF"
    text = f"I will write it.\n{qwen3_coder('bash', command=script)}"
    calls, content = parse_qwen3_coder_tool_calls(text, [BASH])
    assert [call["function"]["name"] for call in calls] == ["bash"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"command": script}
    assert calls[0]["type"] == "function"
    assert calls[0]["id"].startswith("call_")
    assert len(calls[0]["id"]) == 37
    assert content == "I will write it."


def test_uses_tool_schema_for_argument_types() -> None:
    calls, _ = parse_qwen3_coder_tool_calls(qwen3_coder("bash", command="1", timeout="30"), [BASH])
    assert json.loads(calls[0]["function"]["arguments"]) == {"command": "1", "timeout": 30}


def test_no_tool_call_is_passthrough() -> None:
    assert parse_qwen3_coder_tool_calls(" just text \n", [BASH]) == ([], " just text \n")


def test_parses_multiple_tool_calls() -> None:
    text = qwen3_coder("bash", command="ls") + "\n" + qwen3_coder("bash", command="pwd")
    calls, content = parse_qwen3_coder_tool_calls(text, [BASH])
    assert [json.loads(call["function"]["arguments"])["command"] for call in calls] == ["ls", "pwd"]
    assert content == ""


def test_invalid_typed_value_falls_back_to_string() -> None:
    calls, _ = parse_qwen3_coder_tool_calls(qwen3_coder("bash", timeout="soon"), [BASH])
    assert json.loads(calls[0]["function"]["arguments"]) == {"timeout": "soon"}


@pytest.mark.parametrize("tools", [[], None])
def test_unknown_tool_parameters_remain_strings(tools: list[object] | None) -> None:
    calls, _ = parse_qwen3_coder_tool_calls(qwen3_coder("other", n="1"), tools)
    assert json.loads(calls[0]["function"]["arguments"]) == {"n": "1"}


def test_shell_text_with_angle_brackets_is_preserved() -> None:
    command = "cat < in.txt > out.txt 2>&1 && echo '<b>' | grep -c '</b>' << 3"
    calls, _ = parse_qwen3_coder_tool_calls(qwen3_coder("bash", command=command), [BASH])
    assert json.loads(calls[0]["function"]["arguments"]) == {"command": command}


def message_with(arguments: object) -> dict[str, object]:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def test_normalizes_string_arguments_without_mutating_input() -> None:
    messages = [{"role": "user", "content": "hi"}, message_with('{"command": "ls"}')]
    before = copy.deepcopy(messages)
    normalized = normalize_tool_call_arguments(messages)
    assert messages == before
    assert normalized == [messages[0], message_with({"command": "ls"})]


def test_normalizes_parser_output() -> None:
    calls, content = parse_qwen3_coder_tool_calls(qwen3_coder("bash", command="ls", timeout="3"), [BASH])
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    [normalized] = normalize_tool_call_arguments([message])
    assert normalized["tool_calls"] == [
        {
            "id": calls[0]["id"],
            "type": "function",
            "function": {"name": "bash", "arguments": {"command": "ls", "timeout": 3}},
        }
    ]


@pytest.mark.parametrize("arguments", [{"a": 1}, "not json", '["a"]', '{"a": NaN}', "", None, 5])
def test_normalizer_leaves_non_object_arguments_unchanged(arguments: object) -> None:
    assert normalize_tool_call_arguments([message_with(arguments)]) == [message_with(arguments)]


@pytest.mark.parametrize("tool_calls", [None, [], "text", [None], [{"id": "x"}], [{"function": None}]])
def test_normalizer_leaves_messages_without_readable_calls_unchanged(tool_calls: object) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": tool_calls}
    assert normalize_tool_call_arguments([message]) == [message]


def test_normalizer_reads_calls_in_the_flat_shape_too() -> None:
    message = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a": 1}'}]}
    [normalized] = normalize_tool_call_arguments([message])
    assert normalized["tool_calls"] == [{"name": "f", "arguments": {"a": 1}}]


PARAMETERS = function_tool(
    "f",
    text={"type": "string"},
    number={"type": "number"},
    maybe={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    rows={"type": "array", "items": {"type": "array"}},
)


def parse_coder(text: str, *, finished: bool = True) -> ParsedToolCalls:
    return parse_tool_calls(text, format_name="qwen3_coder", tools=[PARAMETERS], finished=finished)


STRINGS = (
    *("null", "007", "1e5", "123_456", "true", "  indented\n\n", "\n", "", "你好 🚀", "{'a'}"),
    *(
        "</parameter> inside",
        "<parameter=x>",
        "<parameter=text>",
        "a </function> b",
        "<tool_call>",
        "</tool_call>",
    ),
    "<function=g>\n</function>",
)


@pytest.mark.parametrize("value", STRINGS)
def test_qwen3_coder_string_values_are_verbatim(value: str) -> None:
    parsed = parse_coder(qwen3_coder("f", text=value, number="1"))
    assert arguments_of(parsed) == [{"text": value, "number": 1}]
    assert parsed.content == ""


def test_qwen3_coder_arguments_keep_their_characters() -> None:
    parsed = parse_coder(qwen3_coder("f", text="你好 🚀"))
    assert parsed.tool_calls[0]["function"]["arguments"] == '{"text": "你好 🚀"}'


def test_qwen3_coder_parameter_that_was_given_already_does_not_begin_again_inside_a_value() -> None:
    value = "see <parameter=number> above"
    parsed = parse_coder(qwen3_coder("f", number="1", text=value))
    assert arguments_of(parsed) == [{"number": 1, "text": value}]


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-Infinity", "1e400"])
def test_qwen3_coder_numbers_that_json_has_not_stay_text(value: str) -> None:
    assert arguments_of(parse_coder(qwen3_coder("f", number=value))) == [{"number": value}]


def test_qwen3_coder_reads_nullable_and_nested_types() -> None:
    text = qwen3_coder("f", maybe="null", rows="[[1, 2], [3]]") + qwen3_coder("f", maybe="7")
    assert arguments_of(parse_coder(text)) == [{"maybe": None, "rows": [[1, 2], [3]]}, {"maybe": 7}]


@pytest.mark.parametrize(
    "text",
    [
        "<function=f>\n<parameter=text>\na\n</parameter>\n</function>\n</tool_call>",
        "<function=f>\n<parameter=text>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=text>\na\n</parameter>\n",
        "<tool_call>\n<function=f>\n<parameter=text>\na\n</function>\n</tool_call>",
        "<function=f><parameter=text>a</function>",
    ],
)
def test_qwen3_coder_reads_a_call_that_lacks_a_tag_and_says_so(text: str) -> None:
    parsed = parse_coder(f"Now: {text}")
    assert arguments_of(parsed) == [{"text": "a"}]
    assert parsed.content == "Now:"
    assert outcome(parsed) == [("ok", True)]


@pytest.mark.parametrize("newline", ["\n", ""])
def test_qwen3_coder_value_without_its_closing_tag_ends_at_the_next_declared_parameter(newline: str) -> None:
    body = newline.join(["<parameter=text>", "a", "<parameter=number>", "2", "</parameter>", ""])
    parsed = parse_coder(f"<tool_call><function=f>{body}</function></tool_call>")
    assert arguments_of(parsed) == [{"text": "a", "number": 2}]
    assert outcome(parsed) == [("ok", True)]


def test_qwen3_coder_without_a_schema_only_a_tag_on_its_own_line_begins_a_parameter() -> None:
    text = "<function=g>\n<parameter=a>\nx <parameter=b>\n<parameter=c>\ny\n</parameter>\n</function>"
    assert arguments_of(parse_coder(text)) == [{"a": "x <parameter=b>", "c": "y"}]


def test_qwen3_coder_value_that_never_ends_is_no_call() -> None:
    text = "<tool_call>\n<function=f>\n<parameter=text>\nrm -rf /tmp/x"
    parsed = parse_coder(text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    assert outcome(parsed) == [("unclosed_block", False)]


def test_qwen3_coder_call_that_never_ends_does_not_swallow_the_next_one() -> None:
    torso = "<tool_call>\n<function=f>\n<parameter=text>\na\n"
    parsed = parse_coder(torso + qwen3_coder("f", text="b") + qwen3_coder("f", text="c"))
    assert arguments_of(parsed) == [{"text": "b"}, {"text": "c"}]
    assert parsed.content == torso
    assert outcome(parsed) == [("unclosed_block", False), ("ok", False), ("ok", False)]


def test_qwen3_coder_mention_of_a_tag_is_reported_and_stays() -> None:
    text = "Use <tool_call> and <function=f> as shown."
    parsed = parse_coder(text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    assert outcome(parsed) == [("invalid_markup", False), ("unclosed_block", False)]


@pytest.mark.parametrize("wrapper", ["<tool_call>\n", ""])
def test_qwen3_coder_name_alone_is_a_call_only_to_a_declared_tool(wrapper: str) -> None:
    parsed = parse_coder(f"{wrapper}<function=f>\n")
    assert arguments_of(parsed) == [{}]
    assert outcome(parsed) == [("ok", True)]
    assert outcome(parse_coder(f"{wrapper}<function=g>\n")) == [("unclosed_block", False)]


def test_qwen3_coder_of_a_repeated_parameter_the_last_one_counts() -> None:
    text = "<function=f><parameter=text>a</parameter><parameter=text>b</parameter></function></tool_call>"
    assert arguments_of(parse_coder(text)) == [{"text": "b"}]


def parse_hermes(text: str, *, finished: bool = True) -> ParsedToolCalls:
    return parse_tool_calls(text, format_name="hermes", finished=finished)


@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"arguments": {"name": "g"}}}', '{"arguments": {"name": "g"}}'),
        ('{"name": "f", "arguments": {"a": "</tool_call>}"}}', '{"a": "</tool_call>}"}'),
        ('{"name": "f", "arguments": {"a": "\\"} </tool_call> {\\""}}', '{"a": "\\"} </tool_call> {\\""}'),
        ('{"name": "f", "arguments": "{\\"a\\": [1]}"}', '{"a": [1]}'),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"name": "f", "arguments": {"a":1.10,  "b":"你好 \\u00e9"}}', '{"a":1.10,  "b":"你好 \\u00e9"}'),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}', '{"a": "\\ud83d"}'),
        ('{"name": "f", "name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}', '{"a": 2}'),
    ],
)
@pytest.mark.parametrize("layout", ["<tool_call>{}</tool_call>", "<tool_call>\n{}\n</tool_call>"])
def test_hermes_arguments_are_the_json_object_as_sampled(block: str, arguments: str, layout: str) -> None:
    parsed = parse_hermes(layout.replace("{}", block))
    assert [call["function"] for call in parsed.tool_calls] == [{"name": "f", "arguments": arguments}]
    assert parsed.content == ""
    assert outcome(parsed) == [("ok", False)]


@pytest.mark.parametrize(
    ("block", "status"),
    [
        ('{"name": "f", "arguments": {"a": 1}', ParseStatus.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": 1}}}', ParseStatus.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": NaN}}', ParseStatus.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": 1e400}}', ParseStatus.INVALID_JSON),
        ('{"name": "f", "arguments": {"a": "two\nlines"}}', ParseStatus.INVALID_JSON),
        ('{"name": "f"} and then', ParseStatus.INVALID_JSON),
        ("", ParseStatus.INVALID_JSON),
        ('{"arguments": {}}', ParseStatus.MISSING_NAME),
        ('{"name": null, "arguments": {}}', ParseStatus.MISSING_NAME),
        ('{"name": "\\ud800", "arguments": {}}', ParseStatus.MISSING_NAME),
        ('["f"]', ParseStatus.NOT_AN_OBJECT),
        ("[]", ParseStatus.NOT_AN_OBJECT),
        ('{"name": "f", "arguments": [1]}', ParseStatus.INVALID_ARGUMENTS),
        ('{"name": "f", "arguments": "ls -l"}', ParseStatus.INVALID_ARGUMENTS),
        ('{"name": "f", "arguments": "[1]"}', ParseStatus.INVALID_ARGUMENTS),
        ('{"name": "f", "arguments": 0}', ParseStatus.INVALID_ARGUMENTS),
        ('{"name": "f"}{"arguments": {}}', ParseStatus.MISSING_NAME),
    ],
)
def test_hermes_block_that_is_no_call_stays_whole(block: str, status: ParseStatus) -> None:
    text = f"Look:\n<tool_call>\n{block}\n</tool_call>\n"
    parsed = parse_hermes(text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    [attempt] = parsed.report
    assert (attempt.status, attempt.raw) == (status, f"<tool_call>\n{block}\n</tool_call>")


@pytest.mark.parametrize(
    "block",
    [
        '{"name": "f"}\n{"name": "g", "arguments": {"a": 1}}',
        '[{"name": "f"}, {"name": "g", "arguments": {"a": 1}}]',
    ],
)
def test_hermes_block_with_two_objects_is_two_calls(block: str) -> None:
    text = f"<tool_call>{block}</tool_call>"
    parsed = parse_hermes(text)
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["f", "g"]
    assert arguments_of(parsed) == [{}, {"a": 1}]
    assert [attempt.raw for attempt in parsed.report] == [text, text]


def test_hermes_call_that_never_ends_does_not_swallow_the_next_one() -> None:
    torso = '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n'
    parsed = parse_hermes(f'{torso}<tool_call>{{"name": "g"}}</tool_call>')
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["g"]
    assert parsed.content == torso
    assert outcome(parsed) == [("unclosed_block", False), ("ok", False)]


def parse_llama(text: str, *, finished: bool = True) -> ParsedToolCalls:
    return parse_tool_calls(text, format_name="llama3_json", finished=finished)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "arguments": {}}',
        '\n{"name": "f", "parameters": {"a": 1}}\n{"name": "g", "arguments": {}};\n',
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}};{"name": "g"}',
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}\n<|python_tag|>{"name": "g"}',
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}};<|python_tag|>{"name": "g"}',
        '<|python_tag|>[{"name": "f", "parameters": {"a": 1}}, {"name": "g"}]',
        '{"name": "f", "parameters": {"a": 1}} <|python_tag|> {"name": "g"}',
        '{"type": "function", "name": "f", "parameters": {"a": 1}} {"name": "g", "parameters": {}}',
    ],
)
def test_llama3_calls_are_joined_by_semicolons_newlines_or_tags(text: str) -> None:
    parsed = parse_llama(text)
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["f", "g"]
    assert arguments_of(parsed) == [{"a": 1}, {}]
    assert parsed.content == ""


@pytest.mark.parametrize(
    "text",
    [
        'The call is {"name": "f", "parameters": {}}.',
        '{"name": "Bob", "age": 3}',
        '{"parameters": {}}',
        '[{"name": "f", "parameters": {}}]',
        "{}",
        '{"a": 1',
    ],
)
def test_llama3_json_that_is_no_call_is_text_and_no_attempt(text: str) -> None:
    parsed = parse_llama(text)
    assert (parsed.tool_calls, parsed.content, parsed.report) == ((), text, ())


def test_llama3_text_after_a_call_stays() -> None:
    parsed = parse_llama(
        '{"name": "f", "parameters": {}}\nAnd {"name": "Bob"} too; {"name": "g", "parameters": {}}'
    )
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["f"]
    assert parsed.content == 'And {"name": "Bob"} too; {"name": "g", "parameters": {}}'


def test_llama3_broken_call_after_a_good_one_is_reported() -> None:
    parsed = parse_llama('{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"a": }}')
    assert [call["function"]["name"] for call in parsed.tool_calls] == ["f"]
    assert parsed.content == '; {"name": "g", "parameters": {"a": }}'
    assert outcome(parsed) == [("ok", False), ("invalid_json", False)]


def test_llama3_builtin_tool_syntax_is_reported_and_stays() -> None:
    text = 'So: <|python_tag|>brave_search.call(query="x")'
    parsed = parse_llama(text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    assert outcome(parsed) == [("invalid_json", False)]


def parse_glm(text: str, *, finished: bool = True) -> ParsedToolCalls:
    return parse_tool_calls(text, format_name="glm45", tools=[PARAMETERS], finished=finished)


def test_glm45_whitespace_of_a_string_is_kept() -> None:
    text = "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>  a \n</arg_value>\n</tool_call>"
    assert arguments_of(parse_glm(text)) == [{"text": "  a \n"}]


def test_glm45_key_that_is_not_declared_is_a_string() -> None:
    text = "<tool_call>f<arg_key>other</arg_key><arg_value>5</arg_value></tool_call>"
    assert arguments_of(parse_glm(text)) == [{"other": "5"}]


@pytest.mark.parametrize("value", ["</arg_value> inside", "<arg_key>", "<tool_call>", "a</tool_call>b"])
def test_glm45_tags_inside_a_value_are_the_value(value: str) -> None:
    text = f"<tool_call>f<arg_key>text</arg_key><arg_value>{value}</arg_value></tool_call> done"
    parsed = parse_glm(text)
    assert arguments_of(parsed) == [{"text": value}]
    assert parsed.content == "done"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("<tool_call>f<arg_key>text<arg_value>a</arg_value></tool_call>", "invalid_markup"),
        ("<tool_call>f<arg_key>text</arg_key>junk<arg_value>a</arg_value></tool_call>", "invalid_markup"),
        ("<tool_call>f<arg_key>text</arg_key><arg_value>a</arg_value>junk</tool_call>", "unclosed_block"),
        ("<tool_call>f<arg_key>text</arg_key></tool_call>", "invalid_markup"),
        ("<tool_call>two words</tool_call>", "invalid_markup"),
        ("<tool_call>f<arg_key>text", "unclosed_block"),
        ("<tool_call>g", "unclosed_block"),
        ("<tool_call>", "unclosed_block"),
    ],
)
def test_glm45_block_that_is_no_call_stays_whole(text: str, status: str) -> None:
    parsed = parse_glm(text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    assert outcome(parsed) == [(status, False)]


def test_glm45_name_alone_is_a_call_only_to_a_declared_tool() -> None:
    parsed = parse_glm("Then: <tool_call>f\n")
    assert (arguments_of(parsed), parsed.content) == ([{}], "Then:")
    assert outcome(parsed) == [("ok", True)]
    assert parse_glm("Then: <tool_call>g\n").tool_calls == ()
    assert parse_glm("Then: <tool_call>f\n", finished=False).tool_calls == ()


def test_glm45_call_that_never_ends_does_not_swallow_the_next_one() -> None:
    torso = "<tool_call>f<arg_key>text</arg_key><arg_value>a"
    parsed = parse_glm(f"{torso}<tool_call>f<arg_key>number</arg_key><arg_value>1</arg_value></tool_call>")
    assert arguments_of(parsed) == [{"number": 1}]
    assert parsed.content == torso


def parse_mistral(text: str) -> ParsedToolCalls:
    return parse_tool_calls(text, format_name="mistral")


def test_mistral_keeps_a_sampled_id_that_its_template_takes() -> None:
    array = '[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "a1B2c3D4e"}, {"name": "g", "id": "call_1"}]'
    named = "[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}[TOOL_CALLS]g[CALL_ID]a1B2c3D4e[ARGS]{}"
    for text in (array, named):
        ids = [call["id"] for call in parse_mistral(text).tool_calls]
        assert ids[0] == "a1B2c3D4e"
        assert len(ids[1]) == 9
        assert ids[1].isalnum()
        assert ids[1] != ids[0]


def test_other_formats_do_not_take_an_id_that_the_model_made_up() -> None:
    parsed = parse_hermes('<tool_call>{"name": "f", "id": "call_1"}</tool_call>')
    assert parsed.tool_calls[0]["id"] != "call_1"


def test_mistral_reads_one_object_and_text_after_it() -> None:
    parsed = parse_mistral('Hm.[TOOL_CALLS] {"name": "f", "arguments": {"a": "[TOOL_CALLS]"}} Done.')
    assert arguments_of(parsed) == [{"a": "[TOOL_CALLS]"}]
    assert parsed.content == "Hm. Done."


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("[TOOL_CALLS]f[ARGS][1]", "invalid_arguments"),
        ("[TOOL_CALLS]f[ARGS]{'a': 1}", "invalid_json"),
        ("[TOOL_CALLS]f(1)", "invalid_json"),
        ("[TOOL_CALLS] [1]", "not_an_object"),
    ],
)
def test_mistral_block_that_is_no_call_stays_whole(text: str, status: str) -> None:
    parsed = parse_mistral(text)
    assert (parsed.tool_calls, parsed.content) == ((), text)
    assert outcome(parsed) == [(status, False)]
