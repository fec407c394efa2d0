"""Runs one of our servers and counts where its CPU goes, by stage of a turn.

    PROFILE_OUT=FILE python benchmarks/profiled_server.py sglang_model/app.py

SIGUSR1 writes the counts since the last SIGUSR1 to the file, as a JSON object. A sample belongs to the innermost frame
of the event loop's thread that `STAGES` knows; what the library's threads do meanwhile is counted there as well.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import orjson

OUT_VARIABLE: Final = "PROFILE_OUT"
INTERVAL_SECONDS: Final = 0.001

READING = "request: ids cut out, decoded, validated"
CONVERSION = "Responses API to chat messages and back"
BODY = "the outgoing body, step by step"
STORE = "session: digests, finding the stored turn, commit"
SPLICE = "splice: its steps and proofs"
TEMPLATE = "chat template"
ENCODING = "tokenizer: new text to ids"
DECODING = "tokenizer: sampled ids to text"
CALL = "engine: the call over HTTP"
ANSWER = "engine's answer: decoded and checked"
PARSING = "tool calls and reasoning"
WRITING = "response: written"
WEB = "web stack: uvicorn, Starlette, FastAPI, cookie, metrics"
LOOP = "event loop, and what is none of these"

_FILES: Final = {
    READING: "nemo_gym/request_body nemo_gym/request_memo",
    CONVERSION: "nemo_gym/responses_converter nemo_gym/converter_answer nemo_gym/converter_items "
    "nemo_gym/converter_message nemo_gym/converter_params nemo_gym/converter_state",
    BODY: "vllm_model/chat_body vllm_model/reasoning_fields vllm_model/audio sglang_model/chat_request "
    "sglang_model/sampling_params",
    STORE: "sglang_model/sessions sglang_model/session_tree sglang_model/conversation_digest "
    "sglang_model/id_sequences sglang_model/turn_commit sglang_model/recent_texts",
    SPLICE: "sglang_model/splice sglang_model/new_messages sglang_model/turn_end sglang_model/sentinel "
    "sglang_model/reply_rendering sglang_model/short_context sglang_model/fragment_ids sglang_model/message_forms "
    "sglang_model/history sglang_model/render_steps sglang_model/prompt_encoder",
    ENCODING: "sglang_model/text_encoder",
    CALL: "nemo_gym/openai_client nemo_gym/http_pool nemo_gym/http_transport nemo_gym/http_retry",
    ANSWER: "sglang_model/generate_answer sglang_model/chat_answer sglang_model/sampled_entries sglang_model/wire "
    "sglang_model/_logic sglang_model/generate_turn vllm_model/engine_answer sglang_model/generate_transport",
    PARSING: "sglang_model/generation_parser sglang_model/tool_parsers sglang_model/reasoning_split",
    WRITING: "nemo_gym/json_response",
}
STAGES: Final[dict[tuple[str, str | None], str]] = {
    **{(f"{file}.py", None): stage for stage, files in _FILES.items() for file in files.split()},
    ("sglang_model/renderer.py", "render"): TEMPLATE,
    ("sglang_model/renderer.py", "_decode"): DECODING,
    ("sglang_model/renderer.py", "_decode_long"): DECODING,
}
"""(file, function or None for all of it) -> stage. What several stages call, as `json_ids.py`, is not here."""

_OUTER: Final = (("/aiohttp/", CALL), ("/uvicorn/protocols/", WEB), ("/starlette/", WEB), ("/fastapi/", WEB))


def stage_of(frame: FrameType | None) -> str:
    """The stage that the innermost known frame belongs to."""
    outer = LOOP
    while frame is not None:
        path = frame.f_code.co_filename
        file = "/".join(path.rsplit("/", 2)[-2:])
        stage = STAGES.get((file, frame.f_code.co_name)) or STAGES.get((file, None))
        if stage is not None:
            return stage
        if outer is LOOP:
            outer = next((stage for part, stage in _OUTER if part in path), LOOP)
        frame = frame.f_back
    return outer


def main() -> None:
    out = Path(os.environ[OUT_VARIABLE])
    counts: Counter[str] = Counter()

    def take(_signal: int, frame: FrameType | None) -> None:
        counts[stage_of(frame)] += 1

    def write(_signal: int, _frame: FrameType | None) -> None:
        out.write_bytes(orjson.dumps(dict(counts)))
        counts.clear()

    signal.signal(signal.SIGPROF, take)
    signal.signal(signal.SIGUSR1, write)
    signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
