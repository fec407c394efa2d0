"""How a server's process and its uvicorn workers tell each other what they are.

With `num_workers > 1` uvicorn starts processes that import the entry-point file by name and take `app` from
it. Three environment variables, named as in NeMo Gym, carry what a worker has to know. An entry-point file
therefore ends with

    if __name__ == "__main__":
        MyServer.run_webserver()
    elif is_nemo_gym_fastapi_entrypoint(__file__):
        app = MyServer.run_webserver()
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

IS_NEMO_GYM_FASTAPI_WORKER_KEY_NAME: Final = "IS_NEMO_GYM_FASTAPI_WORKER"
IS_NEMO_GYM_FASTAPI_ENTRYPOINT_KEY_NAME: Final = "IS_NEMO_GYM_FASTAPI_ENTRYPOINT"
NEMO_GYM_FASTAPI_NUM_WORKERS: Final = "NEMO_GYM_FASTAPI_NUM_WORKERS"


def is_nemo_gym_fastapi_worker() -> bool:
    """Say whether this process is one of several workers, and not the one that started them."""
    return os.environ.get(IS_NEMO_GYM_FASTAPI_WORKER_KEY_NAME) == "1"


def get_nemo_gym_fastapi_num_workers() -> int:
    """Return how many processes serve this server, for what is shared out among them."""
    return int(os.environ.get(NEMO_GYM_FASTAPI_NUM_WORKERS, "1"))


def is_nemo_gym_fastapi_entrypoint(file: str) -> bool:
    """Say whether `file` is being imported by a worker as the entry point whose `app` it will serve.

    False as well while a starting worker runs the parent's main file under the name `__mp_main__`, as
    multiprocessing does: the server would otherwise be built twice in every worker.
    """
    entrypoint = os.environ.get(IS_NEMO_GYM_FASTAPI_ENTRYPOINT_KEY_NAME)
    if not is_nemo_gym_fastapi_worker() or not entrypoint:
        return False
    if sys._getframe(1).f_globals.get("__name__") == "__mp_main__":
        return False
    wanted = Path(entrypoint).parts
    return Path(file).resolve().parts[-len(wanted) :] == wanted


def announce_workers(entrypoint: Path, num_workers: int) -> None:
    """Tell the processes started from here on that they are `num_workers` workers of `entrypoint`."""
    os.environ[IS_NEMO_GYM_FASTAPI_WORKER_KEY_NAME] = "1"
    os.environ[IS_NEMO_GYM_FASTAPI_ENTRYPOINT_KEY_NAME] = str(entrypoint.resolve())
    os.environ[NEMO_GYM_FASTAPI_NUM_WORKERS] = str(num_workers)


class AppImport(NamedTuple):
    """What uvicorn needs to import an app: the import string and a directory to find it from."""

    import_string: str
    app_dir: str


def app_import(file: Path) -> AppImport:
    """Return how a worker imports the entry-point `file`.

    By its dotted name when that name leads to this very file (an installed package: `sglang_model.app`).
    Otherwise by its bare name from its own directory, as `python app.py` has it: NeMo Gym's plugin folders
    (`responses_api_models/sglang_model/app.py`) are not importable by a dotted name, and the name of the
    folder may be that of an installed package.
    """
    file = file.resolve()
    dotted = _dotted_name(file)
    if dotted is not None:
        package_root = file.parents[dotted.count(".") - 1].parent
        return AppImport(f"{dotted}:app", str(package_root))
    return AppImport(f"{file.stem}:app", str(file.parent))


def _dotted_name(file: Path) -> str | None:
    """Return the name under which `file` is importable as a part of a package, None when it is not."""
    names = [file.stem]
    folder = file.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) == 1:
        return None
    package = find_spec(names[0])
    found = package.origin if package is not None else None
    init = folder / names[0] / "__init__.py"
    if found is None or Path(found).resolve() != init.resolve():
        return None
    return ".".join(names)
