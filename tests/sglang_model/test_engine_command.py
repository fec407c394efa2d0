from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from sglang_model.testing import EngineSettings, Misbehaviour, Rule
from sglang_model.testing.engine_command import register, settings_from


def settings(*flags: str) -> EngineSettings:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    return settings_from(parser.parse_args(["engine", *flags]))


def test_no_flags_are_the_default_settings() -> None:
    assert settings() == EngineSettings()


def test_flags_become_settings(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"when": "a", "reply": "b"}, {"misbehave": {"status": 503, "times": 1}}]))
    template = tmp_path / "template.jinja"
    made = settings(
        *("--version", "0.5.23", "--rules", str(rules), "--seed", "5", "--context-length", "512"),
        *("--api-key", "sk", "--served-model-name", "mine", "--allow-auto-truncate"),
        *("--tool-call-parser", "hermes", "--reasoning-parser", "none"),
        *("--tokenizer", str(tmp_path), "--chat-template", str(template)),
    )
    assert made == EngineSettings(
        version="0.5.23",
        rules=(Rule(when="a", reply="b"), Rule(misbehave=Misbehaviour(status=503, times=1))),
        seed=5,
        context_length=512,
        context_length_flag=True,
        api_key="sk",
        served_model_name="mine",
        allow_auto_truncate=True,
        tool_call_parser="hermes",
        reasoning_parser=None,
        tokenizer_folder=tmp_path,
        chat_template_path=template,
    )


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{no", "is not JSON"),
        ('{"when": "a"}', "Expected a list of rules"),
        ('[{"when": "a"}, {"wen": "b"}]', "1.wen: "),
        (None, "cannot read"),
    ],
)
def test_rules_that_cannot_be_used_name_the_file_and_the_fault(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    file = tmp_path / "rules.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        settings("--rules", str(file))
    assert str(file) in str(caught.value)
    assert complaint in str(caught.value)


def test_an_unknown_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings("--version", "0.4.0")
    assert "0.5.13" in capsys.readouterr().err
