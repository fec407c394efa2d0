"""Facts in the documents that a test can read."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest

from sglang_model.config_reference import configuration_reference
from sglang_model.splice_report import family_report, report
from tests.sglang_model.transport_differences import as_markdown

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("*_model/README.md")])


def test_the_configuration_page_is_what_the_classes_say():
    assert (ROOT / "docs/configuration.md").read_text() == configuration_reference(), "run `make docs`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_names_exists(document):
    """Names in backticks with a folder and an ending, and the targets of links."""
    text = document.read_text()
    named = re.findall(
        r"`((?:nemo_gym|vllm_model|sglang_model|tests|configs|docs|examples)/[\w/.*-]+)`", text
    )
    linked = [target.split("#")[0] for target in re.findall(r"\]\((?!https?:)([^)]+)\)", text)]
    for name in named:
        assert list(ROOT.glob(name)), f"{document.name} names {name}"
    for target in filter(None, linked):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_changelog_has_a_section_for_the_version():
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"## [{version.group(1)}]" in (ROOT / "CHANGELOG.md").read_text()


def _block(name: str) -> str:
    text = (ROOT / "docs/transports.md").read_text()
    found = re.search(rf"<!-- {name}: .*?-->\n(.*?)\n<!-- end -->", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_table_of_transport_differences_is_the_tested_data():
    assert _block("differences") == as_markdown().rstrip()


def test_the_table_of_our_own_template_families_is_the_reports():
    assert _block("families") == family_report().rstrip()


def test_the_table_of_real_templates_is_the_reports():
    folder = Path(os.environ.get("SGLANG_GYM_TEST_DATA", "")) / "chat_templates"
    if not os.environ.get("SGLANG_GYM_TEST_DATA") or not folder.is_dir():
        pytest.skip("SGLANG_GYM_TEST_DATA holds no chat templates")
    templates = {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}
    assert _block("real templates") == report(templates).rstrip()


def test_every_test_that_the_verification_names_exists():
    named = set(re.findall(r"(tests/[\w/]+\.py)::(test_\w+)", (ROOT / "docs/verification.md").read_text()))
    assert named
    files = {file: ast.parse((ROOT / file).read_text()) for file, _ in named if (ROOT / file).exists()}
    functions = {
        (file, node.name)
        for file, tree in files.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert sorted(named - functions) == []
