"""Where things are in the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/performance.md"
RESULTS = ROOT / "benchmarks/results"
CONFIGS = ROOT / "configs"
