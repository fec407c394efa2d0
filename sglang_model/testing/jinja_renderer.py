"""Renders chat templates with jinja2 alone, the way Hugging Face's tokenizers do.

For tests and for the report over a directory of templates, where no tokenizer is at hand; a test compares
it with transformers 5.8.1. Production rendering is `renderer`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sglang_model.splice_types import Rendered, RenderFailed, RenderRequest


class _GenerationBlock(Extension):
    """`{% generation %}` marks sampled text for trainers; here it renders as its body."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        block = CallBlock(self.call_method("_body"), [], [], body)
        block.set_lineno(line)
        return block

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML; templates expect plain JSON.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> str:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)  # noqa: DTZ005 (local time, as transformers gives)


# A template is a program: any of its operations may not fit the messages.
_RAISED = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class JinjaRenderer:
    """One compiled template with its tokenizer's special-token variables. Renders the same request alike
    every time unless the template itself asks for the date.
    """

    def __init__(self, template: str, special_variables: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template = environment.from_string(template)
        self._variables = dict(special_variables or {})

    def __call__(self, request: RenderRequest) -> Rendered | RenderFailed:
        """Render, or say what the template or an operation in it raised."""
        variables: dict[str, object] = {**self._variables, **request.chat_template_kwargs}
        try:
            text = self._template.render(
                messages=[dict(message) for message in request.messages],
                tools=None if request.tools is None else [dict(tool) for tool in request.tools],
                documents=None,
                add_generation_prompt=request.add_generation_prompt,
                **variables,
            )
        except _RAISED as error:
            return RenderFailed(f"{type(error).__name__}: {error}")
        return Rendered(text)
