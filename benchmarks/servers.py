"""The servers that are compared: how each is started, which engine it stands before, and what it is called."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from benchmarks.conversation import Dialect
from benchmarks.nemo_gym_home import HOME_VARIABLE, VERSION, nemo_gym_python
from benchmarks.paths import CONFIGS, ROOT
from benchmarks.profiled_server import OUT_VARIABLE
from benchmarks.stub_answers import Mode
from nemo_gym.parent_death import ending_with_this_process

NAME = "policy_model"
CONTEXT_LENGTH = 1_000_000


@dataclass(frozen=True)
class Setting:
    """Where a server is to be started."""

    port: int
    engine_port: int
    tokenizer: Path
    corpus: Path

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine_port}"


@dataclass(frozen=True)
class Start:
    """A command with what it adds to the environment."""

    command: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path = ROOT


@dataclass(frozen=True)
class Server:
    """One of those compared. `start` is None where the engine stub itself is asked."""

    name: str
    title: str
    start: Callable[[Setting], Start] | None
    engine: Mode = "sglang"
    dialect: Dialect = "agent"
    floor: str = "floor-chat"
    """The floor of its transport."""
    splices: bool = False


def _module(module: str, **options: object) -> list[str]:
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return ending_with_this_process([sys.executable, "-m", module, *arguments])


def engine_start(mode: Mode, setting: Setting) -> Start:
    return Start(
        _module(
            "benchmarks.engine_stub",
            port=setting.port,
            corpus=setting.corpus,
            tokenizer=setting.tokenizer,
            mode=mode,
        )
    )


def _floor(transport: str) -> Callable[[Setting], Start]:
    def start(setting: Setting) -> Start:
        return Start(
            _module(
                "benchmarks.floor",
                port=setting.port,
                engine=setting.engine_url,
                transport=transport,
                tokenizer=setting.tokenizer,
            )
        )

    return start


def _configuration(file: str, kind: str, setting: Setting, changes: Mapping[str, object]) -> dict[str, str]:
    """A shipped training configuration with `changes`, as a launcher hands it to a server; None removes a key."""
    shipped = yaml.safe_load((CONFIGS / file).read_text(encoding="utf-8"))
    block = shipped[NAME]["responses_api_models"][kind]
    own = {
        "host": "127.0.0.1",
        "port": setting.port,
        "base_url": f"{setting.engine_url}/v1",
        "api_key": "bench",
        "model": "bench",
    }
    block = {key: value for key, value in {**block, **own, **changes}.items() if value is not None}
    config = {
        NAME: {"responses_api_models": {kind: block}},
        "head_server": {"host": "127.0.0.1", "port": 1},
        "dry_run": False,
    }
    return {"NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config), "NEMO_GYM_CONFIG_PATH": NAME}


def _ours(file: str, **changes: object) -> Callable[[Setting], Start]:
    """`sglang_model/app.py`, started as NeMo Gym and ng_run start it. "TOKENIZER" stands for the tokenizer's folder."""

    def start(setting: Setting) -> Start:
        known = {
            key: str(setting.tokenizer) if value == "TOKENIZER" else value for key, value in changes.items()
        }
        environment = _configuration(file, "sglang_model", setting, known)
        command = [sys.executable, str(ROOT / "sglang_model/app.py")]
        return Start(ending_with_this_process(command), {**environment, "PYTHONPATH": str(ROOT)})

    return start


def profiled(start: Start, out: Path) -> Start:
    """The start of one of our servers under `profiled_server`, which writes what it counts to `out`."""
    *interpreter, script = start.command
    command = [*interpreter, str(ROOT / "benchmarks/profiled_server.py"), script]
    return Start(command, {**start.environment, OUT_VARIABLE: str(out)}, start.directory)


def _nemo_gym(setting: Setting) -> Start:
    python = nemo_gym_python()
    if python is None:
        raise FileNotFoundError(f"nemo-gym {VERSION} is not installed; {HOME_VARIABLE} names its environment")
    script = ROOT / "benchmarks/nemo_gym_server.py"
    environment = _configuration("vllm_model_for_training.yaml", "vllm_model", setting, {})
    # Not this directory, where its nemo_gym would be ours.
    return Start(ending_with_this_process([str(python), "-P", str(script)]), environment, python.parents[1])


CHAT = "sglang_model_for_training.yaml"
GENERATE = "sglang_model_for_training_generate.yaml"
_LOCAL = {"sglang_tokenizer": "TOKENIZER", "sglang_renderer": "local"}
_GENERATE = {"sglang_tokenizer": "TOKENIZER", "context_length": CONTEXT_LENGTH}

SERVERS = {
    server.name: server
    for server in (
        Server("chat", "chat", _ours(CHAT, sglang_splice_history=False, sglang_renderer=None)),
        Server("chat-spliced", "chat, spliced, local renderer", _ours(CHAT, **_LOCAL), splices=True),
        Server("chat-training", "chat, training config", _ours(CHAT), splices=True),
        Server("generate", "generate", _ours(GENERATE, **_GENERATE), floor="floor-generate", splices=True),
        Server(
            "generate-whole",
            "generate, every prompt rendered whole",
            _ours(GENERATE, **_GENERATE, sglang_splice_history=False),
            floor="floor-generate",
        ),
        Server("nemo-gym", f"nemo-gym {VERSION} vllm_model", _nemo_gym, engine="vllm"),
        Server("floor-chat", "floor, chat", _floor("chat")),
        Server(
            "floor-generate",
            "floor, generate",
            _floor("generate"),
            floor="floor-generate",
        ),
        Server("stub-chat", "engine stub alone, chat", None, dialect="engine-chat"),
        Server(
            "stub-generate",
            "engine stub alone, generate",
            None,
            dialect="engine-generate",
            floor="floor-generate",
        ),
    )
}
