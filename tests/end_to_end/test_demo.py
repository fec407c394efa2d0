"""`make demo`, as a newcomer runs it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


async def run_demo(cwd: Path) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sglang_model.cli",
        "demo",
        cwd=cwd,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode() if process.returncode == 0 else err.decode()


async def test_the_demo_prints_what_the_readme_shows(tmp_path):
    code, printed = await run_demo(tmp_path)
    assert code == 0, printed
    shown = re.search(r"<!-- demo: .*?-->\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown.group(1) in printed
