"""`sglang-model engine`: the embedded engine on a port.

`register(subparsers)` adds the command; the parsed arguments carry `run`, which takes them and returns an exit code.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import uvicorn
from pydantic import TypeAdapter, ValidationError

from nemo_gym.errors import ConfigError
from sglang_model.testing.engine import create_engine_app
from sglang_model.testing.policy import Rule
from sglang_model.testing.settings import EngineSettings
from sglang_model.testing.versions import VERSIONS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

logger = logging.getLogger(__name__)

_ABOUT = "Serve a stand-in for SGLang: it answers as SGLang does, and a script says what the model says."


def register(subparsers: Subparsers) -> None:
    """Adds `engine` to a command line."""
    parser = subparsers.add_parser("engine", help=_ABOUT, description=_ABOUT)
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags, named as SGLang names them where it has them; a parser of "none" switches it off."""
    defaults = EngineSettings()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--version", choices=sorted(VERSIONS), default=defaults.version)
    parser.add_argument(
        "--rules", type=Path, metavar="FILE", help="a JSON list of rules: what the model says"
    )
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--context-length", type=int, default=None)
    parser.add_argument("--allow-auto-truncate", action="store_true")
    parser.add_argument("--api-key", default=None)
    parser.add_argument("--served-model-name", default=defaults.served_model_name)
    parser.add_argument("--tool-call-parser", default=defaults.tool_call_parser)
    parser.add_argument("--reasoning-parser", default=defaults.reasoning_parser)
    parser.add_argument("--tokenizer", type=Path, metavar="DIR", help="a folder with a tokenizer.json")
    parser.add_argument("--chat-template", type=Path, metavar="FILE")


def settings_from(arguments: argparse.Namespace) -> EngineSettings:
    """The settings that the arguments describe. Raises ConfigError for a rules file that cannot be used."""
    given = arguments.context_length
    return EngineSettings(
        version=arguments.version,
        rules=read_rules(arguments.rules) if arguments.rules is not None else (),
        seed=arguments.seed,
        context_length=given if given is not None else EngineSettings().context_length,
        context_length_flag=given is not None,
        allow_auto_truncate=arguments.allow_auto_truncate,
        api_key=arguments.api_key,
        served_model_name=arguments.served_model_name,
        tool_call_parser=_named(arguments.tool_call_parser),
        reasoning_parser=_named(arguments.reasoning_parser),
        tokenizer_folder=arguments.tokenizer,
        chat_template_path=arguments.chat_template,
    )


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a JSON file. Raises ConfigError that names the file and the first thing wrong with it."""
    try:
        return TypeAdapter(tuple[Rule, ...]).validate_python(orjson.loads(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"--rules: cannot read {path}: {error.strerror}", param="rules") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--rules: {path} is not JSON: {error}", param="rules") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        message = f"--rules: {path}: {place}: {first['msg']}. Expected a list of rules (`when`, `reply`, `ids`, ...)"
        raise ConfigError(message, param="rules") from error


def run(arguments: argparse.Namespace) -> int:
    """Serves until interrupted."""
    engine = create_engine_app(settings_from(arguments))
    logger.warning(
        "This is the embedded engine, a stand-in for SGLang %s and not a model: %d rules, a seeded sampler "
        "otherwise, a vocabulary of %d. It listens on http://%s:%d.",
        arguments.version,
        len(engine.rules),
        engine.tokenizer.vocab_size,
        arguments.host,
        arguments.port,
    )
    uvicorn.run(engine, host=arguments.host, port=arguments.port, log_level="warning")
    return 0


def _named(parser: str | None) -> str | None:
    return None if parser is None or parser.lower() == "none" else parser
