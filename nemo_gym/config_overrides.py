r"""The override grammar of the command line: `+key=value`, `++key=value`, `key=value`, `~key`.

The grammar is Hydra's, because every NeMo Gym command line is written in it. What Hydra 1.3 reads, this reads
to the same value. It reads a little more (`=`, `~`, `#` and other harmless characters in an unquoted word, so
that a URL with a query or a key that ends in `==` needs no quotes). It refuses what means nothing without
Hydra: sweeps (`k=a,b`), functions (`k=choice(a,b)`), config groups (`db/mysql`) and packages (`db@x`).

    value    12  -1.5e3  inf  true  null       typed, any case for the words
             word  http://host:1/v1            text up to , ] } or the end; outer blanks are dropped
             'quoted'  "quoted"                always text; \' and \" inside
             [a, 'b', [1, 2]]  {a: 1, b: {}}   lists and mappings, nested
             \,  \[  \{  \(  \:  \=  \\  \     the character itself, in unquoted text
             ${other.key}                      left for OmegaConf

This room knows text only. It never puts a value into a message: a value may be an API key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from nemo_gym.errors import ConfigError

Scalar: TypeAlias = str | int | float | bool | None
Key: TypeAlias = str | int | float | bool
Value: TypeAlias = "Scalar | list[Value] | dict[Key, Value]"

_INT = r"(?:0|[1-9](?:_?[0-9])*)"
_POINT = rf"(?:{_INT}\.|(?:{_INT})?\.[0-9](?:_?[0-9])*)"
_INT_RE = re.compile(rf"[+-]?{_INT}")
_FLOAT_RE = re.compile(
    rf"[+-]?(?:{_POINT}|(?:{_INT}|{_POINT})[eE][+-]?[0-9](?:_?[0-9])*|[Ii][Nn][Ff]|[Nn][Aa][Nn])"
)
_KEY_PART = r"[A-Za-z_$][A-Za-z0-9_$-]*"
_KEY_RE = re.compile(rf"{_KEY_PART}|(?:{_KEY_PART}|{_INT})(?:\.(?:{_KEY_PART}|{_INT}))+")

_BLANK = " \t"
_ESCAPABLE = "\\()[]{}:=, \t"
_NAMED: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_MAX_DEPTH = 64
_FORMS = "+key=value, ++key=value, key=value or ~key, with a dotted key of letters, digits, '_', '-' and '$'"

_HINTS = {
    ",": "a list is written [a,b]; a text with a comma is quoted or written \\,",
    "(": "functions are not supported; a text with parentheses is quoted or written \\( \\)",
    ")": "a text with parentheses is quoted or written \\( \\)",
    "[": "a bracket inside a text is quoted or written \\[",
    "]": "a bracket inside a text is quoted or written \\]",
    "{": "a brace inside a text is quoted or written \\{",
    "}": "a brace inside a text is quoted or written \\}",
    "'": "a text with a quote in it is quoted as a whole",
    '"': "a text with a quote in it is quoted as a whole",
}


class OverrideKind(Enum):
    ADD = "+"
    FORCE = "++"
    CHANGE = ""
    DELETE = "~"


@dataclass(frozen=True)
class Override:
    """One parsed argument. `value` is None for `~key`; `has_value` tells that from `~key=null`."""

    kind: OverrideKind
    key: str
    value: Value = None
    has_value: bool = True


def parse_override(text: str) -> Override:
    """Read one command-line argument; ConfigError says what is wrong and at which column."""
    sign = next(sign for sign in ("++", "+", "~", "") if text.startswith(sign))
    key, equals, value = text[len(sign) :].partition("=")
    kind = OverrideKind(sign)
    _check_key(key, argument=text)
    if equals:
        return Override(kind, key, parse_value(value, where=key, offset=len(text) - len(value)))
    if kind is not OverrideKind.DELETE:
        raise ConfigError(f"{key} has no value; write {sign}{key}=<value>", param=key)
    return Override(kind, key, has_value=False)


def parse_value(text: str, *, where: str = "value", offset: int = 0) -> Value:
    """Read what stands behind the `=`; `offset` is added to the columns of messages that name `where`."""
    return _Reader(text, where, offset).whole_value()


def _check_key(key: str, *, argument: str) -> None:
    """Refuse what is no dotted key, without repeating it: what looks like a key may be half of a secret."""
    if key.startswith("-"):
        raise ConfigError("an argument starts with '-', but the only flag is --help; settings are key=value")
    if "/" in key or "@" in key:
        raise ConfigError("a key has '/' or '@' in it; Hydra's config groups and packages are not supported")
    if not _KEY_RE.fullmatch(key):
        raise ConfigError(f"an argument of {len(argument)} characters is not an override; expected {_FORMS}")


class _Reader:
    """A cursor over one value. `position` never passes the end; a method leaves it behind what it read."""

    def __init__(self, text: str, where: str, offset: int) -> None:
        self.text = text
        self.where = where
        self.offset = offset
        self.position = 0
        self.depth = 0

    def whole_value(self) -> Value:
        self.skip_blanks()
        if self.at_end:
            return ""
        value = self.element(stops="")
        self.skip_blanks()
        if not self.at_end:
            raise self.unexpected()
        return value

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    @property
    def current(self) -> str:
        return self.text[self.position : self.position + 1]

    def skip_blanks(self) -> None:
        while self.current and self.current in _BLANK:
            self.position += 1

    def element(self, stops: str) -> Value:
        self.skip_blanks()
        match self.current:
            case "[":
                return self.nested_list()
            case "{":
                return self.nested_mapping()
            case "'" | '"':
                return self.quoted()
            case _:
                return self.unquoted(stops)

    def nested_list(self) -> list[Value]:
        self.enter()
        items: list[Value] = []
        while not self.closed("]", first=not items):
            items.append(self.element(stops=",]"))
        return items

    def nested_mapping(self) -> dict[Key, Value]:
        self.enter()
        items: dict[Key, Value] = {}
        first = True
        while not self.closed("}", first=first):
            first = False
            self.skip_blanks()
            start = self.position
            key = self.unquoted(stops=":", plain=True)
            if key is None:
                raise self.error("null cannot be the key of a mapping", start)
            if self.current != ":":
                raise self.error("expected ':' after the key of a mapping", self.position)
            self.position += 1
            items[key] = self.element(stops=",}")
        return items

    def enter(self) -> None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise self.error(f"lists and mappings are nested more than {_MAX_DEPTH} deep", self.position)
        self.position += 1

    def closed(self, bracket: str, *, first: bool) -> bool:
        """Step over the closing bracket or the comma before the next item; False when an item follows."""
        self.skip_blanks()
        if self.current == bracket:
            self.position += 1
            self.depth -= 1
            return True
        if first:
            return False
        if self.current != ",":
            raise self.error(f"expected ',' or '{bracket}'", self.position)
        self.position += 1
        return False

    def quoted(self) -> str:
        """Text in quotes. Before a quote, n backslashes stand for n // 2, and for odd n the quote is text."""
        quote, start = self.current, self.position
        self.position += 1
        out: list[str] = []
        while not self.at_end:
            run = 0
            while self.current == "\\":
                run += 1
                self.position += 1
            if self.current != quote:
                out.append("\\" * run + self.current)
                self.position += 1
                continue
            out.append("\\" * (run // 2))
            self.position += 1
            if run % 2 == 0:
                return "".join(out)
            out.append(quote)
        raise self.error(f"the text that starts here has no closing {quote}", start)

    def unquoted(self, stops: str, *, plain: bool = False) -> Scalar:
        """A word: typed when it reads as one, else text. `plain` refuses interpolations (mapping keys)."""
        start = self.position
        out: list[str] = []
        solid = 0
        while not self.at_end and self.current not in stops:
            char = self.current
            if char == "\\" and self.text[self.position + 1 : self.position + 2] in tuple(_ESCAPABLE):
                out.append(self.text[self.position + 1])
                self.position += 2
            elif self.text.startswith("${", self.position) and not plain:
                out.append(self.interpolation())
            elif char in _HINTS:
                raise self.unexpected()
            else:
                out.append(char)
                self.position += 1
                if char in _BLANK:
                    continue
            solid = len(out)
        if not solid:
            raise self.error("a value is missing", start)
        return _typed("".join(out[:solid]))

    def interpolation(self) -> str:
        """`${...}` as it stands, up to the brace that closes it."""
        start, depth = self.position, 0
        while not self.at_end:
            char = self.current
            self.position += 1
            if char == "{":
                depth += 1
            elif char == "}":
                depth -= 1
                if depth == 0:
                    return self.text[start : self.position]
        raise self.error("the ${ that starts here is not closed", start)

    def unexpected(self) -> ConfigError:
        hint = _HINTS.get(self.current, "expected the end of the value")
        return self.error(f"unexpected {self.current}: {hint}", self.position)

    def error(self, problem: str, position: int) -> ConfigError:
        column = self.offset + position + 1
        return ConfigError(
            f"the override of {self.where} cannot be read at column {column}: {problem}", param=self.where
        )


def _typed(text: str) -> Scalar:
    # Nothing that can be escaped is part of a number or a name, so what was escaped stays text.
    if text.lower() in _NAMED:
        return _NAMED[text.lower()]
    if _INT_RE.fullmatch(text):
        return int(text)
    if _FLOAT_RE.fullmatch(text):
        return float(text)
    return text
