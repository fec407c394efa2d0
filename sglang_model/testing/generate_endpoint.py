"""POST or PUT /generate: one prompt or a batch, token ids in and out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_model.testing.body_checks import is_json, schema_error, unreadable, wrong_value
from sglang_model.testing.exchange import Answer, Exchange
from sglang_model.testing.generation import Sample
from sglang_model.testing.refusals import no_hidden_states, no_lora
from sglang_model.testing.sampling import (
    SamplingParams,
    ServerFaultError,
    TypedParamError,
    WireValueError,
    sampling_params_from_wire,
)
from sglang_model.testing.state import EngineState
from sglang_model.testing.wire_shapes import Json, native_error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The top-level fields of the body that shape the answer."""

    logprobs: bool
    top_logprobs: int
    with_text: bool
    logprob_start: int
    watched_ids: tuple[int, ...]
    prompt_ids: bool


async def answer_generate(state: EngineState, exchange: Exchange) -> Answer:
    """One generation, or a list of them for a batch, a batch of one, or n > 1."""
    body = exchange.body
    if is_json(exchange) and (problem := unreadable(exchange)) is not None:
        return problem
    if not is_json(exchange) or not isinstance(body, dict):
        return _not_an_object(body)
    problem = _wrong_types(body)
    if problem is not None:
        return problem
    try:
        return await _answer(state, exchange, body)
    except WireValueError as error:
        return Answer(native_error(error.message), 400)
    except TypedParamError as error:
        return Answer({"error": str(error)}, 400)
    except ServerFaultError:
        return Answer("Internal Server Error", 500, plain=True)


def _wrong_types(body: Mapping[str, object]) -> Answer | None:
    """What SGLang's dataclass refuses before anything is looked at."""
    ids, params = body.get("input_ids"), body.get("sampling_params")
    if ids is not None and not isinstance(ids, list):
        return wrong_value(ids, f"must be list or null; got {type(ids).__name__}", "input_ids")
    for item in ids or []:
        if not isinstance(item, int | list):
            message = f"elements must be int or list; got {type(item).__name__}"
            return wrong_value(ids, message, "input_ids")
    if params is not None and not isinstance(params, list | dict):
        return wrong_value(params, "Input should be a valid dictionary", "sampling_params")
    return None


async def _answer(state: EngineState, exchange: Exchange, body: Mapping[str, object]) -> Answer:
    if body.get("stream"):
        raise WireValueError("The embedded engine does not stream: send stream=false.")
    prompts, is_batch = _prompts(state, body)
    _refuse(state, body)
    raw = body.get("sampling_params")
    per_prompt = raw if isinstance(raw, list) else [raw] * len(prompts)
    params = [sampling_params_from_wire(item, state.version) for item in per_prompt]
    rids = _rids(body.get("rid"), len(prompts))
    if not len(prompts) == len(params) == len(rids):
        raise WireValueError(
            f"A batch of {len(prompts)} prompts came with {len(params)} sampling_params and {len(rids)} rids."
        )
    jobs = zip(prompts, params, rids, strict=True)
    groups = await _gather(state, exchange, list(jobs), body)
    options = _options(state, body)
    items = [_item(state, sample, options) for group in groups for sample in group]
    return Answer(items if is_batch or len(items) > 1 else items[0])


async def _gather(
    state: EngineState,
    exchange: Exchange,
    jobs: list[tuple[list[int], SamplingParams, str | None]],
    body: Mapping[str, object],
) -> list[list[Sample]]:
    """All prompts at once; the first that is refused refuses the batch."""
    start = body.get("logprob_start_len")
    for prompt, _, _ in jobs:
        if body.get("return_logprob") and isinstance(start, int) and start > len(prompt):
            raise WireValueError(
                f"req.logprob_start_len={start} is higher than the number of input tokens "
                f"len(req.origin_input_ids)={len(prompt)}. Please use a smaller logprob_start_len."
            )
    runs = (state.generate(exchange, prompt, params, rid) for prompt, params, rid in jobs)
    return list(await asyncio.gather(*runs))


def _prompts(state: EngineState, body: Mapping[str, object]) -> tuple[list[list[int]], bool]:
    """The prompts as ids, and whether the client sent a batch. Ids win over text, as in SGLang."""
    ids, text = body.get("input_ids"), body.get("text")
    if isinstance(ids, list):
        if ids and isinstance(ids[0], list):
            return [list(prompt) for prompt in ids], True
        return [list(ids)], False
    if isinstance(text, list):
        return [state.tokenizer.encode(str(prompt)) for prompt in text], True
    if isinstance(text, str):
        return [state.tokenizer.encode(text)], False
    raise WireValueError("Either text, input_ids or input_embeds should be provided.")


def _refuse(state: EngineState, body: Mapping[str, object]) -> None:
    session = body.get("session_params")
    if isinstance(session, dict) and session.get("id") is not None:
        raise WireValueError(f"Invalid request: session id {session['id']} does not exist")
    if body.get("lora_path") is not None:
        raise WireValueError(no_lora(str(body["lora_path"])))
    if body.get("return_hidden_states"):
        raise WireValueError(no_hidden_states(modes=state.version.weight_versions))


def _rids(rid: object, count: int) -> Sequence[str | None]:
    if isinstance(rid, list):
        return [str(item) for item in rid]
    if isinstance(rid, str):
        return [rid] if count == 1 else [f"{rid}_{position}" for position in range(count)]
    return [None] * count


def _options(state: EngineState, body: Mapping[str, object]) -> _Options:
    top, start = body.get("top_logprobs_num"), body.get("logprob_start_len")
    watched, echo = body.get("token_ids_logprob"), "return_prompt_token_ids"
    return _Options(
        logprobs=bool(body.get("return_logprob")),
        top_logprobs=top if isinstance(top, int) else 0,
        with_text=bool(body.get("return_text_in_logprobs")),
        logprob_start=start if isinstance(start, int) else -1,
        watched_ids=tuple(watched) if isinstance(watched, list) else (),
        prompt_ids=bool(body.get(echo)) and echo not in state.version.unknown_fields,
    )


def _item(state: EngineState, sample: Sample, options: _Options) -> Json:
    item: Json = {
        "text": sample.text,
        "output_ids": list(sample.token_ids),
        "meta_info": state.meta_info.build(
            sample,
            logprobs=options.logprobs,
            top_logprobs=options.top_logprobs,
            with_text=options.with_text,
            logprob_start=options.logprob_start,
            watched_ids=options.watched_ids,
        ),
    }
    if options.prompt_ids:
        item["prompt_token_ids"] = list(sample.echoed_prompt_ids)
    return item


def _not_an_object(body: object) -> Answer:
    return schema_error(
        [
            {
                "type": "dataclass_type",
                "loc": ("body",),
                "msg": "Input should be a dictionary or an instance of GenerateReqInput",
                "input": body.encode() if isinstance(body, str) else body,
                "ctx": {"class_name": "GenerateReqInput"},
            }
        ]
    )
