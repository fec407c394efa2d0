"""Request fields between the two dialects: tools, the choice among them, formats, instructions.

Pure; knows nothing of messages' items, token ids or engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from nemo_gym.chat_types import (
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessageParam,
    NeMoGymChatCompletionSystemMessageParam,
)
from nemo_gym.converter_errors import unsupported
from nemo_gym.converter_items import text_of_parts
from nemo_gym.errors import RequestError
from nemo_gym.grown_list import GrownList, made_list_before, note_list
from nemo_gym.responses_types import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.tagged_union import described

Json = dict[str, object]

_TRANSLATED: Final = {"tools", "tool_choice", "parallel_tool_calls"}

SHARED_FIELDS: Final = tuple(
    name
    for name in NeMoGymResponseCreateParamsNonStreaming.model_fields
    if name in NeMoGymChatCompletionCreateParamsNonStreaming.model_fields and name not in _TRANSLATED
)
"""Fields with one name and one meaning in both dialects, SGLang's sampling extensions among them."""

_NEEDS_A_STORE: Final = ("previous_response_id", "conversation", "prompt", "background")


def refuse_stored_state(fields: Mapping[str, object]) -> None:
    """Raise for fields that refer to something kept on OpenAI's servers: ignoring them would change the
    prompt.
    """
    for name in _NEEDS_A_STORE:
        if fields.get(name):
            raise unsupported(name, "server-side state", "the whole conversation in `input`")


def refuse_several_answers(fields: Mapping[str, object]) -> None:
    """Raise for n > 1: a Response holds one answer, the others would be generated and lost."""
    n = fields.get("n")
    if isinstance(n, int) and n > 1:
        raise RequestError(f"n: a Response holds one answer, {n} were asked for", param="n")


def refuse_without_effect(fields: Mapping[str, object]) -> None:
    """Raise for what would be accepted and not done: nothing is ever cut, and a Response has no alternatives.

    `max_tool_calls` passes: it bounds the calls of hosted tools, which are refused, so it always holds.
    """
    if fields.get("truncation") not in (None, "disabled"):
        raise unsupported("truncation", "cutting the input to the context window", "disabled or null")
    if fields.get("top_logprobs"):
        raise unsupported("top_logprobs", "asking for alternative tokens in a Response", "0 or null")


def chat_fields(fields: Mapping[str, object]) -> Json:
    """The chat request's fields, messages apart, from those the caller set on a Responses request.

    A null means the default in both dialects and is left out, so that it cannot hide a configured value.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    chat = {name: given[name] for name in SHARED_FIELDS if name in given}
    if "max_output_tokens" in given:
        chat["max_tokens"] = given["max_output_tokens"]
    reasoning, text = given.get("reasoning"), given.get("text")
    if isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        chat["reasoning_effort"] = reasoning["effort"]
    if isinstance(text, Mapping):
        chat |= _text_fields(text, chat)
    return chat | _tool_fields(given)


def _text_fields(text: Mapping[str, object], chat: Json) -> Json:
    fields: Json = {}
    if text.get("verbosity") is not None:
        fields["verbosity"] = text["verbosity"]
    response_format = _response_format(text.get("format"))
    if response_format is not None:
        if "response_format" in chat:
            raise RequestError("text.format and response_format are both set; send one", param="text.format")
        fields["response_format"] = response_format
    return fields


def _response_format(text_format: object) -> Json | None:
    """Responses keeps a schema flat in `text.format`; Chat nests it under `json_schema`."""
    if not isinstance(text_format, Mapping):
        return None
    kind = text_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind != "json_schema":
        raise unsupported("text.format.type", described(kind), "text, json_object or json_schema")
    if not isinstance(text_format.get("name"), str) or not isinstance(text_format.get("schema"), Mapping):
        raise RequestError("text.format: a json_schema needs a name and a schema", param="text.format")
    schema = {name: value for name, value in text_format.items() if name != "type" and value is not None}
    return {"type": "json_schema", "json_schema": schema}


def _tool_fields(given: Mapping[str, object]) -> Json:
    """Tools in the Chat API's nesting. Without tools there is nothing to choose from: a choice is dropped
    or refused.
    """
    tools, choice = given.get("tools"), given.get("tool_choice")
    if not isinstance(tools, Sequence) or not tools:
        if choice == "required" or isinstance(choice, Mapping):
            raise RequestError(
                "tool_choice: this choice requires at least one tool in `tools`", param="tool_choice"
            )
        return {}
    fields: Json = {"tools": [_chat_tool(tool, index) for index, tool in enumerate(tools)]}
    if choice is not None:
        fields["tool_choice"] = chat_tool_choice(choice)
    if "parallel_tool_calls" in given:
        fields["parallel_tool_calls"] = given["parallel_tool_calls"]
    return fields


def _chat_tool(tool: Mapping[str, object], index: int) -> Json:
    if tool.get("type") != "function":
        raise unsupported(f"tools.{index}.type", f"tool type {described(tool.get('type'))}", "function")
    function = {name: value for name, value in tool.items() if name not in {"type", "strict"}}
    return {"type": "function", "function": function}


def chat_tool_choice(choice: object) -> object:
    """A named function sits flat in Responses and under `function` in Chat."""
    if isinstance(choice, str):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        if isinstance(choice.get("name"), str):
            return {"type": "function", "function": {"name": choice["name"]}}
        if isinstance(choice.get("function"), Mapping):
            return dict(choice)
    kind = described(choice.get("type")) if isinstance(choice, Mapping) else described(choice)
    raise unsupported("tool_choice", f"choice {kind}", "none, auto, required or a named function")


def with_instructions(
    messages: Sequence[NeMoGymChatCompletionMessageParam], instructions: str | None
) -> list[NeMoGymChatCompletionMessageParam]:
    """The messages led by one system message: the instructions, then the leading system and developer texts.

    Templates take one system message, at the start. The run ends at the first message that is not all text.
    """
    if not instructions:
        return list(messages)
    key = ("instructions", instructions)
    made: GrownList[NeMoGymChatCompletionMessageParam]
    done, made = made_list_before(messages, key)
    if not done:
        done = _leading_texts(messages)
        led = [
            text for message in messages[:done] if (text := text_of_parts(message.get("content"))) is not None
        ]
        content = "\n\n".join(filter(None, [instructions, *led]))
        made.append(NeMoGymChatCompletionSystemMessageParam(role="system", content=content))
    made.extend(messages[done:])
    if done < len(messages):  # else the next message may belong to the run
        note_list(messages, key, made, done=len(messages))
    return made


def _leading_texts(messages: Sequence[NeMoGymChatCompletionMessageParam]) -> int:
    """How many messages at the start are system's or developer's and all text."""
    for index, message in enumerate(messages):
        if message["role"] not in {"system", "developer"} or text_of_parts(message.get("content")) is None:
            return index
    return len(messages)


def responses_fields(fields: Mapping[str, object]) -> Json:
    """The Responses request's fields, input apart, from those the caller set on a chat request."""
    given = {name: value for name, value in fields.items() if value is not None}
    responses = {name: given[name] for name in SHARED_FIELDS if name in given}
    for name in ("max_tokens", "max_completion_tokens"):  # the newer name wins
        if name in given:
            responses["max_output_tokens"] = given[name]
    if "reasoning_effort" in given:
        responses["reasoning"] = {"effort": given["reasoning_effort"]}
    if "verbosity" in given:
        responses["text"] = {"verbosity": given["verbosity"]}
    tools, choice = given.get("tools"), given.get("tool_choice")
    if isinstance(tools, Sequence):
        responses["tools"] = [{"type": "function", **tool["function"]} for tool in tools]
    if choice is not None:
        responses["tool_choice"] = _responses_tool_choice(choice)
    if "parallel_tool_calls" in given:
        responses["parallel_tool_calls"] = given["parallel_tool_calls"]
    return responses


def _responses_tool_choice(choice: object) -> object:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    return {"type": "function", "name": function.get("name")} if isinstance(function, Mapping) else choice
