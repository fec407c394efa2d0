from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_model.argument_types import DeclaredTools, coerce_argument
from sglang_model.strict_json import JsonValue, encode
from tests.support.rendered_calls import JSON_VALUES, as_markup, schema_of

ROOT: dict[str, object] = {
    "$defs": {
        "Point": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "Size": {"enum": [1, 2, "big"]},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]},
        "a/b": {"type": "boolean"},
    }
}
NULLABLE_INTEGER = {"type": ["integer", "null"]}


def same(left: JsonValue, right: JsonValue) -> bool:
    return left == right and type(left) is type(right)


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "3", 3),
        ({"type": "integer"}, " -3\n", -3),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "2.50", 2.5),
        ({"type": "number"}, "1e5", 100000.0),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "array"}, "[[1,2],[3]]", [[1, 2], [3]]),
        ({"type": "object"}, '{"a": {"b": null}}', {"a": {"b": None}}),
        ({"type": "null"}, "null", None),
        (NULLABLE_INTEGER, "4", 4),
        (NULLABLE_INTEGER, "null", None),
        (NULLABLE_INTEGER, "None", None),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "array", "items": {}}, {"type": "string"}]}, '["a"]', ["a"]),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "twelve", "twelve"),
        ({"anyOf": [{"type": "integer"}, {"anyOf": [{"type": "boolean"}]}]}, "true", True),
        ({"allOf": [{"$ref": "#/$defs/Point"}]}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/Point"}, '{"x": 1}', {"x": 1}),
        ({"$ref": "#/$defs/Loop"}, "1", 1),
        ({"$ref": "#/$defs/a~1b"}, "true", True),
        ({"$ref": "#/$defs/Size"}, "2", 2),
        ({"$ref": "#/$defs/Size"}, "big", "big"),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"const": 7}, "7", 7),
        ({"properties": {"x": {}}}, '{"x": 1}', {"x": 1}),
        ({"items": {"type": "integer"}}, "[1]", [1]),
        ({"type": "float"}, "1.5", 1.5),
        ({"type": "dict"}, "{}", {}),
    ],
)
def test_a_text_becomes_the_type_that_its_schema_names(schema: object, text: str, value: JsonValue) -> None:
    assert same(coerce_argument(text, schema, ROOT), value)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        *(
            ({"type": "string"}, text)
            for text in ("null", "007", "1e5", "123_456", "true", "[1]", " a \n", "")
        ),
        *(
            ({"type": "integer"}, text)
            for text in ("x", "007", "123_456", "1e5", "5.5", "+1", "", "٣", "1" * 5000)
        ),
        *(
            ({"type": "number"}, text)
            for text in ("nan", "NaN", "inf", "-Infinity", "1e400", "1_0", ".5", "true")
        ),
        *(({"type": "boolean"}, text) for text in ("yes", "1", "0", "null", "")),
        *(
            ({"type": "array"}, text)
            for text in ("[1,]", "{}", "[NaN]", "[1e400]", "('a',)", "[" * 200 + "]" * 200)
        ),
        *(({"type": "object"}, text) for text in ("{'a': 1}", "[]", "null")),
        ({"type": ["string", "null"]}, "None"),
        ({"type": "integer"}, "null"),
        ({}, "5"),
        (None, "5"),
        (True, "5"),
        ({"type": 5}, "5"),
        ({"type": "unheard-of"}, "5"),
        ({"$ref": "#/$defs/Nowhere"}, "5"),
        ({"$ref": "#/$defs/Point/type/x"}, "5"),
        ({"$ref": "other.json#/x"}, "5"),
        ({"anyOf": "integer"}, "5"),
    ],
)
def test_a_text_that_does_not_fit_stays_the_text(schema: object, text: str) -> None:
    assert same(coerce_argument(text, schema, ROOT), text)


def test_null_for_a_nullable_string_is_null_and_for_a_string_is_the_word() -> None:
    assert coerce_argument("null", {"type": ["string", "null"]}, {}) is None
    assert coerce_argument("null", {"type": "string"}, {}) == "null"


@given(value=JSON_VALUES)
def test_every_json_value_survives_its_markup(value: JsonValue) -> None:
    assert coerce_argument(as_markup(value), schema_of(value), {}) == value


@given(
    text=st.text(),
    kind=st.sampled_from(["integer", "number", "boolean", "array", "object", "null", "string"]),
)
def test_whatever_was_written_the_value_can_be_sent_as_json(text: str, kind: str) -> None:
    assert encode(coerce_argument(text, {"type": kind}, {})).encode()


def test_both_openai_shapes_of_a_tool_are_understood_and_the_first_of_a_name_counts() -> None:
    integer = {"properties": {"a": {"type": "integer"}}}
    tools = DeclaredTools(
        [
            {"type": "function", "name": "flat", "parameters": integer},
            {"type": "function", "function": {"name": "nested", "parameters": integer}},
            {"type": "function", "function": {"name": "nested", "parameters": {}}},
        ]
    )
    assert tools.coerce("flat", "a", "1") == tools.coerce("nested", "a", "1") == 1
    assert tools.declares("flat")
    assert not tools.declares("other")


def test_entries_that_are_no_tools_are_skipped() -> None:
    broken: list[object] = [
        None,
        "x",
        {},
        {"function": None},
        {"function": {"name": 5}},
        {"name": "f", "parameters": 1},
    ]
    tools = DeclaredTools([*broken, {"name": "g", "parameters": {"properties": 1}}])
    assert tools.declares("f")
    assert tools.coerce("f", "a", "1") == tools.coerce("g", "a", "1") == "1"


def test_only_a_list_of_tools_can_reject_a_name() -> None:
    assert DeclaredTools([]).rejects("f")
    assert not DeclaredTools(None).rejects("f")
    assert not DeclaredTools([{"name": "f"}]).rejects("f")


def test_a_key_that_is_not_declared_takes_the_type_of_additional_properties() -> None:
    tools = DeclaredTools([{"name": "f", "parameters": {"additionalProperties": {"type": "integer"}}}])
    assert tools.coerce("f", "any", "5") == 5
    assert DeclaredTools([{"name": "f"}]).coerce("f", "any", "5") == "5"
