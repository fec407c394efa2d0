"""`sampling_params` as SGLang reads them: defaults, types, bounds, and the errors of each version.

Pure: no HTTP and no tokenizer. `WireValueError` is a plain 400 whose body the endpoint shapes;
`TypedParamError` is the 400 with a string error of 0.5.23; `ServerFaultError` is the plain-text 500 of the
older versions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from sglang_model.testing.versions import WireVersion


class WireValueError(ValueError):
    """A request that SGLang refuses with 400. `kind` is the `type` of chat's error object."""

    def __init__(self, message: str, *, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


class TypedParamError(ValueError):
    """A bad name or type in `sampling_params` on 0.5.23: 400 `{"error": "..."}`."""


class ServerFaultError(RuntimeError):
    """What SGLang does not catch: 500 with the plain text "Internal Server Error"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One generation's parameters. Field order is the order in which 0.5.23 lists the names it knows."""

    max_new_tokens: int | None = 128
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    n: int = 1
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: Mapping[str, float] | None = None
    sampling_seed: int | None = None
    custom_params: Mapping[str, object] | None = field(default=None, compare=False)

    def verify(self, vocab_size: int, version: WireVersion) -> None:
        """Raises WireValueError with SGLang's wording for the first bound that is broken."""
        for broken, message in self._bounds(vocab_size, version):
            if broken:
                raise WireValueError(message)

    def _bounds(self, vocab_size: int, version: WireVersion) -> list[tuple[bool, str]]:
        hot = self.temperature
        new = self.max_new_tokens
        floor = self.min_new_tokens
        grammars = [self.json_schema, self.regex, self.ebnf]
        one_grammar = "Only one of regex, json_schema, or ebnf can be set."
        temperature = f"temperature must be non-negative, got {hot}."
        if version.typed_sampling_errors:
            grammars.append(self.structural_tag)
            one_grammar = "Only one of json_schema, regex, ebnf, or structural_tag can be set."
            temperature = f"temperature must be a non-negative finite number, got {hot}."
        return [
            (not math.isfinite(hot) or hot < 0, temperature),
            (not 0 < self.top_p <= 1, f"top_p must be in (0, 1], got {self.top_p}."),
            (not 0 <= self.min_p <= 1, f"min_p must be in [0, 1], got {self.min_p}."),
            (
                self.top_k < 1 and self.top_k != -1,
                f"top_k must be -1 (disable) or at least 1, got {self.top_k}.",
            ),
            (
                not -2 <= self.frequency_penalty <= 2,
                f"frequency_penalty must be in [-2, 2], got {self.frequency_penalty}.",
            ),
            (
                not -2 <= self.presence_penalty <= 2,
                f"presence_penalty must be in [-2, 2], got {self.presence_penalty}.",
            ),
            (
                not 0 < self.repetition_penalty <= 2,
                f"repetition_penalty must be in (0, 2] (1.0 = no penalty), got {self.repetition_penalty}.",
            ),
            (floor < 0, f"min_new_tokens must be in [0, max_new_tokens], got {floor}."),
            (new is not None and new < 0, f"max_new_tokens must be at least 0, got {new}."),
            (
                new is not None and floor > new,
                f"min_new_tokens must be in [0, max_new_tokens({new})], got {floor}.",
            ),
            *self._bias_bounds(vocab_size),
            (sum(grammar is not None for grammar in grammars) > 1, one_grammar),
        ]

    def _bias_bounds(self, vocab_size: int) -> list[tuple[bool, str]]:
        bounds = []
        for key in self.logit_bias or {}:
            number = int(key) if key.lstrip("-").isdigit() else None
            bounds.append((number is None, f"invalid literal for int() with base 10: '{key}'"))
            outside = number is not None and not 0 <= number < vocab_size
            bounds.append((outside, f"logit_bias must has keys in [0, {vocab_size - 1}], got {key}."))
        return bounds


_NAMES = tuple(item.name for item in fields(SamplingParams))
_KNOWN_TO_0_5_23 = (*_NAMES, "beam_width", "watermark", "choice")
_INTEGERS = {
    "max_new_tokens",
    "top_k",
    "min_new_tokens",
    "n",
    "stream_interval",
    "sampling_seed",
}
_NUMBERS = {
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
}
_BOOLEANS = {"ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"}
_TEXTS = {"json_schema", "regex", "ebnf", "structural_tag"}
_TEXT_LISTS = {"stop", "stop_regex"}


def sampling_params_from_wire(raw: object, version: WireVersion) -> SamplingParams:
    """Reads `/generate`'s `sampling_params`; null means the default, except for `n` and `max_new_tokens`.

    Raises TypedParamError (0.5.23) or ServerFaultError (before) for unknown names and wrong types.
    """
    if raw is None:
        return SamplingParams()
    if not isinstance(raw, dict):
        raise ServerFaultError("sampling_params is not an object")
    values: dict[str, object] = {}
    for name, value in raw.items():
        if name not in _NAMES:
            _refuse_name(str(name), version)
            continue
        if value is None:
            if name == "n":
                raise ServerFaultError("n is null")
            if name == "max_new_tokens":
                values[name] = None
            continue
        values[name] = _typed(str(name), value, version)
    return SamplingParams(**values)  # type: ignore[arg-type]


def _refuse_name(name: str, version: WireVersion) -> None:
    if not version.typed_sampling_errors:
        raise ServerFaultError(f"unexpected sampling parameter {name}")
    if name not in _KNOWN_TO_0_5_23:
        known = ", ".join(f"`{item}`" for item in _KNOWN_TO_0_5_23)
        raise TypedParamError(f"unknown field `{name}`, expected one of {known}")


def _typed(name: str, value: object, version: WireVersion) -> object:
    """`value` in the shape `SamplingParams` keeps, or the version's error for a wrong type.

    The older versions compare numbers, and so fall over what is none; they look at nothing else.
    """
    if name in _INTEGERS:
        return _check(value, lambda v: isinstance(v, int) and not isinstance(v, bool), "i64", version)
    if name in _NUMBERS:
        return _check(value, lambda v: isinstance(v, int | float) and not isinstance(v, bool), "f64", version)
    if name in _BOOLEANS | _TEXTS and not version.typed_sampling_errors:
        return bool(value) if name in _BOOLEANS else value
    if name in _BOOLEANS:
        return _check(value, lambda v: isinstance(v, bool), "a boolean", version)
    if name in _TEXTS:
        return _check(value, lambda v: isinstance(v, str), "a string", version)
    if name in _TEXT_LISTS:
        if isinstance(value, str):
            return (value,)
        expected = "a value or an array of values for StringOrList"
        return tuple(_as_list(value, lambda v: isinstance(v, str), expected, version))
    if name == "stop_token_ids" and not version.typed_sampling_errors and isinstance(value, list):
        return tuple(_stop_id(item) for item in value if item is not None)
    if name == "stop_token_ids":
        checked = _as_list(value, lambda _: True, "a sequence", version)
        return tuple(_check(item, lambda v: isinstance(v, int), "i64", version) for item in checked)
    if name == "logit_bias":
        return _check(value, lambda v: isinstance(v, dict), "a map", version)
    return value


def _stop_id(value: object) -> int:
    """The older versions convert: "12" is an id, and "a" is a 400 with Python's words."""
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except ValueError as error:
        raise WireValueError(str(error)) from error


def _as_list(
    value: object, accepts: Callable[[object], bool], expected: str, version: WireVersion
) -> list[object]:
    checked = _check(
        value, lambda v: isinstance(v, list) and all(accepts(item) for item in v), expected, version
    )
    return list(checked) if isinstance(checked, list) else []


def _check(value: object, accepts: Callable[[object], bool], expected: str, version: WireVersion) -> object:
    if accepts(value):
        return value
    if version.typed_sampling_errors:
        raise TypedParamError(f"invalid type: {_named(value)}, expected {expected}")
    raise ServerFaultError(f"sampling parameter has the wrong type, expected {expected}")


def _named(value: object) -> str:
    """A value as 0.5.23's (Rust) reader calls it."""
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{value}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"
