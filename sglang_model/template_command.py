"""`sglang-model template FILE_OR_MODEL`: what a chat template can do, for a person who wants to train with it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import orjson

from nemo_gym.errors import ConfigError
from sglang_model.renderer import load_renderer, read_chat_template
from sglang_model.splice_types import SpecialTokens
from sglang_model.template_probe import probe_template
from sglang_model.template_profile import TemplateProfile, describe
from sglang_model.testing.jinja_renderer import JinjaRenderer

TOKEN_LIKE = re.compile(r"<\|[^<>|\s]+\|>|<｜[^<>｜]+｜>|</?[a-z_]+>|\[/?[A-Z_]{3,}\]")  # noqa: RUF001 - DeepSeek's bars
"""Texts that look like special tokens of the usual families."""


TEMPLATE_SUFFIXES = (".jinja", ".jinja2", ".j2")
NO_STOP = (
    "no stop token is known, so no turn ends: --stop names one, or --tokenizer the tokenizer that has them\n"
)


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "template", help="what a chat template can do, and what can be spliced on it"
    )
    parser.add_argument(
        "source", metavar="FILE_OR_MODEL", help="a Jinja file, or a tokenizer's repository or folder"
    )
    parser.add_argument("--tokenizer", metavar="MODEL", help="for a file: the tokenizer that it is used with")
    parser.add_argument(
        "--stop", metavar="TOKEN", action="append", default=[], help="for a file: a stop token's text"
    )
    parser.add_argument(
        "--kwargs", metavar="JSON", default="{}", help="chat template arguments, a JSON object"
    )
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the profile; exit code 1 when a continuation that agents need cannot be spliced."""
    kwargs = _kwargs(arguments.kwargs)
    path = Path(arguments.source)
    if path.suffix in TEMPLATE_SUFFIXES and not path.is_file():
        raise ConfigError(
            f"there is no file {path}; a name without one of {', '.join(TEMPLATE_SUFFIXES)} is a tokenizer's"
        )
    if path.is_file() and arguments.tokenizer is None:
        profile = _profile_of_file(path, arguments.stop, kwargs)
    else:
        profile = _profile_with_tokenizer(arguments, kwargs)
    print(describe(profile))
    return 1 if profile.problems else 0


def _profile_of_file(path: Path, stops: list[str], kwargs: dict[str, object]) -> TemplateProfile:
    """Without a tokenizer, which texts are tokens of their own is guessed from the template, and said."""
    template = read_chat_template(None, str(path)) or ""
    texts = tuple(dict.fromkeys([*stops, *TOKEN_LIKE.findall(template)]))
    print(f"special tokens, guessed from the file (--tokenizer knows them): {' '.join(texts) or 'none'}\n")
    if not stops:
        print(NO_STOP)
    return probe_template(JinjaRenderer(template), SpecialTokens(texts, tuple(stops)), kwargs)


def _profile_with_tokenizer(arguments: argparse.Namespace, kwargs: dict[str, object]) -> TemplateProfile:
    is_file = Path(arguments.source).is_file()
    renderer = load_renderer(
        arguments.tokenizer or arguments.source,
        chat_template=read_chat_template(None, arguments.source) if is_file else None,
        trust_remote_code=arguments.trust_remote_code,
    )
    try:
        return probe_template(renderer.render, renderer.tokens, kwargs)
    finally:
        renderer.close()


def _kwargs(text: str) -> dict[str, object]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--kwargs must be a JSON object, but it is not JSON: {error.msg}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--kwargs must be a JSON object, got {type(value).__name__}")
    return value
