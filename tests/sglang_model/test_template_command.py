"""`sglang-model template`: a template explained to a person."""

from __future__ import annotations

import pytest

from sglang_model.cli import main
from sglang_model.testing.chat_template import BUILTIN_TEMPLATE
from sglang_model.testing.tokenizer_folder import write_tokenizer_folder


@pytest.fixture
def tokenizer(tmp_path):
    return str(write_tokenizer_folder(tmp_path / "tokenizer"))


def test_a_tokenizer_folder_is_profiled_with_its_own_template(tokenizer, capsys):
    assert main(["template", tokenizer]) == 0
    printed = capsys.readouterr().out
    assert "text                  '<|im_end|>', suffix '<|im_end|>\\n'" in printed
    assert "2 calls > 2 tools     yes, behind '<|im_end|>'" in printed
    assert "guessed" not in printed


def test_a_file_without_a_tokenizer_says_that_its_tokens_are_guessed(tmp_path, capsys):
    file = tmp_path / "chat.jinja"
    file.write_text(BUILTIN_TEMPLATE)
    assert main(["template", str(file), "--stop", "<|im_end|>"]) == 0
    printed = capsys.readouterr().out
    assert "guessed from the file" in printed
    assert "call > tool           yes, behind '<|im_end|>'" in printed


def test_a_file_without_a_stop_token_says_what_names_one(tmp_path, capsys):
    file = tmp_path / "chat.jinja"
    file.write_text(BUILTIN_TEMPLATE)
    assert main(["template", str(file)]) == 0
    assert "--stop names one, or --tokenizer" in capsys.readouterr().out


def test_a_template_that_drops_tool_results_ends_with_exit_code_1_and_the_reason(tmp_path, tokenizer, capsys):
    file = tmp_path / "bad.jinja"
    file.write_text(
        "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert main(["template", str(file), "--tokenizer", tokenizer]) == 1
    assert "new_message_dropped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such/model"], "sglang_tokenizer"),
        (["no-such.jinja"], "there is no file no-such.jinja"),
        (["FILE", "--kwargs", "[]"], "JSON object, got list"),
        (["FILE", "--kwargs", "{"], "not JSON"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(tmp_path, arguments, words, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    file = tmp_path / "chat.jinja"
    file.write_text(BUILTIN_TEMPLATE)
    assert main(["template", *(str(file) if part == "FILE" else part for part in arguments)]) == 2
    assert words in capsys.readouterr().err
