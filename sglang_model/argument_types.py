"""What a tool's parameter schema says about an argument that was sampled as plain text.

Formats such as qwen3_coder and glm45 write every argument as text; the JSON Schema of the tool tells a
number from a string. A text that does not fit its type stays the text it is: the agent can answer "not a
number", nothing is lost. Knows schemas, not formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from sglang_model.strict_json import JsonValue, decode

_SYNONYMS: Mapping[str, str] = {
    "bool": "boolean",
    "dict": "object",
    "double": "number",
    "float": "number",
    "int": "integer",
    "list": "array",
    "str": "string",
    "tuple": "array",
}
"""Names that tool collections use instead of JSON Schema's; SGLang's parsers take them too."""

_INTEGER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.0+)?")
_BOOLEANS: Mapping[str, bool] = {"true": True, "false": False}
_UNFIT = object()


class DeclaredTools:
    """The tools of one request by name: the first of a name counts, entries that are not tools are skipped.

    Takes both shapes of the OpenAI APIs, `{"function": {"name", "parameters"}}` and `{"name", "parameters"}`.
    """

    def __init__(self, tools: Iterable[object] | None) -> None:
        self._listed = tools is not None
        self._parameters: dict[str, Mapping[str, object]] = {}
        for tool in tools or ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if not isinstance(function, Mapping):
                continue
            name, parameters = function.get("name"), function.get("parameters")
            if isinstance(name, str):
                self._parameters.setdefault(name, parameters if isinstance(parameters, Mapping) else {})

    def declares(self, name: str) -> bool:
        """Whether a tool of this name is listed."""
        return name in self._parameters

    def rejects(self, name: str) -> bool:
        """Whether tools were listed, be it an empty list, and this is none of them."""
        return self._listed and name not in self._parameters

    def has_parameter(self, name: str, key: str) -> bool:
        """Whether the tool declares a parameter `key`."""
        return key in self._properties(name)

    def has_open_parameters(self, name: str) -> bool:
        """Whether nothing is known about the tool's parameters, so that any key may be one."""
        return not self._properties(name)

    def coerce(self, name: str, key: str, text: str) -> JsonValue:
        """The value of the argument `key` of the tool `name` that was sampled as `text`; without a schema,
        the text.
        """
        parameters = self._parameters.get(name, {})
        properties = self._properties(name)
        schema = properties[key] if key in properties else parameters.get("additionalProperties")
        return coerce_argument(text, schema, parameters)

    def _properties(self, name: str) -> Mapping[str, object]:
        properties = self._parameters.get(name, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}


def coerce_argument(text: str, schema: object, root: Mapping[str, object]) -> JsonValue:
    """Reads `text` as the first type of `schema` that it fits, the plain string last.

    `root` is where `#/...` references point into. Numbers, booleans and null must be written as JSON writes
    them (any case for booleans: templates render Python's `True`); `nan`, `yes`, `007` and `123_456` stay
    text, `5.0` is an integer as in JSON Schema. A member of `enum` and a value for a schema that says
    "string" only are taken verbatim.
    """
    types = _types(schema, root, set())
    if types <= {"string"} or (isinstance(schema, Mapping) and _is_member(text, schema.get("enum"))):
        return text
    if "null" in types and _is_null(text.strip(), or_python="string" not in types):
        return None
    for kind, read in _READERS.items():
        if kind in types and (value := read(text.strip())) is not _UNFIT:
            return value  # type: ignore[return-value]
    return text


def _is_member(text: str, enum: object) -> bool:
    return isinstance(enum, Sequence) and not isinstance(enum, str) and text in enum


def _is_null(text: str, *, or_python: bool) -> bool:
    return text == "null" or (or_python and text == "None")


def _types(schema: object, root: Mapping[str, object], seen: set[str]) -> set[str]:
    """The JSON types that a schema allows; empty when it does not say. `seen` are the references followed."""
    if not isinstance(schema, Mapping):
        return set()
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in seen:
            return set()
        seen.add(reference)
        return _types(_resolve(reference, root), root, seen)
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, Sequence) else []
    types = {_SYNONYMS.get(name, name) for name in names if isinstance(name, str)}
    for union in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(union)
        for branch in branches if isinstance(branches, Sequence) else ():
            types |= _types(branch, root, seen)
    types = types or _types_of_values(schema)
    return types | {"null"} if types and schema.get("nullable") is True else types


def _types_of_values(schema: Mapping[str, object]) -> set[str]:
    """What `enum`, `const` or a keyword of one type says in a schema without `type`."""
    enum = schema.get("enum")
    values: list[object] = [*enum] if isinstance(enum, list | tuple) else []
    if "const" in schema:
        values.append(schema["const"])
    if values:
        return {kind for value in values if (kind := _TYPE_NAMES.get(type(value))) is not None}
    if isinstance(schema.get("properties"), Mapping):
        return {"object"}
    return {"array"} if "items" in schema or "prefixItems" in schema else set()


_TYPE_NAMES: Mapping[type, str] = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "integer",
    list: "array",
    str: "string",
    type(None): "null",
}


def _resolve(reference: str, root: Mapping[str, object]) -> object:
    """The schema at a JSON pointer into `root`; None for anything else. Pydantic puts nested models under
    `$defs`.
    """
    if not reference.startswith("#"):
        return None
    place: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        if not isinstance(place, Mapping):
            return None
        place = place.get(step.replace("~1", "/").replace("~0", "~"))
    return place


def _read_integer(text: str) -> object:
    match = _INTEGER.fullmatch(text)
    decoded = None if match is None else decode(match[1])
    return _UNFIT if decoded is None else decoded.value


def _read_boolean(text: str) -> object:
    return _BOOLEANS.get(text.lower(), _UNFIT)


def _read_json(*kinds: type) -> Callable[[str], object]:
    def read(text: str) -> object:
        decoded = decode(text)
        return decoded.value if decoded is not None and type(decoded.value) in kinds else _UNFIT

    return read


_READERS: Mapping[str, Callable[[str], object]] = {
    "boolean": _read_boolean,
    "integer": _read_integer,
    "number": _read_json(int, float),
    "array": _read_json(list),
    "object": _read_json(dict),
}
