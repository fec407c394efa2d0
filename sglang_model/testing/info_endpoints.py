"""What the server says about itself, its liveness, and /abort_request."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from sglang_model.testing.exchange import Answer, Exchange
from sglang_model.testing.limits import max_input_length, pool_size
from sglang_model.testing.parsers import REPORTED_PARSER
from sglang_model.testing.state import EngineState
from sglang_model.testing.wire_shapes import Json, object_error


async def answer_root(_state: EngineState, _exchange: Exchange) -> Answer:
    """A JSON string, quotes and all."""
    return Answer("SGLang is running")


async def answer_empty(_state: EngineState, _exchange: Exchange) -> Answer:
    """/health, /health_generate and /ping: 200 without a body."""
    return Answer(None)


async def answer_not_found(_state: EngineState, _exchange: Exchange) -> Answer:
    return Answer({"detail": "Not Found"}, 404)


async def answer_not_allowed(_state: EngineState, _exchange: Exchange) -> Answer:
    return Answer({"detail": "Method Not Allowed"}, 405)


async def answer_models(state: EngineState, exchange: Exchange) -> Answer:
    """The one model, with the context length that really holds; or one model by name."""
    card = _model_card(state)
    name = exchange.record.path.removeprefix("/v1/models").strip("/")
    if not name:
        return Answer({"object": "list", "data": [card]})
    if name == state.settings.served_model_name:
        return Answer(card)
    error = {
        "message": f"The model '{name}' does not exist",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    return Answer({"error": error}, 404)


def _model_card(state: EngineState) -> Json:
    name = state.settings.served_model_name
    return {
        "id": name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": state.settings.context_length,
    }


async def answer_model_info(state: EngineState, _exchange: Exchange) -> Answer:
    settings = state.settings
    info: Json = {
        "model_path": settings.model_path,
        "tokenizer_path": settings.model_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": settings.weight_version,
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
    }
    if state.version.weight_versions:
        info |= {
            "served_model_name": settings.served_model_name,
            "load_format": "auto",
            "reasoning_parser": settings.reasoning_parser,
            "tool_call_parser": _reported(settings.tool_call_parser),
            "disaggregation_mode": "null",
        }
    return Answer(info)


async def answer_server_info(state: EngineState, _exchange: Exchange) -> Answer:
    """The flags that a client may look at; SGLang sends some 400. The API key is in clear text, as there."""
    settings = state.settings
    info: Json = {
        "model_path": settings.model_path,
        "tokenizer_path": settings.model_path,
        "served_model_name": settings.served_model_name,
        "context_length": settings.context_length if settings.context_length_flag else None,
        "api_key": settings.api_key,
        "admin_api_key": None,
        "tool_call_parser": _reported(settings.tool_call_parser),
        "reasoning_parser": settings.reasoning_parser,
        "chat_template": str(settings.chat_template_path) if settings.chat_template_path else None,
        "sampling_defaults": "model",
        "preferred_sampling_params": None,
        "allow_auto_truncate": settings.allow_auto_truncate,
        "skip_tokenizer_init": False,
        "enable_deterministic_inference": False,
        "enable_return_routed_experts": False,
        "enable_return_hidden_states": False,
        "incremental_streaming_output": False,
        "speculative_algorithm": None,
        "tokenizer_worker_num": 1,
        "dp_size": 1,
        "tp_size": 1,
        "page_size": 1,
        "enable_lora": None,
        "random_seed": settings.seed,
        "weight_version": settings.weight_version,
        "status": "ready",
        "max_total_num_tokens": pool_size(settings),
        "max_req_input_len": max_input_length(settings),
        "internal_states": [{"memory_usage": {"token_capacity": pool_size(settings)}}],
        "version": settings.version,
    }
    return Answer(info)


def _reported(parser: str | None) -> str | None:
    return None if parser is None else REPORTED_PARSER.get(parser, parser)


async def answer_loads(state: EngineState, _exchange: Exchange) -> Answer:
    loads: Json = {"timestamp": datetime.now(UTC).isoformat(), "version": state.settings.version, "loads": []}
    if state.version.weight_versions:
        loads |= {"accelerator": None, "num_accelerators": 1}
    return Answer(loads)


async def answer_get_load(state: EngineState, exchange: Exchange) -> Answer:
    """Gone in 0.5.23."""
    if state.version.weight_versions:
        return await answer_not_found(state, exchange)
    return Answer([])


async def answer_weight_version(state: EngineState, exchange: Exchange) -> Answer:
    """Gone in every version; the older two say where to look instead."""
    if state.version.weight_versions:
        return await answer_not_found(state, exchange)
    message = (
        "Endpoint '/get_weight_version' or '/weight_version' is deprecated. Please use '/model_info' instead."
    )
    return Answer(object_error(message, "404", 404), 404)


async def answer_abort(state: EngineState, exchange: Exchange) -> Answer:
    """Cancels by rid prefix, or everything; says 200 without a body whether or not anything was found."""
    body = exchange.body if isinstance(exchange.body, dict) else {}
    rid = body.get("rid")
    if body.get("abort_all"):
        state.scheduler.abort("", everything=True)
    elif isinstance(rid, str) and rid:
        state.scheduler.abort(rid)
    return Answer(None)
