"""`sglang-model`: the tool beside the server. Each command is a module with a `register` of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nemo_gym.errors import GymError
from sglang_model import demo, gym_plugin, template_command
from sglang_model.testing import engine_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error of the configuration or the engine is one line."""
    parser = argparse.ArgumentParser(prog="sglang-model", description="Tools beside the SGLang model server")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (demo, engine_command, gym_plugin, template_command):
        command.register(subparsers)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except GymError as error:
        print(f"sglang-model: {error.message}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
