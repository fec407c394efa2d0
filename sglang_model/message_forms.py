"""The form in which chat messages reach a template, the same for full renderings and splices.

Clients send part lists, null contents and argument strings; templates differ in which of these they can
read. The rules are those of SGLang 0.5.13's own server (serving_chat.py, jinja_template_utils.py): text
parts become one string joined by a space where the template expects strings, keys with a null value are
left out, null content becomes "", argument strings are parsed into mappings. `MessageForms` says where a
template needs otherwise. Knows no renderer; never changes what it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nemo_gym.errors import RequestError

Message = Mapping[str, object]
"""A chat message, a tool or a tool call: a JSON object."""

RESERVED_TEMPLATE_KWARGS = frozenset(
    {"messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "return_dict", "conversation"}
)
"""Names that the renderer itself passes to the template call."""


class ArgumentForm(Enum):
    """How tool-call arguments reach the template."""

    MAPPING = "mapping"
    """Parsed; what SGLang's server sends and most templates expect."""
    STRING = "string"
    """JSON text; for templates that concatenate it (DeepSeek V3 and R1)."""


class EmptyContent(Enum):
    """What an assistant turn with tool calls and no text has as its content."""

    STRING = "string"
    """The empty string, as SGLang's server sends."""
    NULL = "null"
    """None; for templates that leave out the calls of a turn whose content is a string (DeepSeek V3)."""


class TextParts(Enum):
    """What becomes of a content that is a list of text parts."""

    JOINED = "joined"
    """One string, parts joined by a space."""
    KEPT = "kept"
    """The list, for templates that walk over parts; tool results are joined all the same."""
    WRAPPED = "wrapped"
    """A list, also where the client sent a string; for templates that read nothing else (Idefics, SmolVLM).
    """


class BadArguments(Enum):
    """What becomes of arguments that are not a JSON object, in a template that needs mappings."""

    KEPT = "kept"
    """The model's own text, as a string."""
    WRAPPED = "wrapped"
    """`{"arguments": text}`, so that one malformed call does not end the conversation."""


@dataclass(frozen=True)
class MessageForms:
    """The choices above, derived once per template by the start-up probe."""

    arguments: ArgumentForm = ArgumentForm.MAPPING
    empty_content: EmptyContent = EmptyContent.STRING
    text_parts: TextParts = TextParts.JOINED
    bad_arguments: BadArguments = BadArguments.KEPT


def normalise_messages(
    messages: Sequence[Message], forms: MessageForms, path: str = "messages"
) -> tuple[dict[str, object], ...]:
    """New messages in the form a template can read; raises RequestError, with the path of the field, on
    others.
    """
    return tuple(normalise_message(message, forms, f"{path}[{i}]") for i, message in enumerate(messages))


def normalise_message(message: Message, forms: MessageForms, path: str) -> dict[str, object]:
    """One new message in the form a template can read. Which roles a template knows is the template's
    business.
    """
    if not isinstance(message, (dict, Mapping)):
        raise RequestError(f"{path} is {_kind(message)}, expected an object", param=path)
    role = message.get("role")
    if not isinstance(role, str):
        raise RequestError(f"{path}.role is {_kind(role)}, expected a string", param=f"{path}.role")
    result = {key: value for key, value in message.items() if value is not None}
    calls = _tool_calls(result.pop("tool_calls", None), forms, f"{path}.tool_calls")
    if calls:
        result["tool_calls"] = calls
    joined = role == "tool" and forms.text_parts is TextParts.KEPT
    parts = TextParts.JOINED if joined else forms.text_parts
    result["content"] = _content(message.get("content"), parts, f"{path}.content")
    if calls and forms.empty_content is EmptyContent.NULL and not message_text(result):
        result["content"] = None
    return result


def message_text(message: Message) -> str:
    """The text of a normalised message's content; parts are run together."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return ""


def forms_ladder(messages: Sequence[Message], forms: MessageForms) -> tuple[MessageForms, ...]:
    """The forms to try on a conversation, the given one first; only those that make a difference to it.

    A template that raises on the form its profile names may still read another: one without argument
    mappings, or one whose conversation holds a call that is not JSON.
    """
    calls = [call for message in messages for call in _calls_of(message)]
    if not calls:
        return (forms,)
    mapping = forms.arguments is ArgumentForm.MAPPING
    string = forms.empty_content is EmptyContent.STRING
    other_arguments = ArgumentForm.STRING if mapping else ArgumentForm.MAPPING
    other_empty = EmptyContent.NULL if string else EmptyContent.STRING
    rungs = [
        replace(forms, arguments=arguments, empty_content=empty)
        for empty in (forms.empty_content, other_empty)
        for arguments in (forms.arguments, other_arguments)
    ]
    if forms.bad_arguments is BadArguments.KEPT and any(isinstance(parsed_arguments(c), str) for c in calls):
        rungs[1:1] = [replace(forms, bad_arguments=BadArguments.WRAPPED)]
    return tuple(rungs)


def parsed_arguments(call: Message) -> dict[str, object] | str:
    """A call's arguments as a JSON object, or the text itself where it is not one.

    Blank and null arguments are a call without arguments. Text that is not valid JSON, or valid JSON of
    another type, or JSON that spells half a surrogate pair (which no tokenizer can encode), stays what the
    model wrote.
    """
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, (dict, Mapping)) else None
    if arguments is None:
        return {}
    if isinstance(arguments, (dict, Mapping)):
        return dict(arguments)
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict) else text


def check_template_kwargs(kwargs: object, path: str = "chat_template_kwargs") -> Mapping[str, object]:
    """The keyword arguments of a template; raises RequestError when they are none or would shadow the
    renderer's.
    """
    if not isinstance(kwargs, (dict, Mapping)) or not all(isinstance(key, str) for key in kwargs):
        raise RequestError(f"{path} is {_kind(kwargs)}, expected an object", param=path)
    for name in sorted(RESERVED_TEMPLATE_KWARGS & kwargs.keys()):
        raise RequestError(
            f"{path}.{name} is set by the model server itself and cannot be given", param=f"{path}.{name}"
        )
    return kwargs


def _calls_of(message: Message) -> list[Message]:
    calls = message.get("tool_calls") if isinstance(message, (dict, Mapping)) else None
    return (
        [call for call in calls if isinstance(call, (dict, Mapping))]
        if isinstance(calls, list | tuple)
        else []
    )


def _content(content: object, parts: TextParts, path: str) -> str | list[dict[str, str]]:
    if content is None or isinstance(content, str):
        text = _encodable(content or "", path)
        return [{"type": "text", "text": text}] if parts is TextParts.WRAPPED else text
    if not isinstance(content, list | tuple):
        raise RequestError(
            f"{path} is {_kind(content)}, expected a string or a list of text parts", param=path
        )
    texts = [_part_text(part, f"{path}[{i}]") for i, part in enumerate(content)]
    if parts is not TextParts.JOINED and texts:
        return [{"type": "text", "text": text} for text in texts]
    return " ".join(texts)


def _part_text(part: object, path: str) -> str:
    if isinstance(part, str):
        return _encodable(part, path)
    if not isinstance(part, (dict, Mapping)):
        raise RequestError(f"{path} is {_kind(part)}, expected a text part", param=path)
    kind = part.get("type", "text")
    if kind != "text":
        name = kind if isinstance(kind, str) and len(kind) < 40 else _kind(kind)
        raise RequestError(
            f"{path} has type {name!r}; only parts of type 'text' can be rendered into a token-exact prompt",
            param=path,
            code="unsupported_content_part",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{path}.text is {_kind(text)}, expected a string", param=f"{path}.text")
    return _encodable(text, f"{path}.text")


def _encodable(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = (
            f"{path} holds half a surrogate pair at character {error.start}, which no tokenizer can encode"
        )
        raise RequestError(message, param=path) from None
    return text


def _tool_calls(calls: object, forms: MessageForms, path: str) -> list[dict[str, object]]:
    if calls is None:
        return []
    if not isinstance(calls, list | tuple):
        raise RequestError(f"{path} is {_kind(calls)}, expected a list", param=path)
    return [_tool_call(call, forms, f"{path}[{i}]") for i, call in enumerate(calls)]


def _tool_call(call: object, forms: MessageForms, path: str) -> dict[str, object]:
    if not isinstance(call, (dict, Mapping)):
        raise RequestError(f"{path} is {_kind(call)}, expected an object", param=path)
    function = call.get("function")
    if not isinstance(function, (dict, Mapping)):
        raise RequestError(
            f"{path}.function is {_kind(function)}, expected an object", param=f"{path}.function"
        )
    name = function.get("name")
    if not isinstance(name, str):
        raise RequestError(
            f"{path}.function.name is {_kind(name)}, expected a string", param=f"{path}.function.name"
        )
    arguments = argument_value(parsed_arguments(call), forms)
    shown = {key: value for key, value in call.items() if value is not None}
    return {**shown, "function": {**function, "arguments": arguments}}


def argument_value(arguments: dict[str, object] | str, forms: MessageForms) -> dict[str, object] | str:
    """Parsed arguments in the form a template needs."""
    if forms.arguments is ArgumentForm.STRING:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if isinstance(arguments, str) and forms.bad_arguments is BadArguments.WRAPPED:
        return {"arguments": arguments}
    return arguments


def _kind(value: object) -> str:
    return "missing or null" if value is None else f"of type {type(value).__name__}"
