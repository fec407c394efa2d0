"""The table in docs/transports.md: right on our own families, and on real templates where those are."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from sglang_model.splice_report import TemplateResult, main, measure, report
from sglang_model.splice_types import Refusal
from sglang_model.testing.splice_oracle import Verdict
from sglang_model.testing.splice_shapes import all_shapes
from sglang_model.testing.template_facts import TemplateFacts, facts_of
from sglang_model.testing.template_families import FAMILIES, family

NAMES = [made.name for made in FAMILIES]
TEST_DATA = os.environ.get("SGLANG_GYM_TEST_DATA")
needs_data = pytest.mark.skipif(TEST_DATA is None, reason="SGLANG_GYM_TEST_DATA is not set")


def real_templates() -> list[Path]:
    return sorted((Path(TEST_DATA) / "chat_templates").glob("*.jinja")) if TEST_DATA else []


def test_there_are_thirty_three_shapes_in_order() -> None:
    assert [shape.number for shape in all_shapes()] == list(range(1, 34))


@cache
def measured(name: str) -> TemplateResult:
    made = family(name)
    return measure(made.name, made.template, made.facts)


@cache
def measured_file(path: Path) -> TemplateResult:
    template = path.read_text(encoding="utf-8")
    facts = facts_of(path.stem, template)
    assert facts is not None
    return measure(path.stem, template, facts)


@pytest.mark.parametrize("name", NAMES)
def test_every_scored_shape_is_right_on_every_family_with_either_renderer(name: str) -> None:
    for cells in (measured(name).cells, measured(name).server_cells):
        assert [cell for cell in cells if cell.verdict in (Verdict.WRONG, Verdict.REFUSED)] == []


def test_the_families_have_enough_scored_cells_to_mean_something() -> None:
    scored = [sum(cell.verdict.scored for cell in measured(name).cells) for name in NAMES]
    assert sum(scored) > 280
    assert sum(count >= 14 for count in scored) >= 10


def test_a_lost_message_is_a_refusal_with_that_reason_on_every_family() -> None:
    cells = [cell for name in NAMES for cell in measured(name).cells if cell.verdict is Verdict.LOST]
    assert len(cells) == 8
    assert all(isinstance(cell.result, Refusal) for cell in cells)


@needs_data
@pytest.mark.parametrize("path", real_templates(), ids=lambda path: path.stem)
def test_every_scored_shape_is_right_on_real_templates_with_either_renderer(path: Path) -> None:
    for cells in (measured_file(path).cells, measured_file(path).server_cells):
        assert [cell for cell in cells if cell.verdict in (Verdict.WRONG, Verdict.REFUSED)] == []


@needs_data
def test_more_than_ninety_nine_in_a_hundred_cells_of_real_templates_are_right() -> None:
    results = [measured_file(path) for path in real_templates()]
    for cells in ([r.cells for r in results], [r.server_cells for r in results]):
        verdicts = [cell.verdict for row in cells for cell in row if cell.verdict.scored]
        assert len(verdicts) > 850
        assert verdicts.count(Verdict.RIGHT) > 0.99 * len(verdicts)
        assert Verdict.WRONG not in verdicts


def test_the_command_without_a_directory_reports_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert text.startswith("| renderer | templates | scored | right |")
    assert f"| local | {len(FAMILIES)} |" in text
    assert "| template | 01 | 02 |" in text
    assert "33 another stop token" in text
    assert "Refusals and wrong fragments" not in text


def test_the_report_of_given_templates_names_the_refused_cells() -> None:
    """Every reply is shown once, but behind other tokens in history than at the end."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.content }}"
        "{{ '<think>' if loop.last and not add_generation_prompt else '</think>x<|im_end|>' }}{% endfor %}"
    )
    text = report({"odd": template})
    assert "- odd, shape 01, local renderer: turn_end_not_found: " in text


def test_unknown_templates_are_listed_and_not_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "strange.jinja").write_text("no tokens", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no template", encoding="utf-8")
    assert main([str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "Not scored, for their turn ends are not known here: strange." in text
    assert "| local | 0 | 0 |" in text


def test_a_wrong_fragment_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A template that ends a turn twice where it shows the oracle's word, and once behind the splice's."""
    twice = "{{ m.content }}{{ '<|im_end|>' if 'quorvexal' in m.content else '' }}"
    template = "{% for m in messages %}<|im_start|>" + twice + "<|im_end|>{% endfor %}"
    (tmp_path / "twice.jinja").write_text(template, encoding="utf-8")
    assert main([str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "| twice | **W** |" in text
    assert "- twice, shape 01, local renderer: wrong text" in text


def test_facts_are_known_by_name_or_for_chatml() -> None:
    assert isinstance(facts_of("glm-4.5", ""), TemplateFacts)
    assert facts_of("anything", "<|im_end|>") is not None
    assert facts_of("anything", "") is None
