"""What a run was made on, as far as it bears on the numbers: no host names, no paths."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from benchmarks.nemo_gym_home import VERSION, nemo_gym_python
from benchmarks.paths import ROOT

_LIBRARIES = (
    *("uvicorn", "httptools", "uvloop", "starlette", "fastapi", "pydantic", "orjson", "aiohttp", "httpx"),
    *("msgspec", "numpy", "openai", "tokenizers", "transformers"),
)
_NEMO_GYM_LIBRARIES = (
    "uvicorn",
    "httptools",
    "uvloop",
    "starlette",
    "fastapi",
    "pydantic",
    "orjson",
    "aiohttp",
)


def describe_machine(*, tokenizer: str, run: str) -> dict[str, str]:
    """Facts by name, in the order in which the report lists them."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "run": run,
        "commit": _commit(),
        "CPU": f"{_cpu_model()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "libraries": _versions(_LIBRARIES),
        f"nemo-gym {VERSION}": _nemo_gym_versions(),
        "tokenizer": tokenizer,
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _versions(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} {metadata.version(name)}" for name in names if _installed(name))


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _nemo_gym_versions() -> str:
    """Versions in the other environment, asked of its own Python."""
    python = nemo_gym_python()
    if python is None:
        return "not installed, not measured"
    program = (
        "import sys, platform, importlib.metadata as m\n"
        "known = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "found = [f'{name} ' + known.get(name, 'missing') for name in sys.argv[1:]]\n"
        "print('Python ' + platform.python_version(), *found, sep=', ')"
    )
    command = [str(python), "-I", "-c", program, *_NEMO_GYM_LIBRARIES]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _commit() -> str:
    """The short hash, with "+" where files have been changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()
