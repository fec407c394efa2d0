"""NeMo Gym 0.4.0 itself, its simple_agent and one of its example environments, with this server as their model.

The environment keeps a counter per session: "add 1 then add 2 then get the count". Four model calls make an episode,
and its reward is 1 when the counter is right at the end: a lost cookie or a wrong tool call is seen there too.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families

from sglang_model.gym_plugin import write_gym_plugin
from sglang_model.testing import Engine, EngineSettings, Rule, create_engine_app
from sglang_model.token_accounting import TurnTokens, check_rollout
from tests.support.real_gym import HOME_VARIABLE, RealGym

HOME = Path(os.environ.get(HOME_VARIABLE, "")).absolute()
pytestmark = pytest.mark.skipif(
    not (HOME / "bin/gym").is_file(), reason=f"{HOME_VARIABLE} names no environment with nemo-gym 0.4.0"
)

ENVIRONMENT = "example_session_state_mgmt"
AGENT = f"{ENVIRONMENT}_simple_agent"
DATA = f"resources_servers/{ENVIRONMENT}/data/example.jsonl"
TASKS = 2
REPEATS = 4
CALLS = 4
REPLICAS = 8
CONTEXT_LENGTH = 8192
TOKEN_FIELDS = {"prompt_token_ids", "generation_token_ids", "generation_log_probs"}

Item = dict[str, object]


@dataclass(frozen=True)
class Run:
    """What one run of Gym left: its rollouts, the engine's memory, and the counters of the model server."""

    rollouts: list[Item]
    failures: bytes
    engine: Engine
    metrics: str
    gym: RealGym


SETTINGS = "++policy_model.responses_api_models.sglang_model"
FLAVOURS = {
    "chat": ["--model-type", "sglang_model"],
    "generate": [
        *("--model-type", "sglang_model/sglang_model_for_training_generate"),
        f"{SETTINGS}.context_length={CONTEXT_LENGTH}",
        f"{SETTINGS}.sglang_renderer=server",  # the embedded engine's tokenizer is in no repository
    ],
}


@pytest.fixture(scope="module", params=FLAVOURS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return asyncio.run(run_gym(tmp_path_factory.mktemp("gym"), FLAVOURS[request.param]))


async def run_gym(directory: Path, flavour: list[str]) -> Run:
    """As README.md has it: write the plugin, `gym env start`, `gym eval run`, Ctrl-C."""
    write_gym_plugin(directory)
    gym = RealGym(HOME, directory)
    gym.lend_environment_to("responses_api_agents/simple_agent", f"resources_servers/{ENVIRONMENT}")
    engine = create_engine_app(EngineSettings(rules=script(), context_length=CONTEXT_LENGTH))
    output = directory / "rollouts.jsonl"
    async with replicas(engine) as urls, gym.servers(*flavour, *start_arguments(urls)) as servers:
        await gym.collect(
            output,
            *("--agent", AGENT, "--input", DATA, "--limit", str(TASKS), "--num-repeats", str(REPEATS)),
            "+num_repeats_add_seed=true",
        )
        async with httpx.AsyncClient(trust_env=False) as client:
            metrics = (await client.get(f"{servers['policy_model']}/metrics")).text
    rollouts = [orjson.loads(line) for line in output.read_bytes().splitlines()]
    failures = (directory / "rollouts_failures.jsonl").read_bytes()
    return Run(rollouts, failures, engine, metrics, gym)


def start_arguments(urls: list[str]) -> list[str]:
    return [
        *("--resources-server", ENVIRONMENT, "--model", "embedded-engine", "--model-api-key", "x"),
        f"++policy_base_url=[{','.join(urls)}]",
        "+skip_venv_if_present=true",
    ]


def script() -> tuple[Rule, ...]:
    """What the model says in each turn. Every episode ends with another text, and one of them miscounts.

    Arguments are spelt as no template spells them, so a history that is rendered again shows.
    """
    results = "<tool_response>"
    last = [
        Rule(
            when=".*".join([results] * 3),
            times=1,
            reply=f"<think>\nDone.\n</think>\n\nEpisode {number} is over.",
        )
        for number in range(TASKS * REPEATS)
    ]
    adding = []
    for first, second in ((1, 2), (4, 5)):
        task = f"add {first} then add {second} then"
        adding.append(Rule(when=f"{task}.*{results}", reply=tool_call("increment_counter", second)))
        adding.append(Rule(when=task, reply=tool_call("increment_counter", first)))
    miscount = Rule(when=f"add 1 then(?!.*{results})", times=1, reply=tool_call("increment_counter", 9))
    look = Rule(when=".*".join([results] * 2), reply=tool_call("get_counter_value"))
    return (*last, look, miscount, *adding)


def tool_call(name: str, count: int | None = None) -> str:
    arguments = "{}" if count is None else f'{{"count":{count}}}'
    call = f'{{"name": "{name}", "arguments": {arguments}}}'
    return f"<think>\nNext.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"


@asynccontextmanager
async def replicas(engine: Engine) -> AsyncIterator[list[str]]:
    """One engine under several addresses: the one that a request came to shows its session's replica."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(REPLICAS)]
    server = uvicorn.Server(uvicorn.Config(engine, lifespan="off", log_config=None))
    task = asyncio.create_task(server.serve(listeners))
    try:
        yield [f"http://127.0.0.1:{listener.getsockname()[1]}/v1" for listener in listeners]
    finally:
        server.should_exit = True
        await task


def model_calls(rollout: Item) -> Iterator[list[Item]]:
    """The output items of each model call: what stands between the results of tools."""
    call: list[Item] = []
    for item in rollout["response"]["output"]:  # type: ignore[index]
        if item["type"] != "function_call_output":
            call.append(item)
        elif call:
            yield call
            call = []
    if call:
        yield call


def turns(rollout: Item) -> list[TurnTokens]:
    return [TurnTokens.of_output_item(items[-1]) for items in model_calls(rollout)]


def addresses_by_episode(engine: Engine) -> dict[tuple[str, int], list[str]]:
    """The addresses that the model calls of each episode came to; Gym seeds the repeats of a task differently."""
    addresses = defaultdict(list)
    for request in engine.requests:
        body: Any = request.body
        if request.path == "/v1/chat/completions":
            prompt, seed = orjson.dumps(body["messages"]).decode(), body["seed"]
        elif request.path == "/generate":
            prompt, seed = (
                engine.tokenizer.decode(body["input_ids"]),
                body["sampling_params"]["sampling_seed"],
            )
        else:
            continue
        task = re.search(r"add \d then add \d", prompt)
        assert task is not None
        addresses[task.group(), seed].append(request.headers["host"])
    return addresses


def test_every_episode_of_the_group_is_complete(run: Run) -> None:
    assert Counter(rollout["_ng_task_index"] for rollout in run.rollouts) == {0: REPEATS, 1: REPEATS}
    assert [len(list(model_calls(rollout))) for rollout in run.rollouts] == [CALLS] * TASKS * REPEATS
    assert run.failures == b""


def test_the_last_item_of_each_model_call_and_no_other_has_the_token_fields(run: Run) -> None:
    for rollout in run.rollouts:
        for items in model_calls(rollout):
            assert items[-1].keys() >= TOKEN_FIELDS
            assert not [item for item in items[:-1] if item.keys() & TOKEN_FIELDS]


def test_the_rollouts_hold_exactly_what_the_engine_saw_and_sampled(run: Run) -> None:
    """Each sample once: nothing lost, doubled, or given to another turn. Ids and logprobs are compared as they are."""
    received = Counter(
        (tuple(turn.prompt_token_ids), tuple(turn.generation_token_ids), tuple(turn.generation_log_probs))
        for rollout in run.rollouts
        for turn in turns(rollout)
    )
    sampled = Counter(
        (tuple(sample.prompt_token_ids), tuple(sample.token_ids), tuple(sample.logprobs))
        for sample in run.engine.samples
    )
    assert received == sampled
    assert received.total() == TASKS * REPEATS * CALLS


def test_each_prompt_begins_with_all_that_was_seen_and_sampled_before_as_nemo_rl_requires(run: Run) -> None:
    checks = [check for rollout in run.rollouts for check in check_rollout(turns(rollout))]
    assert len(checks) == TASKS * REPEATS * (CALLS - 1)
    assert all(check.holds for check in checks)


def test_the_cookies_keep_an_episode_in_one_session_and_episodes_apart(run: Run) -> None:
    """A session has one replica. Eight sessions that are one are on one replica, eight that are not hardly ever."""
    episodes = addresses_by_episode(run.engine)
    assert sorted(seed for _, seed in episodes) == sorted([*range(REPEATS)] * TASKS)
    assert [len(addresses) for addresses in episodes.values()] == [CALLS] * TASKS * REPEATS
    assert [len(set(addresses)) for addresses in episodes.values()] == [1] * TASKS * REPEATS
    assert len({address for addresses in episodes.values() for address in addresses}) > 1


def test_the_environment_rewards_the_episodes_that_counted_right(run: Run) -> None:
    rewards = defaultdict(list)
    for rollout in run.rollouts:
        rewards[rollout["_ng_task_index"]].append(rollout["reward"])
    assert sorted(rewards[0]) == [0.0, *[1.0] * (REPEATS - 1)]
    assert rewards[1] == [1.0] * REPEATS


def test_the_server_answered_nothing_but_200(run: Run) -> None:
    answered = {
        (sample.labels["route"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(run.metrics)
        for sample in family.samples
        if sample.name == "nemo_gym_requests_total"
    }
    assert answered["/v1/responses", "200"] == TASKS * REPEATS * CALLS
    assert {status for _, status in answered} == {"200"}


def test_gym_ends_as_it_should_and_leaves_no_process_behind(run: Run) -> None:
    assert run.gym.exit_code == 0
    assert run.gym.left_behind == []
