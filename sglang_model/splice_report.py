"""The table of what can be spliced: conversation shapes by chat templates, as markdown.

`python -m sglang_model.splice_report [DIR]` prints it for the `.jinja` files of a directory, or for our own
template families; docs/transports.md holds its output. The verdicts are the oracle's, not the algorithm's.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_model.splice_types import Refusal, Rendered, RenderFailed, RenderRequest
from sglang_model.testing.jinja_renderer import JinjaRenderer
from sglang_model.testing.splice_oracle import Cell, Verdict, judge
from sglang_model.testing.splice_shapes import all_shapes
from sglang_model.testing.template_facts import TemplateFacts, facts_of
from sglang_model.testing.template_families import FAMILIES

_SIGNS = {
    Verdict.RIGHT: "✓",
    Verdict.REFUSED: "R",
    Verdict.WRONG: "**W**",
    Verdict.REJECTED: "·",
    Verdict.NOT_RENDERED: "c",
    Verdict.LOST: "l",
    Verdict.FOREIGN: "f",
    Verdict.UNJUDGED: "?",
}
_LEGEND = (
    "✓ the fragment is the wanted text · **R** refused with a reason · **W** wrong · "
    "`·` the template itself rejects the conversation · "
    "`c` the template does not write the tool calls (flagged) · "
    "`l` the template loses a new message (refused, with that reason) · "
    "`f` the sampled stop token is not the template's, so no text is right (flagged or refused) · "
    "`?` the template cuts the reply's text, so this method cannot tell"
)


@dataclass(frozen=True)
class TemplateResult:
    """All shapes on one template, with a renderer of our own and with one that always ends in a generation
    prompt.
    """

    name: str
    cells: tuple[Cell, ...]
    server_cells: tuple[Cell, ...]


def measure(name: str, template: str, facts: TemplateFacts) -> TemplateResult:
    """Judge every shape on one template."""
    renderer = JinjaRenderer(template, facts.variables)
    shapes = all_shapes()
    local = tuple(judge(shape, facts, renderer) for shape in shapes)
    server = tuple(
        judge(shape, facts, _PromptOnly(renderer), renders_without_generation_prompt=False)
        for shape in shapes
    )
    return TemplateResult(name, local, server)


@dataclass(frozen=True)
class _PromptOnly:
    """A renderer as the engine's /tokenize is one: it cannot end a conversation with an assistant turn."""

    renderer: JinjaRenderer

    def __call__(self, request: RenderRequest) -> Rendered | RenderFailed:
        if not request.add_generation_prompt:
            return RenderFailed("this renderer always adds a generation prompt")
        return self.renderer(request)


def report(templates: Mapping[str, str]) -> str:
    """The markdown for templates by name: totals, the matrix of cells, and every refusal with its reason."""
    return _markdown(*_measured(templates))


def family_report() -> str:
    """The same for the template families of our own."""
    return _markdown(_measured_families(), [])


def _measured(templates: Mapping[str, str]) -> tuple[list[TemplateResult], list[str]]:
    known = {name: facts_of(name, text) for name, text in templates.items()}
    results = [measure(name, templates[name], facts) for name, facts in known.items() if facts is not None]
    return results, [name for name, facts in known.items() if facts is None]


def _measured_families() -> list[TemplateResult]:
    return [measure(family.name, family.template, family.facts) for family in FAMILIES]


def _markdown(results: Sequence[TemplateResult], unknown: Sequence[str]) -> str:
    lines = [*_totals(results), "", _LEGEND, "", *_matrix(results)]
    refusals = [*_refusals(results)]
    if refusals:
        lines += ["", "Refusals and wrong fragments:", "", *refusals]
    if unknown:
        lines += ["", f"Not scored, for their turn ends are not known here: {', '.join(unknown)}."]
    return "\n".join([*lines, ""])


def _totals(results: Sequence[TemplateResult]) -> list[str]:
    columns = ["renderer", "templates", "scored", *(verdict.value for verdict in Verdict)]
    lines = [_row(columns), _row(["---", *["--:"] * (len(columns) - 1)])]
    for label, sets in (
        ("local", [result.cells for result in results]),
        ("engine (always a generation prompt)", [result.server_cells for result in results]),
    ):
        count = Counter(cell.verdict for cells in sets for cell in cells)
        scored = sum(number for verdict, number in count.items() if verdict.scored)
        lines.append(_row([label, len(sets), scored, *(count[verdict] for verdict in Verdict)]))
    return lines


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _matrix(results: Sequence[TemplateResult]) -> list[str]:
    shapes = all_shapes()
    lines = [
        _row(["template", *(f"{shape.number:02}" for shape in shapes)]),
        _row(["---", *[":-:"] * len(shapes)]),
        *(_row([result.name, *(_SIGNS[cell.verdict] for cell in result.cells)]) for result in results),
    ]
    names = " · ".join(f"{shape.number:02} {shape.name}" for shape in shapes)
    return [*lines, "", f"Shapes (reply > what follows it): {names}"]


def _refusals(results: Sequence[TemplateResult]) -> list[str]:
    lines = []
    for result in results:
        for renderer, cells in (("local", result.cells), ("engine", result.server_cells)):
            for cell in cells:
                if cell.verdict in (Verdict.REFUSED, Verdict.WRONG):
                    shown = cell.result
                    why = (
                        f"{shown.reason.value}: {shown.detail}"
                        if isinstance(shown, Refusal)
                        else "wrong text"
                    )
                    lines.append(f"- {result.name}, shape {cell.shape.number:02}, {renderer} renderer: {why}")
    return lines


def write_block(document: Path, name: str, content: str) -> None:
    """Replace what stands between `<!-- name: ... -->` and the next `<!-- end -->` in a document."""
    block = re.compile(rf"(<!-- {re.escape(name)}: .*?-->\n).*?(\n<!-- end -->)", re.DOTALL)
    text = document.read_text(encoding="utf-8")
    document.write_text(
        block.sub(lambda found: found[1] + content.rstrip() + found[2], text), encoding="utf-8"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report for a directory of templates, or for our own families; 1 if any fragment is wrong."""
    parser = argparse.ArgumentParser(description="What can be spliced, conversation shapes by chat templates")
    parser.add_argument(
        "directory", nargs="?", type=Path, help="with .jinja files; else the families of our own"
    )
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="write the table into its block of a document"
    )
    arguments = parser.parse_args(argv)
    if arguments.directory is None:
        block, results = "families", _measured_families()
        unknown: list[str] = []
    else:
        block = "real templates"
        files = sorted(arguments.directory.glob("*.jinja"))
        results, unknown = _measured({file.stem: file.read_text(encoding="utf-8") for file in files})
    markdown = _markdown(results, unknown)
    if arguments.into is not None:
        write_block(arguments.into, block, markdown)
    else:
        sys.stdout.write(markdown)
    cells = [cell for result in results for cell in (*result.cells, *result.server_cells)]
    return 1 if any(cell.verdict is Verdict.WRONG for cell in cells) else 0


if __name__ == "__main__":
    sys.exit(main())
