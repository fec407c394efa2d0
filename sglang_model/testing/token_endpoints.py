"""/tokenize, /detokenize, /parse_function_call and /separate_reasoning: the server's parts, one by one."""

from __future__ import annotations

from pydantic import ValidationError

from sglang_model.testing.body_checks import body_problem, validation_error, wrong_value
from sglang_model.testing.chat_endpoint import chat_prompt
from sglang_model.testing.chat_request import ChatRequest
from sglang_model.testing.exchange import Answer, Exchange
from sglang_model.testing.parsers import (
    knows_reasoning_parser,
    knows_tool_parser,
    parse_tool_calls,
    reasons_by_default,
    split_reasoning,
)
from sglang_model.testing.sampling import WireValueError
from sglang_model.testing.state import EngineState
from sglang_model.testing.wire_shapes import object_error


async def answer_tokenize(state: EngineState, exchange: Exchange) -> Answer:
    """Ids of a prompt, of each prompt of a list, or of a conversation rendered as chat renders it."""
    problem = body_problem(exchange)
    body = exchange.body
    if problem is not None or not isinstance(body, dict):
        return problem or Answer(None, 500)
    prompt, messages = body.get("prompt"), body.get("messages")
    if (prompt is None) == (messages is None):
        return wrong_value(body, "Exactly one of 'prompt' or 'messages' must be provided.")
    if prompt is not None and not isinstance(prompt, str | list):
        return wrong_value(prompt, "'prompt' must be a string or a list of strings.")
    limit = state.tokenizer.model_max_length
    if messages is not None:
        try:
            tokens = _conversation(state, body)
        except WireValueError as error:
            return Answer(object_error(error.message, "BadRequestError", 400), 400)
        except ValidationError as error:
            return validation_error(error)
        return Answer({"tokens": tokens, "count": len(tokens), "max_model_len": limit})
    if isinstance(prompt, list):
        lists = [state.tokenizer.encode(str(text)) for text in prompt]
        return Answer({"tokens": lists, "count": [len(ids) for ids in lists], "max_model_len": limit})
    ids = state.tokenizer.encode(str(prompt))
    return Answer({"tokens": ids, "count": len(ids), "max_model_len": limit})


def _conversation(state: EngineState, body: dict[str, object]) -> list[int]:
    request = ChatRequest.read(body, state.version)
    if not request.messages:
        raise WireValueError("Messages cannot be empty.")
    asked = body.get("add_generation_prompt")
    listens = state.version.tokenize_generation_prompt and isinstance(asked, bool)
    return chat_prompt(state, request, generation_prompt=bool(asked) if listens else None).ids


async def answer_detokenize(state: EngineState, exchange: Exchange) -> Answer:
    """Text of one id list or of several; special tokens are hidden unless asked for."""
    body = exchange.body
    tokens = body.get("tokens") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(tokens, list):
        return wrong_value(tokens, "'tokens' must be a list.")
    skip = bool(body.get("skip_special_tokens", True))
    nested = bool(tokens) and isinstance(tokens[0], list)
    lists = tokens if nested else [tokens]
    for ids in lists:
        if not all(isinstance(token_id, int) for token_id in ids):
            return wrong_value(ids, "'tokens' must hold integers.")
    texts = [state.tokenizer.decode(ids, skip_special_tokens=skip) for ids in lists]
    return Answer({"text": texts if nested else texts[0]})


async def answer_parse_function_call(state: EngineState, exchange: Exchange) -> Answer:
    """The tool parser of the chat endpoint, by name, on any text."""
    body = exchange.body if isinstance(exchange.body, dict) else {}
    parser = str(body.get("tool_call_parser")).lower()
    if not knows_tool_parser(parser):
        return Answer("Internal Server Error", 500, plain=True)
    if not body.get("tools"):
        return Answer({"normal_text": body.get("text"), "calls": []})
    names = [str(tool["function"]["name"]) for tool in body.get("tools") or []]
    parsed = parse_tool_calls(str(body.get("text", "")), names, parser, state.version)
    calls = [
        {"tool_index": call.tool_index, "name": call.name, "parameters": call.arguments}
        for call in parsed.calls or []
    ]
    return Answer({"normal_text": parsed.text, "calls": calls})


async def answer_separate_reasoning(state: EngineState, exchange: Exchange) -> Answer:
    """The reasoning parser of the chat endpoint, by name; here qwen3 does not force reasoning."""
    body = exchange.body if isinstance(exchange.body, dict) else {}
    parser = str(body.get("reasoning_parser")).lower()
    if not knows_reasoning_parser(parser):
        return Answer("Internal Server Error", 500, plain=True)
    forced = reasons_by_default(parser, enable_thinking=False)
    reasoning, text = split_reasoning(str(body.get("text", "")), state.version, forced=forced)
    return Answer({"reasoning_text": reasoning, "text": text})
