"""Renders messages into a prompt the way SGLang's chat endpoint does, template included.

It copies what the server does around the template, because that is where a server-side prompt differs from a
local one: tools go through a model (keys reordered, `strict` and `defer_loading` added), None becomes "",
argument strings become objects, a trailing assistant message becomes the user's. It knows no HTTP and samples
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import orjson
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sglang_model.testing.versions import WireVersion

JsonObject = dict[str, object]

BUILTIN_TEMPLATE = """
{%- macro text(content) %}
    {%- if content is string %}
        {{- content }}
    {%- elif content is not none %}
        {%- for part in content %}
            {{- part.text }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(question=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set ns.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- set has_system = messages and messages[0].role == 'system' %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if has_system %}
        {{- text(messages[0].content) + '\\n\\n' }}
    {%- endif %}
    {{- 'You can call these functions:\\n<tools>\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- '</tools>\\n' }}
    {{- 'A call is one JSON object with "name" and "arguments", written between <tool_call> and ' }}
    {{- '</tool_call> tags that stand on lines of their own.<|im_end|>\\n' }}
{%- elif has_system %}
    {{- '<|im_start|>system\\n' + text(messages[0].content) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set said = text(message.content) %}
        {%- set thought = message.reasoning_content or '' %}
        {%- if not thought and '</think>' in said %}
            {%- set thought = said.split('</think>')[0].split('<think>')[-1] %}
            {%- set said = said.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if thought and loop.index0 > ns.question %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + said.lstrip('\\n') }}
        {%- else %}
            {{- said }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if said or not loop.first %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
            {%- set given = call.function.arguments %}
            {{- given if given is string else given | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or loop.previtem.role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + text(message.content) + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + text(message.content) + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
"""ChatML with Hermes tool calls. Thinking of turns before the last user message is dropped, as Qwen3's
template does: what the server renders from the history then differs from what was sampled, which is the trap
this project is about."""


class ChatTemplate:
    """A compiled template. Environment as in transformers: trimmed blocks, `tojson` without escapes."""

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        self.source = source
        self._template = environment.from_string(source)

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """The folder's `chat_template.jinja`, else the one inside `tokenizer_config.json`, else None."""
        file = folder / "chat_template.jinja"
        if file.exists():
            return cls(file.read_text(encoding="utf-8"))
        config = folder / "tokenizer_config.json"
        source = orjson.loads(config.read_bytes()).get("chat_template") if config.exists() else None
        return cls(source) if isinstance(source, str) else None

    def render(
        self,
        messages: Sequence[JsonObject],
        tools: Sequence[JsonObject] | None,
        kwargs: Mapping[str, object],
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Tries the OpenAI tool wrappers first and the bare functions second, as SGLang does.

        Raises ValueError with the template's own message when both fail.
        """
        variables = {"messages": messages, "add_generation_prompt": add_generation_prompt, **kwargs}
        try:
            return self._template.render(tools=tools, **variables)
        except (TemplateError, TypeError):
            bare = [tool.get("function", tool) for tool in tools] if tools else None
        try:
            return self._template.render(tools=bare, **variables)
        except (TemplateError, TypeError) as error:
            raise ValueError(str(error)) from error


def _tojson(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def tools_for_template(tools: Sequence[JsonObject], version: WireVersion) -> list[JsonObject]:
    """The tool list as the template sees it: through SGLang's models, never the client's own dictionaries."""
    return [_tool_for_template(tool, version) for tool in tools]


def _tool_for_template(tool: JsonObject, version: WireVersion) -> JsonObject:
    sent = tool.get("function")
    sent = sent if isinstance(sent, dict) else {}
    known = {
        "description": sent.get("description"),
        "name": sent.get("name"),
        "parameters": sent.get("parameters"),
    }
    if version.tools_as_sent:
        known["strict"] = sent.get("strict")
        order = [*(key for key in sent if key in known), *(key for key in known if key not in sent)]
        function = {key: known[key] for key in order if key != "strict" or known[key] is not None}
    else:
        function = {**known, "strict": bool(sent.get("strict", False))}
    return {
        "type": tool.get("type", "function"),
        "function": function,
        "defer_loading": tool.get("defer_loading"),
    }


def messages_for_template(messages: Sequence[JsonObject], version: WireVersion) -> list[JsonObject]:
    """Messages as SGLang hands them to the template.

    Raises ValueError with the version's wording for a history tool call whose arguments are not JSON.
    """
    return [_message_for_template(message, version) for message in messages]


def _message_for_template(message: JsonObject, version: WireVersion) -> JsonObject:
    content = message.get("content")
    if isinstance(content, list):
        parts = [part["text"] for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = " ".join(str(part) for part in parts)
    kept = {key: value for key, value in message.items() if value is not None}
    kept["content"] = "" if content is None else content
    calls = message.get("tool_calls")
    if message.get("role") == "assistant" and isinstance(calls, list):
        kept["tool_calls"] = [_call_for_template(call, version) for call in calls]
    return kept


def _call_for_template(call: JsonObject, version: WireVersion) -> JsonObject:
    function = call.get("function")
    function = dict(function) if isinstance(function, dict) else {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        function["arguments"] = _parse_arguments(arguments, version)
    return {"id": call.get("id"), "index": call.get("index"), "type": "function", "function": function}


def _parse_arguments(arguments: str, version: WireVersion) -> object:
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError as error:
        if version.tools_as_sent:
            raise ValueError("Assistant tool call function.arguments must be valid JSON.") from error
        raise
