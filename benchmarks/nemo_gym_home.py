"""The environment that has nemo-gym: the one that NEMO_GYM_HOME names, else one that is made here once."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.paths import ROOT

VERSION = "0.4.0"
HOME_VARIABLE = "NEMO_GYM_HOME"
OWN_HOME = ROOT / ".venv-nemo-gym"
INSTALLER = ROOT / ".ci/install_gym.sh"


def nemo_gym_python() -> Path | None:
    """The Python of that environment; None where nemo-gym is not installed in it."""
    home = _home()
    python = home / "bin/python"
    installed = any(home.glob("lib/python*/site-packages/nemo_gym"))
    return python if installed and python.is_file() else None


def install_nemo_gym() -> str | None:
    """Make the environment if there is none. The reason why there is none afterwards, or None."""
    if nemo_gym_python() is not None:
        return None
    if HOME_VARIABLE in os.environ:
        return f"{HOME_VARIABLE} names no environment that has it"
    python = next(_pythons(), None)
    if python is None:
        return (
            f"it needs a Python 3.12, and none was found; {HOME_VARIABLE} may name an environment that has it"
        )
    print(f"installing nemo-gym {VERSION} into {OWN_HOME.name}, this once", flush=True)
    done = subprocess.run(
        ["/bin/bash", str(INSTALLER), str(OWN_HOME), python], capture_output=True, text=True, check=False
    )
    if done.returncode == 0 and nemo_gym_python() is not None:
        return None
    last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return f"it could not be installed: {last}"


def _home() -> Path:
    named = os.environ.get(HOME_VARIABLE)
    return Path(named).absolute() if named else OWN_HOME


def _pythons() -> Iterator[str]:
    """Interpreters of 3.12 that really run: a version manager's shim may exist and not work."""
    managed = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (*map(str, sorted(managed.glob("3.12*/bin/python"))), "python3.12"):
        program = "import sys; sys.exit(sys.version_info[:2] != (3, 12))"
        try:
            done = subprocess.run([candidate, "-c", program], capture_output=True, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            yield candidate
