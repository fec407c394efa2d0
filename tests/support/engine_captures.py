"""Reads captured SGLang exchanges, and compares an engine's answer with one of them, field by field."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from sglang_model.testing import Abort, Engine, EngineSettings, Misbehaviour, Rule, create_engine_app
from sglang_model.testing.tokenizer import builtin_tokenizer

DATA = os.environ.get("SGLANG_GYM_TEST_DATA")
VERSIONS = ("0.5.12", "0.5.13", "0.5.23")
CONTEXT = 512
QWEN3_VOCABULARY = 151936

VOLATILE = {
    "id",
    "created",
    "timestamp",
    "random_seed",
    "e2e_latency",
    "response_sent_to_client_ts",
    # What was cached depends on the requests before this one.
    "cached_tokens",
    "cached_tokens_details",
    "device",
    # The stand-in scores tokens in its own way; only that they are finite and not positive is compared.
    "logprob",
}
"""Keys whose values differ between two runs of the same server. That they are there is still compared."""
OTHER_CANDIDATES = re.compile(r"input_top_logprobs|top_logprobs(\[\d+\])?\[[1-9]\d*\]")
"""Tokens that were not sampled: which ones a model finds likely is its own affair."""
SAMPLED_TEXT = re.compile(r"\.(content|reasoning_content|finish_reason|matched_stop)$")
"""What depends on which ids were sampled, when they were not scripted."""
SOURCE_LINE = re.compile(r'\n\n  File "[^"]*", line \d+, in \w+\n    [A-Z]+ /\S*')
"""FastAPI shows where in SGLang's source the route stands."""


@dataclass(frozen=True, slots=True)
class Capture:
    version: str
    name: str
    request: dict[str, object]
    response: dict[str, object]

    @property
    def label(self) -> str:
        return f"{self.version}-{self.name}"


def data_folder() -> Path | None:
    folder = Path(DATA) if DATA else None
    return folder if folder is not None and (folder / "sglang" / "captures").is_dir() else None


def captures() -> Iterator[Capture]:
    """Every captured exchange of the three versions; none without the data."""
    folder = data_folder()
    for version in VERSIONS if folder is not None else ():
        for file in sorted((folder / "sglang" / "captures" / version).glob("*.json")):
            held = json.loads(file.read_text(encoding="utf-8"))
            if "response" in held:
                yield Capture(version, file.stem, held["request"], held["response"])


def qwen3_folder() -> Path | None:
    """The real Qwen3 tokenizer, where the real server's set-up keeps it."""
    home = Path(os.environ.get("REAL_SGLANG_HOME", "~/.cache/real-sglang")).expanduser()
    folder = home / "qwen3" / "package" / "models"
    return folder if (folder / "tokenizer.json").exists() else None


def script() -> tuple[Rule, ...]:
    """The real server's script (its rules.json) in the engine's vocabulary; waits become gates."""
    folder = data_folder()
    lines = json.loads((folder / "real_sglang" / "rules.json").read_text(encoding="utf-8"))
    return tuple(_rule(line) for line in lines)


def _rule(line: dict[str, object]) -> Rule:
    wrong = None
    if "abort" in line:
        # The real one lets one more step run once the abort is set.
        wrong = Misbehaviour(abort=Abort.model_validate(line["abort"]), after_tokens=line["abort_at"] + 1)
    elif "hold" in line:
        wrong = Misbehaviour(gate="hold")
    elif "delay" in line:
        wrong = Misbehaviour(gate="delay", after_tokens=5)
    ids = tuple(line["ids"]) if "ids" in line else None
    return Rule(
        when=line["when"], reply=line.get("reply"), ids=ids, eos=line.get("eos", True), misbehave=wrong
    )


def engine_like_the_captured_one(capture: Capture) -> Engine:
    """The engine configured as the server that answered `capture`."""
    qwen3 = qwen3_folder()
    auth = capture.name.startswith("auth_")
    truncates = "_trunc_" in capture.name or (auth and capture.version == "0.5.23")
    needs_key = auth or "Authorization" in capture.request["headers"]
    misbehave = ()
    if capture.name.endswith("_queue_full"):
        misbehave = (Misbehaviour(abort=Abort(message="The request queue is full.", status_code=503)),)
    return create_engine_app(
        EngineSettings(
            version=capture.version,
            rules=script(),
            misbehave=misbehave,
            context_length=CONTEXT,
            allow_auto_truncate=truncates,
            api_key="sk-test" if needs_key else None,
            served_model_name="model-512",
            model_path="model-512",
            # The servers of the auth and the truncation captures had no reasoning parser.
            reasoning_parser=None if auth or truncates else "qwen3",
            tokenizer_folder=qwen3,
            vocab_size=QWEN3_VOCABULARY,
        )
    )


async def replay(engine: Engine, capture: Capture) -> httpx.Response:
    """Sends the captured request; where the capture was of an aborted request, aborts it when it is held."""
    request = capture.request
    transport = httpx.ASGITransport(app=engine)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        headers = {"Content-Type": "application/json", **request["headers"]}
        content = None if request["body"] is None else json.dumps(request["body"]).encode()
        sending = asyncio.ensure_future(
            client.request(request["method"], request["path"], content=content, headers=headers)
        )
        held = {"abort_running": "delay", "abort_queued": "hold"}
        gate = next((name for part, name in held.items() if capture.name.endswith(part)), None)
        if gate is not None:
            await engine.gate(gate).until_waiting()
            await client.post("/abort_request", json={"rid": request["body"]["rid"]})
        return await sending


def translated(capture: Capture) -> Capture:
    """`capture` with Qwen3's ids in the request replaced by the built-in tokenizer's, by text, when it must serve.

    Lengths count in the length captures, so an id that the built-in tokenizer lacks becomes a filler id.
    """
    if qwen3_folder() is not None or not isinstance(capture.request["body"], dict):
        return capture
    body = dict(capture.request["body"])
    known = {
        9707: "Hello",
        45537: " STOP",
        36790: "say",
        14396: " plain",
        23811: " hello",
        151644: "<|im_start|>",
    }
    known |= {151645: "<|im_end|>", 872: "user", 77091: "assistant", 198: "\n", 1052: " there", 11: ","}
    for key in ("input_ids", "tokens"):
        ids = body.get(key)
        if isinstance(ids, list) and ids and all(isinstance(item, int) for item in ids):
            body[key] = _retokenised(ids, known, keep_length=len(ids) > 100)
    return Capture(capture.version, capture.name, {**capture.request, "body": body}, capture.response)


def _retokenised(ids: list[int], known: dict[int, str], *, keep_length: bool) -> list[int]:
    tokenizer = builtin_tokenizer()
    pieces = [tokenizer.encode(known[item]) if item in known else [item] for item in ids]
    if keep_length:
        return [piece[0] for piece in pieces]
    return [item for piece in pieces for item in piece]


def differences(real: object, ours: object, *, exact: bool, path: str = "") -> list[str]:
    """Where `ours` is not what the real server said: keys, types, lengths and, when `exact`, values."""
    if not exact and SAMPLED_TEXT.search(path):
        return []
    exact = exact and OTHER_CANDIDATES.search(path) is None
    if _is_number(real) and _is_number(ours):
        same = not exact or path.rpartition(".")[2] in VOLATILE or real == ours
        return [] if same else [f"{path}: {real!r} became {ours!r}"]
    if type(real) is not type(ours):
        if path.rpartition(".")[2] in VOLATILE:
            return []
        return [f"{path}: {type(real).__name__} became {type(ours).__name__} ({real!r:.80} / {ours!r:.80})"]
    if isinstance(real, dict):
        return _dict_differences(real, ours, exact=exact, path=path)
    if isinstance(real, list):
        return _list_differences(real, ours, exact=exact, path=path)
    if not exact or path.rpartition(".")[2] in VOLATILE or real == ours:
        return []
    return [f"{path}: {real!r:.200} became {ours!r:.200}"]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _dict_differences(
    real: dict[str, object], ours: dict[str, object], *, exact: bool, path: str
) -> list[str]:
    found = [f"{path}.{key}: missing" for key in real if key not in ours]
    found += [f"{path}.{key}: not in the real answer" for key in ours if key not in real]
    for key in real:
        if key in ours:
            found += differences(real[key], ours[key], exact=exact, path=f"{path}.{key}")
    return found


def _list_differences(real: list[object], ours: list[object], *, exact: bool, path: str) -> list[str]:
    if _is_entry(real) and _is_entry(ours):
        # [logprob, id, text]: the logprob is the stand-in's own.
        finite = [] if isinstance(ours[0], float) and -100 < ours[0] <= 0 else [f"{path}: logprob {ours[0]}"]
        return finite + differences(real[1:], ours[1:], exact=exact, path=path)
    if not exact:
        return differences(real[0], ours[0], exact=False, path=f"{path}[0]") if real and ours else []
    if len(real) != len(ours):
        return [f"{path}: {len(real)} elements became {len(ours)}"]
    pairs = enumerate(zip(real, ours, strict=True))
    return [line for n, (a, b) in pairs for line in differences(a, b, exact=True, path=f"{path}[{n}]")]


def _is_entry(value: list[object]) -> bool:
    return (
        len(value) == 3
        and isinstance(value[0], float)
        and isinstance(value[1], int)
        and (value[2] is None or isinstance(value[2], str))
    )


def comparable(body: object) -> object:
    """`body` without what no stand-in can know: the digits of generated call ids, and SGLang's source lines.

    Without Qwen3's tokenizer a text may have other numbers of tokens, so messages are compared without numbers.
    """
    if isinstance(body, str):
        body = re.sub(r"^call_[0-9a-f]{24}$", "call_*", SOURCE_LINE.sub("", body))
        return body if qwen3_folder() is not None else re.sub(r"\d+ tokens|=\d+", "N tokens", body)
    if isinstance(body, list):
        return [comparable(item) for item in body]
    if isinstance(body, dict):
        return {key: comparable(value) for key, value in body.items()}
    return body


def only_keys_of(ours: object, real: object) -> object:
    """`real` reduced to the keys that `ours` has: of /server_info's 400 flags the engine shows some thirty."""
    if isinstance(ours, dict) and isinstance(real, dict):
        return {key: only_keys_of(ours[key], value) for key, value in real.items() if key in ours}
    if isinstance(ours, list) and isinstance(real, list):
        return [only_keys_of(a, b) for a, b in zip(ours, real, strict=False)]
    return real
