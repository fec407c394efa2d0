"""The command `ng_run`: read a configuration, check it, start its servers and watch them."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nemo_gym.child_process import sink_to
from nemo_gym.environment import refuse_shared_environment
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import load_global_config
from nemo_gym.launch_plan import LaunchPlan, plan_launch
from nemo_gym.launcher import Launcher

LOGGER = logging.getLogger("nemo_gym.cli")

CONFIG_ERROR_EXIT_CODE: Final = 2

HELP: Final = """\
usage: ng_run "+config_paths=[FILE.yaml,...]" [OVERRIDE ...]

Starts the servers that the files configure and watches them; Ctrl-C stops them. An override is one of
  +key=value      gives a value                       ++key=value   the same, and replaces an earlier override
  key=value       changes a value that is there       ~key          removes it
Keys are dotted:  +policy_model.responses_api_models.sglang_model.port=8000
Values:           12  1.5  true  null  word  'a, b'  [a,b]  {a: 1}  ${other.key}  ${oc.env:MY_KEY}
Quote arguments with brackets, braces or $ for your shell. Later sources win: files, ./env.yaml, overrides.
Paths are looked for in NEMO_GYM_EXTRA_ROOTS, the working directory and the installation (configs/...).
Keys are best kept in env.yaml (policy_api_key: ...): a command line can be read by everyone on the machine.
+dry_run=true checks the configuration and starts nothing; +verbose=true says more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0, 1 when a server ended, 2 when the configuration is wrong."""
    arguments = sys.argv[1:] if argv is None else argv
    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(HELP)
        return 0
    _configure_logging()
    try:
        refuse_shared_environment()
        cwd = Path.cwd()
        config = load_global_config(arguments, cwd=cwd, env=os.environ)
        plan = plan_launch(config, cwd=cwd, env=os.environ)
        return _launch(plan, cwd)
    except ConfigError as error:
        sys.stderr.write(f"ng_run: {error}\n")
        return CONFIG_ERROR_EXIT_CODE


def _launch(plan: LaunchPlan, cwd: Path) -> int:
    if plan.settings.verbose:
        logging.getLogger("nemo_gym").setLevel(logging.DEBUG)
    for server in plan.servers:
        LOGGER.info("%s: %s, %s", server.name, server.block.implementation, server.url)
    if plan.settings.dry_run:
        LOGGER.info("The configuration is valid; nothing was started, because of dry_run")
        return 0

    async def run() -> int:
        out, err = sink_to(sys.stdout.buffer), sink_to(sys.stderr.buffer)
        return await Launcher(plan, cwd=cwd, env=os.environ, out=out, err=err).run()

    return asyncio.run(run())


def _configure_logging() -> None:
    """Report on stdout, as NeMo Gym's launcher does; only a wrong configuration goes to stderr."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("nemo_gym")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


if __name__ == "__main__":
    sys.exit(main())
