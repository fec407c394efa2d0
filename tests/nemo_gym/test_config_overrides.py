from __future__ import annotations

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.config_overrides import Override, OverrideKind, parse_override, parse_value
from nemo_gym.errors import ConfigError


def written(value: object) -> str:
    """A value as a careful user writes it."""
    if isinstance(value, str):
        escaped = re.sub(r"(\\*)'", lambda match: match[1] * 2 + "\\'", value)
        trailing = len(escaped) - len(escaped.rstrip("\\"))
        return f"'{escaped}{chr(92) * trailing}'"
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    return repr(value) if type(value) in (int, float) else json.dumps(value)


words = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]*", fullmatch=True).filter(
    lambda word: word.lower() not in ("true", "false", "null", "inf", "nan")
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_a_value_that_is_written_carefully_comes_back_as_it_was(value: object) -> None:
    assert parse_value(written(value)) == value


@given(st.text())
def test_any_argument_is_read_or_refused_with_a_config_error(text: str) -> None:
    try:
        parsed: object = parse_override(text)
    except ConfigError as refused:
        parsed = refused
    assert isinstance(parsed, Override | ConfigError)


@given(st.sampled_from(list("()[]{}'\"")), st.sampled_from(["", "[", "{", "{a:", "'"]))
def test_a_value_that_cannot_be_read_is_not_repeated_in_the_message(mark: str, start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(f"+policy_api_key={start}sk-5ecret{mark}|")
    assert "5ecret" not in caught.value.message
    assert "policy_api_key" in caught.value.message


@given(words)
def test_a_plain_word_is_text(word: str) -> None:
    assert parse_value(word) == word


@pytest.mark.parametrize(
    ("text", "kind", "key"),
    [
        ("+a=1", OverrideKind.ADD, "a"),
        ("++a.b-c=1", OverrideKind.FORCE, "a.b-c"),
        ("a.$b=1", OverrideKind.CHANGE, "a.$b"),
        ("~a.0=1", OverrideKind.DELETE, "a.0"),
    ],
)
def test_the_sign_says_what_an_override_does(text: str, kind: OverrideKind, key: str) -> None:
    assert parse_override(text) == Override(kind, key, 1)


def test_deleting_needs_no_value() -> None:
    assert parse_override("~a.b") == Override(OverrideKind.DELETE, "a.b", has_value=False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("  ", ""),
        ("0", 0),
        ("-12", -12),
        ("1_000", 1000),
        ("007", "007"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("-1e-3", -0.001),
        ("1.2.3", "1.2.3"),
        ("Inf", math.inf),
        ("TRUE", True),
        ("False", False),
        ("NULL", None),
        ("nullify", "nullify"),
        ("'null'", "null"),
        ('"12"', "12"),
        ("two words ", "two words"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1"),
        ("http://host/v1?key=a&b=c", "http://host/v1?key=a&b=c"),
        ("c2VjcmV0==", "c2VjcmV0=="),
        ("~/models/Qwen3-0.6B", "~/models/Qwen3-0.6B"),
        ("${policy_model_name}", "${policy_model_name}"),
        ("${oc.env:KEY,${other}}", "${oc.env:KEY,${other}}"),
        ("http://${host}:1/v1", "http://${host}:1/v1"),
        ("${a} ", "${a}"),
        (r"a\,b", "a,b"),
        (r"\[x\]", "[x]"),
        (r"\ a\ ", " a "),
        (r"C:\dir", r"C:\dir"),
        (r"'it\'s'", "it's"),
        (r'"a\\"', "a\\"),
        (r'"a\nb"', r"a\nb"),
        ("[]", []),
        ("[a, 'b,c', [1,2.0], null]", ["a", "b,c", [1, 2.0], None]),
        ("[http://a:1/v1,http://b:2/v1]", ["http://a:1/v1", "http://b:2/v1"]),
        ("{}", {}),
        ("{top_k: -1, stop: [a], url: http://h:1}", {"top_k": -1, "stop": ["a"], "url": "http://h:1"}),
        ("{1: x, false: y, 2.5: z}", {1: "x", False: "y", 2.5: "z"}),
    ],
)
def test_values_are_read_as_hydra_reads_them(text: str, value: object) -> None:
    read = parse_value(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+a=b,c", "column 5: unexpected ,: a list is written [a,b]"),
        ("+a=choice(1,2)", "functions are not supported"),
        ("+a=x)", "parentheses"),
        ("+a=[1,2", "expected ',' or ']'"),
        ("+a=[1,,2]", "column 7: a value is missing"),
        ("+a=[1,]", "a value is missing"),
        ("+a=[1]x", "expected the end of the value"),
        ("+a={b}", "unexpected }"),
        ("+a={b 1}", "unexpected }"),
        ("+a={b", "expected ':'"),
        ("+a={null: 1}", "null cannot be the key"),
        ("+a={b:}", "a value is missing"),
        ("+a={[x]: 1}", "unexpected ["),
        ("+a=it's", "quoted as a whole"),
        ("+a='open", "column 4: the text that starts here has no closing '"),
        ("+a=${open", "column 4: the ${ that starts here is not closed"),
        ("+a=" + "[" * 100, "nested more than 64 deep"),
        ("+a", "a has no value; write +a=<value>"),
        ("a", "a has no value; write a=<value>"),
        ("--config=x", "the only flag is --help"),
        ("db/mysql=1", "config groups"),
        ("a@b=1", "config groups"),
        ("=1", "is not an override"),
        ("0=1", "is not an override"),
        ("a b=1", "is not an override"),
        ("a..b=1", "is not an override"),
        ("+++a=1", "is not an override"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(text)
    assert expected in caught.value.message


def test_an_argument_that_is_no_override_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override("sk 5ecret")
    assert "5ecret" not in caught.value.message
    assert "9 characters" in caught.value.message
