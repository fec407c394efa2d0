"""The import direction of docs/architecture.md, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("nemo_gym", "vllm_model", "sglang_model")
LAYERS = {"nemo_gym": set(), "vllm_model": {"nemo_gym"}, "sglang_model": {"nemo_gym", "vllm_model"}}

PURE = (
    "sglang_model._logic",
    "sglang_model.wire",
    "sglang_model.chat_request",
    "sglang_model.length_refusals",
    "sglang_model.token_accounting",
    "sglang_model.splice",
    "sglang_model.fragment_ids",
    "sglang_model.template_probe",
    "sglang_model.conversation_digest",
    "sglang_model.sessions",
    "sglang_model.tool_parsers",
    "sglang_model.generation_parser",
    "sglang_model.generation_end",
    "sglang_model.sampling_params",
    "sglang_model.history",
    "vllm_model.chat_body",
    "vllm_model.length_refusal",
    "vllm_model.reasoning_fields",
    "nemo_gym.errors",
    "nemo_gym.reasoning",
    "nemo_gym.token_metadata",
    "nemo_gym.token_ids",
    "nemo_gym.id_text",
    "nemo_gym.json_ids",
    "nemo_gym.by_reference",
    "sglang_model.id_sequences",
    "sglang_model.recent_texts",
    "sglang_model.chat_answer",
    "nemo_gym.grown_list",
    "nemo_gym.request_memo",
    "sglang_model.sampled_entries",
    "sglang_model.generate_answer",
    "sglang_model.segments",
    "sglang_model.segment_cache",
    "sglang_model.json_size",
)
FRAMEWORKS = ("fastapi", "starlette", "httpx", "aiohttp", "transformers", "uvicorn")
TYPES_AND_CONVERTER = (
    "nemo_gym.token_metadata",
    "nemo_gym.responses_types",
    "nemo_gym.responses_items",
    "nemo_gym.chat_types",
    "nemo_gym.responses_converter",
)
CLIENT_AND_SERVER = (
    "nemo_gym.openai_client",
    "nemo_gym.http_pool",
    "nemo_gym.server_utils",
    "nemo_gym.server_client",
)
APPS = ("vllm_model.app", "sglang_model.app")


def modules() -> dict[str, set[str]]:
    """Every module of the project with the modules it imports when it is imported."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = set(imports(ast.parse(path.read_text())))
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = modules()


def reached(name: str) -> set[str]:
    """Everything that importing `name` imports, through the project's own modules."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for imported in MODULES.get(waiting.pop(), ()):
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return seen


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_the_packages_below_it(package):
    allowed = {package} | LAYERS[package]
    for name, imported in MODULES.items():
        if name.split(".")[0] == package:
            own = {module.split(".")[0] for module in imported} & set(PACKAGES)
            assert own <= allowed, f"{name} imports {own - allowed}"


def test_the_error_tree_imports_nothing_of_the_project():
    assert not {module for module in MODULES["nemo_gym.errors"] if module.split(".")[0] in PACKAGES}


@pytest.mark.parametrize("name", PURE)
def test_a_pure_module_reaches_no_framework(name):
    assert not {module for module in reached(name) if module.split(".")[0] in FRAMEWORKS}


@pytest.mark.parametrize("name", TYPES_AND_CONVERTER)
def test_types_and_converter_reach_neither_client_nor_server(name):
    assert not reached(name) & set(CLIENT_AND_SERVER)


def test_only_the_renderer_imports_transformers():
    importers = {
        name for name, imported in MODULES.items() if any(m.split(".")[0] == "transformers" for m in imported)
    }
    assert importers == {"sglang_model.renderer"}


def test_nothing_imports_an_app_but_a_subclass():
    importers = {
        (name, app) for name, imported in MODULES.items() for app in APPS if app in imported and name != app
    }
    assert importers == {("sglang_model.app", "vllm_model.app")}


def test_validation_never_uses_assert():
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            asserts = [
                node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)
            ]
            assert not asserts, f"{path.name}: {asserts}"
