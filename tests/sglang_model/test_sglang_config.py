"""Starting with a configuration: what cannot work ends the start, not the first request, and names the setting."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nemo_gym.errors import ConfigError
from sglang_model.app import SGLangModel, SGLangModelConfig
from sglang_model.testing import Rule
from sglang_model.testing.chat_template import BUILTIN_TEMPLATE
from sglang_model.testing.template_families import FAMILIES, TemplateFamily
from sglang_model.tool_formats import TOOL_FORMATS
from tests.support.local_tokenizer import engine_with, post, settings_of, tokenizer_folder
from tests.support.model_servers import BASE
from tests.support.turns import user

ROOT = Path(__file__).resolve().parents[2]
REQUIRED = {key: value for key, value in BASE.items() if key not in ("name", "host", "port")} | {
    "host": "127.0.0.1",
    "port": 12345,
}


@pytest.fixture
def start(monkeypatch) -> Callable[..., SGLangModel]:
    """Build the server as its process does: from the configuration, under its name."""
    monkeypatch.setenv("NEMO_GYM_CONFIG_PATH", "policy_model")

    def build(**settings: object) -> SGLangModel:
        block = {key: value for key, value in {**REQUIRED, **settings}.items() if value is not None}
        tree = {"policy_model": {"responses_api_models": {"sglang_model": block}}}
        return SGLangModel.from_global_config(OmegaConf.create(tree))

    return build


def generate(**settings: object) -> dict[str, object]:
    return {**settings_of("generate", "local"), **settings}


def test_chat_is_the_default_and_needs_nothing_of_generate(start):
    config = start().config
    assert config.transport == "chat"
    assert config.context_length is None
    assert config.sglang_tool_format == "hermes"
    assert config.splices_history is False
    assert config.renders_locally is False
    assert not hasattr(config, "engine")


def test_generate_keeps_its_window_and_splices(start):
    config = start(**generate(context_length=777)).config
    assert config.context_length == 777
    assert config.splices_history is True
    assert config.on_broken_prefix == "resync"


CONTRADICTIONS: dict[str, tuple[dict[str, object], str]] = {
    "no window": (generate(context_length=None), "context_length"),
    "an empty window": (generate(context_length=0), "context_length"),
    "a negative window": (generate(context_length=-5), "context_length"),
    "no such transport": ({"transport": "grpc"}, "transport"),
    "no such renderer": (generate(sglang_renderer="remote"), "sglang_renderer"),
    "no such tool format": (generate(sglang_tool_format="xml"), "sglang_tool_format"),
    "a misspelt setting": (generate(sglang_tool_formt="hermes"), "sglang_tool_format"),
    "an empty template": (generate(sglang_chat_template=""), "sglang_chat_template"),
    "an empty path": (generate(sglang_chat_template_path=""), "sglang_chat_template_path"),
    "an empty tokenizer": (generate(sglang_tokenizer=""), "sglang_tokenizer"),
    "workers that splice": (generate(num_workers=2), "num_workers"),
    "workers that splice on chat": (
        {"sglang_splice_history": True, "sglang_renderer": "server", "num_workers": 2},
        "num_workers",
    ),
    "splicing on chat without ids": (
        {"sglang_splice_history": True, "sglang_renderer": "server", "return_token_id_information": False},
        "return_token_id_information",
    ),
    "no session": (generate(session_max_sessions=0), "session_max_sessions"),
    "no tokens": (generate(session_max_tokens=0), "session_max_tokens"),
    "no age": (generate(session_max_age_seconds=0), "session_max_age_seconds"),
    "the renderer's own arguments": (
        generate(chat_template_kwargs={"add_generation_prompt": False}),
        "chat_template_kwargs.add_generation_prompt",
    ),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_settings_that_cannot_work_end_the_start_by_name(start, case):
    settings, name = CONTRADICTIONS[case]
    with pytest.raises(ConfigError, match=name.replace(".", r"\.")):
        start(**settings)


def test_a_tool_format_that_is_none_is_answered_with_those_there_are(start):
    with pytest.raises(ConfigError) as caught:
        start(**generate(sglang_tool_format="hermez"))
    assert all(name in str(caught.value) for name in (*TOOL_FORMATS, "server", "hermez"))


def test_several_workers_may_serve_without_splicing(start):
    assert start(num_workers=4).config.num_workers == 4
    assert start(**generate(num_workers=4, sglang_splice_history=False)).config.num_workers == 4
    assert start(**generate(num_workers=1)).config.splices_history


def written(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


UNUSABLE_FILES: dict[str, tuple[Callable[[Path], dict[str, object]], str, str]] = {
    "no such tokenizer": (
        lambda tmp: {"sglang_tokenizer": str(tmp / "none")},
        "sglang_tokenizer",
        "cannot be loaded",
    ),
    "no such tokenizer, named by the model": (
        lambda tmp: {"sglang_tokenizer": None, "model": str(tmp / "none")},
        "sglang_tokenizer",
        "cannot be loaded",
    ),
    "a tokenizer that is no JSON": (
        lambda tmp: {"sglang_tokenizer": str(Path(written(tmp / "tokenizer.json", b"x")).parent)},
        "sglang_tokenizer",
        "cannot be loaded",
    ),
    "an empty folder": (lambda tmp: {"sglang_tokenizer": str(tmp)}, "sglang_tokenizer", "cannot be loaded"),
    "a tokenizer without a template": (
        lambda _: {"sglang_tokenizer": str(tokenizer_folder(""))},
        "sglang_chat_template",
        "has no chat template",
    ),
    "a template that is no file": (
        lambda tmp: {"sglang_chat_template_path": str(tmp / "none.jinja")},
        "sglang_chat_template_path",
        "cannot be read",
    ),
    "a template that is a folder": (
        lambda tmp: {"sglang_chat_template_path": str(tmp)},
        "sglang_chat_template_path",
        "cannot be read",
    ),
    "a template in another encoding": (
        lambda tmp: {"sglang_chat_template_path": written(tmp / "t", "ü".encode("latin-1"))},
        "sglang_chat_template_path",
        "UTF-8",
    ),
    "an empty template file": (
        lambda tmp: {"sglang_chat_template_path": written(tmp / "t", b" \n")},
        "sglang_chat_template_path",
        "is empty",
    ),
    "a template with a syntax error": (
        lambda _: {"sglang_chat_template": "{% for m in %}"},
        "sglang_chat_template",
        "Expected an expression",
    ),
    "a template file with a syntax error": (
        lambda tmp: {"sglang_chat_template_path": written(tmp / "t", b"{% for m in %}")},
        "sglang_chat_template_path",
        "Expected an expression",
    ),
    "a tokenizer's template with a syntax error": (
        lambda _: {"sglang_tokenizer": str(tokenizer_folder("{% for m in %}"))},
        "sglang_tokenizer",
        "Expected an expression",
    ),
    "a template that refuses everything": (
        lambda _: {"sglang_chat_template": "{{ raise_exception('never') }}"},
        "sglang_chat_template",
        "never",
    ),
    "a template that shows nothing": (
        lambda _: {"sglang_chat_template": "  "},
        "sglang_chat_template",
        "does not stand in the prompt",
    ),
    "a suffix of another family": (
        lambda _: {"sglang_turn_suffix": "<|eot_id|>"},
        "sglang_turn_suffix",
        "does not stand behind this turn",
    ),
    "markers of another family": (
        lambda _: {"sglang_eos_markers": ["<|eot_id|>"]},
        "sglang_eos_markers",
        "none of sglang_eos_markers",
    ),
}


@pytest.mark.parametrize("case", UNUSABLE_FILES)
def test_what_cannot_render_ends_the_start_and_not_the_first_request(start, case, tmp_path):
    """W56, W57."""
    make, param, words = UNUSABLE_FILES[case]
    with pytest.raises(ConfigError, match=words) as caught:
        start(**generate(**make(tmp_path)))
    assert caught.value.param == param


@pytest.mark.parametrize(
    "pins",
    [
        {"sglang_turn_suffix": "<|im_end|>\n"},
        {"sglang_turn_suffix": "<|im_end|>"},
        {"sglang_eos_markers": ["<|im_end|>", "<|endoftext|>"]},
        {"sglang_eos_markers": []},
    ],
)
def test_pins_that_the_template_bears_out_are_taken(start, pins):
    assert start(**generate(**pins)).config.splices_history


def test_a_suffix_without_splicing_is_still_checked_where_it_is_rendered(start):
    with pytest.raises(ConfigError):
        start(**generate(sglang_splice_history=False, sglang_turn_suffix="<|eot_id|>"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_template_of_each_family_starts(start, family: TemplateFamily):
    assert start(**generate(sglang_tokenizer=str(tokenizer_folder(family.template)))).config.splices_history


def test_a_relative_template_path_starts_at_the_working_directory(start, tmp_path, monkeypatch):
    (tmp_path / "chat.jinja").write_text(BUILTIN_TEMPLATE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert start(**generate(sglang_chat_template_path="chat.jinja"))


def test_a_template_in_utf_8_is_read_so_under_any_locale(tmp_path):
    """In a process of its own: Python asks for the locale when it starts."""
    path = tmp_path / "chat.jinja"
    path.write_bytes("{# ü #}".encode())
    program = (
        "import locale\n"
        "from sglang_model.renderer import read_chat_template\n"
        f"print(len(read_chat_template(None, {str(path)!r})), locale.getpreferredencoding(False))\n"
    )
    env = {**os.environ, "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True, text=True)  # noqa: S603
    length, encoding = run.stdout.split()
    assert length == "7"
    assert encoding.upper() != "UTF-8"


def test_with_the_engines_renderer_no_tokenizer_is_looked_for(start, tmp_path):
    settings = generate(sglang_renderer="server", sglang_tokenizer=None, model=str(tmp_path / "none"))
    assert start(**settings).config.renders_locally is False


def test_without_transformers_the_remedy_is_named(start, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"\.\[generate\].*sglang_renderer: server"):
        start(**generate())
    assert start()


def test_chat_without_splicing_never_imports_transformers():
    """W59."""
    program = (
        "import sys\n"
        "from tests.support.model_servers import make_sglang\n"
        "make_sglang()\n"
        "make_sglang(transport='generate', context_length=64, sglang_renderer='server')\n"
        "raise SystemExit('transformers' in sys.modules or 'torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0  # noqa: S603


IGNORED: dict[str, tuple[dict[str, object], list[str]]] = {
    "generate's on chat": (
        {"context_length": 5, "sglang_tool_format": "hermes"},
        ["context_length", "sglang_tool_format"],
    ),
    "a tokenizer that nobody uses": ({"sglang_tokenizer": "x"}, ["sglang_tokenizer"]),
    "pins without splicing": ({"sglang_turn_suffix": "x"}, ["sglang_turn_suffix"]),
    "a store without splicing": ({"session_max_tokens": 5}, ["session_max_tokens"]),
    "a renderer without splicing on chat": ({"sglang_renderer": "server"}, ["sglang_renderer"]),
    "a renderer on generate": (
        {"transport": "generate", "context_length": 5, "sglang_renderer": "server"},
        [],
    ),
    "a tokenizer beside the engine's": (
        {"transport": "generate", "context_length": 5, "sglang_renderer": "server", "sglang_tokenizer": "x"},
        ["sglang_tokenizer"],
    ),
    "nulls": ({"sglang_turn_suffix": None, "context_length": None}, []),
    "nothing": ({}, []),
}


@pytest.mark.parametrize("case", IGNORED)
def test_settings_that_nothing_reads_are_named(case, caplog):
    settings, ignored = IGNORED[case]
    config = SGLangModelConfig(**{**BASE, **settings})
    assert config.ignored_settings == ignored


def test_they_are_named_in_the_log_at_the_start(start, caplog):
    start(context_length=5)
    assert "nothing reads context_length" in caplog.text


def test_continuations_that_cannot_be_spliced_are_named_in_the_log_at_the_start(start, caplog):
    template = "{% for m in messages if m.role != 'tool' %}[{{ m.content }}]<|im_end|>{% endfor %}"
    start(**generate(sglang_chat_template=template))
    assert "some turns start a new segment" in caplog.text
    assert "new_message_dropped" in caplog.text


async def test_pinned_markers_leave_the_text_and_not_the_ids():
    engine = engine_with()
    document = engine.tokenizer.backend.token_to_id("<|endoftext|>")
    ids = (*engine.tokenizer.encode("hello"), document, engine.tokenizer.eos_token_id)
    engine.rules.append(Rule(ids=ids, eos=False))
    body = {"messages": [user("a")], "ignore_eos": True, "max_tokens": len(ids)}
    response = await post(engine, body, sglang_eos_markers=("<|im_end|>", "<|endoftext|>"))
    message = response.json()["choices"][0]["message"]
    assert message["content"] == "hello"
    assert message["generation_token_ids"] == list(ids)
