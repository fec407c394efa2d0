"""`sglang-model gym-plugin DIR`: the server folder with which the real NeMo Gym starts this model server.

Gym looks for `responses_api_models/sglang_model` in its working directory and runs its `app.py` in the folder's own
virtual environment. Its set-up installs the real nemo-gym there, whose package `nemo_gym` cannot share an environment
with ours. The `app.py` that is written therefore goes on in the environment that this command runs in, whichever
environment it was started with; a minimal ready one is written too, for `+skip_venv_if_present=true`.

Facts about Gym's set-up: nemo-gym 0.4.0, cli/setup_command.py.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from nemo_gym.config_files import install_root
from nemo_gym.environment import refuse_shared_environment
from nemo_gym.errors import ConfigError
from sglang_model import gym_plugin_entrypoint

FOLDER: Final = Path("responses_api_models", "sglang_model")
VENV: Final = ".venv"
MANIFEST: Final = ".sglang-model.json"
"""Which files were written, with their digests: what differs from them is the user's own."""

# Gym's `--model-type sglang_model` reads the file that is named as the folder, `sglang_model/NAME` any other.
CONFIGS: Final = {
    "sglang_model.yaml": "sglang_model_for_training.yaml",
    "sglang_model_for_training.yaml": "sglang_model_for_training.yaml",
    "sglang_model_for_training_generate.yaml": "sglang_model_for_training_generate.yaml",
}

# Gym installs every server folder as a project. There is nothing to install: the server is elsewhere.
PYPROJECT: Final = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "sglang-model-gym-plugin"
version = "0"
description = "Starts the SGLang model server, which is installed in an environment of its own"
requires-python = ">=3.11"

[tool.setuptools]
py-modules = []
"""

NEXT_STEPS: Final = """\
Wrote {folder}
The server runs in {python}; {variable} names another one.
In {directory}, with NeMo Gym's environment:
  gym env start --model-type sglang_model --model-url http://HOST:PORT/v1 --model NAME --model-api-key KEY \\
      --resources-server example_session_state_mgmt +skip_venv_if_present=true
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("gym-plugin", help="write the server folder that the real NeMo Gym starts")
    parser.add_argument("directory", type=Path, help="the directory in which `gym env start` will be run")
    parser.add_argument("--force", action="store_true", help="replace files that this command did not write")
    parser.set_defaults(run=lambda arguments: _run(arguments.directory, force=arguments.force))


def _run(directory: Path, *, force: bool) -> int:
    folder = write_gym_plugin(directory, force=force)
    sys.stdout.write(
        NEXT_STEPS.format(
            folder=folder,
            python=sys.executable,
            variable=gym_plugin_entrypoint.PYTHON_VARIABLE,
            directory=directory.resolve(),
        )
    )
    return 0


def write_gym_plugin(directory: Path, *, force: bool = False) -> Path:
    """Write the server folder under `directory` and return it.

    Written again, it is brought up to date. A folder or a file that is somebody else's is a ConfigError, unless
    `force`. So is an environment that holds the real nemo-gym too: the server would not run in it.
    """
    refuse_shared_environment()
    folder = directory.resolve() / FOLDER
    files = plugin_files()
    if not force:
        _refuse_foreign(folder, files)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / MANIFEST).write_bytes(
        orjson.dumps({name: _digest(text.encode()) for name, text in files.items()})
    )
    _make_ready_environment(folder / VENV)
    return folder


def plugin_files() -> dict[str, str]:
    """The text of every file of the folder, by its name in it."""
    configs = install_root() / "configs"
    texts = {name: (configs / source).read_text(encoding="utf-8") for name, source in CONFIGS.items()}
    return {
        "app.py": _app(),
        "pyproject.toml": PYPROJECT,
        **{f"configs/{name}": text for name, text in texts.items()},
    }


def _app() -> str:
    text = Path(gym_plugin_entrypoint.__file__).read_text(encoding="utf-8")
    source_tree = Path(__file__).resolve().parents[1]
    # A checkout need not be installed: the server finds its packages where this process did.
    found = str(source_tree) if (source_tree / "pyproject.toml").is_file() else ""
    return text.replace('"@PYTHON@"', repr(sys.executable)).replace('"@SOURCE_TREE@"', repr(found))


def _refuse_foreign(folder: Path, files: Mapping[str, str]) -> None:
    if not folder.exists() or not any(folder.iterdir()):
        return
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise ConfigError(
            f"{folder} exists and was not written by sglang-model gym-plugin; --force writes into it"
        )
    written: Mapping[str, str] = orjson.loads(manifest.read_bytes())
    changed = [
        name
        for name, text in files.items()
        if (path := folder / name).is_file()
        and _digest(path.read_bytes()) not in {written.get(name), _digest(text.encode())}
    ]
    if changed:
        raise ConfigError(f"{folder}: {', '.join(changed)} changed since written; --force replaces them")


def _make_ready_environment(path: Path) -> None:
    """A virtual environment with nothing in it: `app.py` needs no package. One that is there is left alone, because
    Gym may have made it."""
    if (path / "bin" / "python").exists() and (path / "bin" / "activate").is_file():
        return
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
