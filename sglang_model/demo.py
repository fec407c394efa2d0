"""`sglang-model demo`: the whole way once, on this machine and without a GPU.

Starts the embedded engine and, as `ng_run` does, the model servers of configs/demo.yaml, one on each transport; runs a
tool-using rollout through each; prints the turns with their token accounting and the checked prefix equation.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
from omegaconf import OmegaConf

from nemo_gym.child_process import sink_to
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import load_global_config
from nemo_gym.launch_plan import LaunchPlan, PlannedServer, plan_launch
from nemo_gym.launcher import Launcher, wait_until_ready
from nemo_gym.ports import pick_free_port
from sglang_model.demo_rollout import QUESTION, Rollout, Turn, run_rollout
from sglang_model.testing import EngineSettings, create_engine_app
from sglang_model.testing.tokenizer_folder import write_tokenizer_folder
from sglang_model.token_accounting import PrefixCheck, check_rollout

CONFIG = "configs/demo.yaml"
HOST = "127.0.0.1"


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("demo", help="embedded engine, a model server per transport, and rollouts")
    parser.add_argument("--keep", action="store_true", help="leave the servers up until Ctrl-C")
    parser.set_defaults(run=lambda arguments: asyncio.run(demo(keep=arguments.keep)))


async def demo(*, keep: bool) -> int:
    """Run the demo; the exit code is 0 when every prompt begins with what was seen and sampled before it."""
    engine_port = pick_free_port(HOST, 30_000, 40_000, taken=())
    with TemporaryDirectory() as folder:
        plan, settings = _plan(engine_port, write_tokenizer_folder(Path(folder)))
        async with _engine(settings, engine_port), _model_servers(plan):
            print(
                f"embedded engine (a stand-in for SGLang {settings.version}, no model): http://{HOST}:{engine_port}"
            )
            kept = [await _show(server) for server in plan.servers]
            if keep:
                urls = ", ".join(f"{server.name} at {server.url}" for server in plan.servers)
                print(f"\nThe model servers stay up: {urls}. Ctrl-C ends them.")
                await asyncio.Event().wait()
    return 0 if all(kept) else 1


async def _show(server: PlannedServer) -> bool:
    print(f"\n== transport: {server.name}")
    return print_rollout(await run_rollout(server.url))


def _plan(engine_port: int, tokenizer: Path) -> tuple[LaunchPlan, EngineSettings]:
    overrides = [
        f"+config_paths=[{CONFIG}]",
        f"++policy_base_url=http://{HOST}:{engine_port}/v1",
        "++policy_api_key=demo",
        "++policy_model_name=embedded-engine",
        f"++demo_tokenizer={tokenizer}",
    ]
    config = load_global_config(overrides, cwd=Path.cwd(), env=os.environ)
    settings = OmegaConf.to_container(config.values.demo_engine, resolve=True)
    return plan_launch(config, cwd=Path.cwd(), env=os.environ), EngineSettings.model_validate(settings)


@asynccontextmanager
async def _engine(settings: EngineSettings, port: int) -> AsyncIterator[None]:
    config = uvicorn.Config(
        create_engine_app(settings), host=HOST, port=port, log_level="warning", lifespan="off"
    )
    server = uvicorn.Server(config)
    # The demo's own Ctrl-C handling is the launcher's.
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server.serve())
    try:
        yield
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def _model_servers(plan: LaunchPlan) -> AsyncIterator[None]:
    """The model servers as child processes, as in a training run. Their output is shown if one does not start."""
    output = io.BytesIO()
    sink = sink_to(output)
    launcher = Launcher(plan, cwd=Path.cwd(), env=os.environ, out=sink, err=sink)
    running = asyncio.create_task(launcher.run())
    ready = asyncio.create_task(wait_until_ready(plan.servers))
    try:
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            sys.stderr.buffer.write(output.getvalue())
            raise ConfigError("a model server did not start; its own output says why")
        yield
    finally:
        ready.cancel()
        launcher.request_stop()
        await running


def print_rollout(rollout: Rollout) -> bool:
    """Print the turns; true when the equation held from each turn to the next."""
    checks = check_rollout([turn.tokens for turn in rollout.turns])
    print(f"user: {QUESTION}")
    for number, turn in enumerate(rollout.turns, start=1):
        print(f"turn {number}: {_summary(turn)}")
        if number > 1:
            print(f"  prefix: {_explain(checks[number - 2])}")
        print(f"  tokens: {_accounting(turn)}")
    kept = sum(check.holds for check in checks)
    print(f"prefix kept from turn to turn: {kept} of {len(checks)}")
    return kept == len(checks)


def _summary(turn: Turn) -> str:
    calls = [f"{call['name']}({call['arguments']})" for call in turn.calls]
    return f"{turn.status}, " + (f"calls {', '.join(calls)}" if calls else f"says {turn.text.strip()!r}")


def _accounting(turn: Turn) -> str:
    prompt, sampled = len(turn.tokens.prompt_token_ids), len(turn.tokens.generation_token_ids)
    logprobs = turn.tokens.generation_log_probs
    made_of = (
        f"{turn.kept_tokens} kept, {prompt - turn.kept_tokens} new" if turn.kept_tokens else turn.history
    )
    return (
        f"prompt {prompt} ({made_of}) + sampled {sampled}, {len(logprobs)} logprobs, sum {sum(logprobs):.2f}"
    )


def _explain(check: PrefixCheck) -> str:
    if check.holds:
        return f"exact, all {check.seen_tokens} tokens seen and sampled so far begin the next prompt"
    return (
        f"NOT kept: the engine rendered the history anew, and its prompt of {check.next_prompt_tokens} tokens differs "
        f"from the {check.seen_tokens} seen and sampled from token {check.first_difference} on"
    )
