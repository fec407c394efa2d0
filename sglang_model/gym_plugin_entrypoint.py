"""The model server of this folder: it goes on in the Python environment that has nemo-gym-sglang.

NeMo Gym runs this file with the virtual environment of this folder. The real nemo-gym may be installed there, whose
package `nemo_gym` would stand in for ours, so this file uses the standard library only. The process stays the same:
its id, signals and exit code are the server's. `sglang-model gym-plugin` writes it, with its two paths filled in.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PYTHON = "@PYTHON@"
SOURCE_TREE = "@SOURCE_TREE@"
PYTHON_VARIABLE = "NEMO_GYM_SGLANG_PYTHON"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def search_path(inherited: str, source_tree: str, folder: Path) -> Iterator[str]:
    """PYTHONPATH without this folder, and without a directory that has a `nemo_gym`: it would come before ours."""
    if source_tree:
        yield source_tree
    for entry in filter(None, inherited.split(os.pathsep)):
        if Path(entry).resolve() != folder and not Path(entry, "nemo_gym").exists():
            yield entry


def continued(env: Mapping[str, str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment to go on with. -P: the working directory is not searched for packages."""
    chosen = env.get(PYTHON_VARIABLE)
    path = os.pathsep.join(search_path(env.get("PYTHONPATH", ""), "" if chosen else SOURCE_TREE, folder))
    kept = {name: value for name, value in env.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return [chosen or PYTHON, "-P", "-m", "sglang_model.app"], kept | ({"PYTHONPATH": path} if path else {})


def end_with_shell() -> None:
    """Ask for SIGTERM when the parent ends, if that is the shell through which Gym 0.4.0 starts a server.

    Gym signals the shell, and kills it after a second. Bash from 5.1 on has become the server by then; an older one, or
    one that pipes into `nemo_gym_log_dir`, is another process and passes nothing on: the server would be left behind.
    """
    parent = Path(f"/proc/{os.getppid()}/comm")
    if sys.platform == "linux" and parent.exists() and parent.read_text() == "bash\n":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    end_with_shell()
    command, env = continued(os.environ, Path(__file__).resolve().parent)
    try:
        os.execve(command[0], command, env)  # noqa: S606 - no shell, and that is the purpose of this file
    except OSError as error:
        sys.stderr.write(
            f"{command[0]} cannot be run: {error.strerror}. Set {PYTHON_VARIABLE} to the Python of the environment "
            "that has nemo-gym-sglang, or write this folder again with that environment's sglang-model gym-plugin\n"
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
