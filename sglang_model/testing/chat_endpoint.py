"""POST /v1/chat/completions, and the prompt rendering that /tokenize shares with it."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass

from pydantic import ValidationError

from sglang_model.testing.body_checks import body_problem, validation_error
from sglang_model.testing.chat_request import ChatRequest
from sglang_model.testing.chat_template import messages_for_template, tools_for_template
from sglang_model.testing.exchange import Answer, Exchange
from sglang_model.testing.generation import Sample
from sglang_model.testing.parsers import (
    knows_reasoning_parser,
    knows_tool_parser,
    parse_tool_calls,
    reasons_by_default,
    split_reasoning,
)
from sglang_model.testing.refusals import no_hidden_states, no_lora
from sglang_model.testing.sampling import WireValueError
from sglang_model.testing.state import EngineState
from sglang_model.testing.wire_shapes import Json, object_error, openai_logprobs, usage, weight_spans


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids of a rendered conversation, and the text of the final message that they continue."""

    ids: list[int]
    continued: str = ""


async def answer_chat(state: EngineState, exchange: Exchange) -> Answer:
    """One chat completion, or SGLang's refusal of it."""
    problem = body_problem(exchange)
    if problem is not None:
        return problem
    try:
        request = ChatRequest.read(exchange.body, state.version)
    except ValidationError as error:
        return validation_error(error)
    if isinstance(request.rid, list):
        message = "Internal server error: unhashable type: 'list'"
        return Answer(object_error(message, "InternalServerError", 500), 500)
    created = int(time.time())
    try:
        _validate(state, request)
        prompt = chat_prompt(state, request)
        params = request.sampling_params(state.settings.generation_config)
        samples = await state.generate(exchange, prompt.ids, params, request.rid)
    except WireValueError as error:
        return Answer(object_error(error.message, error.kind, 400), 400)
    choices = [_choice(state, request, sample, n, prompt) for n, sample in enumerate(samples)]
    metadata: Json = {"weight_version": state.settings.weight_version}
    if state.version.weight_versions:
        metadata["weight_versions"] = weight_spans(samples[0], state.settings.weight_version)
    payload: Json = {
        "id": samples[0].rid,
        "object": "chat.completion",
        "created": created,
        "model": request.model,
        "choices": choices,
        "usage": usage(samples, state.version, request.n),
        "metadata": metadata,
    }
    sglext = _sglext(request, samples)
    return Answer({**payload, "sglext": sglext} if sglext else payload)


def _validate(state: EngineState, request: ChatRequest) -> None:
    if not request.messages:
        raise WireValueError("Messages cannot be empty.")
    if request.tool_choice == "required" and not request.tools:
        raise WireValueError("Tools cannot be empty if tool choice is set to required.")
    if not isinstance(request.tool_choice, str):
        name = request.tool_choice.function.name
        if not request.tools:
            raise WireValueError("Tools cannot be empty if tool choice is set to a specific tool.")
        if all(tool.function.name != name for tool in request.tools):
            raise WireValueError(f"Tool '{name}' not found in tools list.")
    settings = state.settings
    limit = settings.context_length
    wanted = request.max_completion_tokens or request.max_tokens or 0
    if settings.context_length_flag and not settings.allow_auto_truncate and wanted > limit:
        raise WireValueError(
            f"max_completion_tokens is too large: {wanted}."
            f"This model supports at most {limit} completion tokens."
        )
    if request.stream:
        _refuse_stream(request)
    if request.n == 0:
        raise WireValueError("range() arg 3 must not be zero", kind="BadRequest")
    if request.adapter is not None:
        raise WireValueError(no_lora(request.adapter))
    if request.return_hidden_states:
        raise WireValueError(no_hidden_states(modes=state.version.weight_versions))


def _refuse_stream(request: ChatRequest) -> None:
    for name in ("return_prompt_token_ids", "return_meta_info"):
        if getattr(request, name):
            raise WireValueError(
                f"{name} is not supported with streaming. Please set stream=false when using {name}=true.",
                kind="BadRequest",
            )
    raise WireValueError("The embedded engine does not stream: send stream=false.", kind="BadRequest")


def chat_prompt(state: EngineState, request: ChatRequest, *, generation_prompt: bool | None = None) -> Prompt:
    """The prompt of a conversation, or the ids that the client sent instead (not on 0.5.12).

    Raises WireValueError with the template's or the JSON parser's message.

    `generation_prompt` is what /tokenize was asked for, on the versions that listen: False also leaves a
    trailing assistant message what it is.
    """
    if request.input_ids is not None:
        return Prompt(request.input_ids)
    try:
        messages = messages_for_template(request.template_messages(), state.version)
    except ValueError as error:
        raise WireValueError(str(error), kind="BadRequest") from error
    continued = ""
    last = messages[-1]
    if last["role"] == "assistant" and (generation_prompt is None or request.continue_final_message):
        if request.continue_final_message:
            continued = str(messages.pop()["content"])
        else:
            messages[-1] = {"role": "user", "content": last["content"]}
    tools = tools_for_template(request.offered_tools(), state.version) if request.uses_tools else None
    kwargs: Json = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    try:
        text = state.template.render(
            messages, tools, kwargs, add_generation_prompt=generation_prompt is not False
        )
    except ValueError as error:
        raise WireValueError(str(error), kind="BadRequest") from error
    # Encoded apart from the rest, as SGLang does: a seam that a whole encoding would not have.
    return Prompt(state.tokenizer.encode(text) + state.tokenizer.encode(continued), continued)


def _choice(state: EngineState, request: ChatRequest, sample: Sample, index: int, prompt: Prompt) -> Json:
    version = state.version
    meta = state.meta_info.build(
        sample, logprobs=request.logprobs, top_logprobs=request.top_logprobs or 0, with_text=True
    )
    message, finish = _message(state, request, sample, prompt)
    meta["finish_reason"] = finish
    choice: Json = {
        "index": index,
        "message": message,
        "logprobs": openai_logprobs(meta, state.tokenizer, version) if request.logprobs else None,
        "finish_reason": finish["type"],
        "matched_stop": finish.get("matched"),
    }
    echoes = request.return_prompt_token_ids or request.return_token_ids
    if echoes and (not sample.queued or version.queued_abort_prompt_ids):
        choice["prompt_token_ids"] = list(sample.echoed_prompt_ids)
    if request.return_token_ids:
        choice["response_token_ids"] = list(sample.token_ids)
    if request.return_meta_info:
        choice["meta_info"] = meta
    return choice


def _message(state: EngineState, request: ChatRequest, sample: Sample, prompt: Prompt) -> tuple[Json, Json]:
    """The assistant message as the server's parsers leave it, and the finish reason that they rewrite."""
    version, settings = state.version, state.settings
    text, reasoning = sample.text, ""
    parser = settings.reasoning_parser
    if parser is not None and knows_reasoning_parser(parser) and request.separate_reasoning:
        forced = reasons_by_default(parser, enable_thinking=request.thinking)
        reasoning, text = split_reasoning(text, version, forced=forced, before=prompt.continued)
    finish = dict(sample.finish_reason)
    calls: list[Json] | None = None
    tools = settings.tool_call_parser
    if request.uses_tools and tools is not None and knows_tool_parser(tools):
        names = [tool.function.name for tool in request.tools or []]
        parsed = parse_tool_calls(text, names, tools, version)
        text = parsed.text
        if parsed.calls is not None:
            calls = [
                {
                    "id": f"call_{uuid.uuid4().hex[:24]}",
                    "index": order if version.ordinal_tool_index else call.tool_index,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for order, call in enumerate(parsed.calls)
            ]
            if finish["type"] == "stop" and (calls or not version.drops_tool_markup):
                finish = {"type": "tool_calls", "matched": None}
    message: Json = {
        "role": "assistant",
        "content": text if text or not version.strips_text else None,
        "reasoning_content": reasoning or None,
        "tool_calls": calls,
    }
    if not version.null_tool_calls and not calls:
        del message["tool_calls"]
    return message, finish


def _sglext(request: ChatRequest, samples: list[Sample]) -> Json:
    extension: Json = {}
    if request.return_input_ids_in_sglext:
        extension["input_ids"] = list(samples[0].echoed_prompt_ids)
    if request.return_output_ids_in_sglext:
        extension["output_ids"] = [list(sample.token_ids) for sample in samples]
    return extension
