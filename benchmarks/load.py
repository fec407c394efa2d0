"""The load generator, in a process of its own: reads a LoadSpec from standard input, prints a LoadResult.

Sessions of several turns at a given concurrency against one server. Any answer but 200 with token ids ends the process
with exit code 1 and the reason: a point with errors is no measurement.
"""

from __future__ import annotations

import asyncio
import math
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httptools
import orjson
import uvloop

from benchmarks.conversation import Conversation, start_conversation
from benchmarks.load_types import LoadResult, LoadSpec, Samples
from benchmarks.proc import cpu_seconds, machine_busy_seconds, memory_mb
from benchmarks.quantiles import median, quantile
from benchmarks.raw_http import Answer, RawClient
from benchmarks.tokenizer import Corpus

SETTLE_SECONDS = 0.005
"""A server still has things to put away when its answer has arrived; they belong to the turn."""

TELLING_SECONDS = 0.2
WARM_UP_TOKENS = 500
"""Sessions of short prompts open the connections before anything counts."""


class LoadError(RuntimeError):
    """A server did not answer as it must."""


@dataclass(frozen=True)
class Clocks:
    """CPU seconds: of the server, of this process, and of everything else on the machine but the engine."""

    server: float
    client: float
    foreign: float

    def __sub__(self, earlier: Clocks) -> Clocks:
        return Clocks(
            self.server - earlier.server, self.client - earlier.client, self.foreign - earlier.foreign
        )


@dataclass(frozen=True)
class Session:
    """A conversation, and what its user says in it from the second turn on."""

    conversation: Conversation
    later: Sequence[str]


class LoadRun:
    """One visit. What its sessions say is drawn before the clock starts."""

    def __init__(self, spec: LoadSpec) -> None:
        self._spec = spec
        self._corpus = Corpus.load(Path(spec.corpus))
        self._texts = self._corpus.texts
        self._client = RawClient(spec.port)
        self._samples = Samples()

    async def run(self) -> LoadResult:
        spec = self._spec
        warm = [self._session(-1 - number, 1) for number in range(spec.warm_up)]
        await asyncio.gather(*map(self._talk, warm))
        sessions = [self._session(number, spec.turns) for number in range(spec.sessions)]
        self._samples = Samples()
        await asyncio.sleep(SETTLE_SECONDS)
        memory, before = memory_mb(spec.pid), self._clocks()
        started = time.perf_counter()
        await self._run_all(sessions, started + spec.max_seconds)
        seconds = time.perf_counter() - started
        await asyncio.sleep(SETTLE_SECONDS)
        used = self._clocks() - before
        self._client.close()
        return self._result(started, seconds, used, memory_before=memory)

    def _clocks(self) -> Clocks:
        server, engine = cpu_seconds(self._spec.pid), cpu_seconds(self._spec.engine_pid)
        if self._spec.pid == self._spec.engine_pid:
            engine = 0.0
        usage = resource.getrusage(resource.RUSAGE_SELF)
        own = usage.ru_utime + usage.ru_stime
        return Clocks(server, own, machine_busy_seconds() - server - engine - own)

    async def _run_all(self, sessions: Sequence[Session], deadline: float) -> None:
        waiting = iter(sessions)

        async def work(share: Iterator[Session]) -> None:
            for session in share:
                if time.perf_counter() > deadline:
                    return
                await self._talk(session)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._spec.concurrency, len(sessions))):
                group.create_task(work(waiting))

    def _session(self, number: int, turns: int) -> Session:
        """Sessions of a group share their first prompt; no two groups have a text in common."""
        spec = self._spec
        task = number // spec.group
        tokens = spec.prompt_tokens if number >= 0 else min(WARM_UP_TOKENS, spec.prompt_tokens)
        first = f"Task {task} of {spec.seed}. " + self._texts.draw(tokens, Random(f"{spec.seed} {task}"))
        conversation = start_conversation(
            spec.dialect,
            first,
            self._corpus,
            prompt_tokens=spec.prompt_tokens,
            echo_ids=spec.echo_ids,
            with_tool=spec.with_tool,
        )
        random = Random(f"{spec.seed} {number} later")
        return Session(conversation, [self._texts.draw(spec.user_tokens, random) for _ in range(turns)])

    async def _talk(self, session: Session) -> None:
        spec, conversation = self._spec, session.conversation
        cookie = b""
        cpu = cpu_seconds(spec.pid) if spec.cpu_per_turn else 0.0
        for turn, text in enumerate(session.later):
            answer = await self._answer(conversation, cookie, turn)
            if answer.cookies:
                cookie = b"; ".join(answer.cookies)
            self._samples.add(turn, answer.seconds)
            try:
                conversation.go_on(answer.body, text)
            except (ValueError, LookupError) as error:
                raise LoadError(f"turn {turn + 1}: {error}") from error
            if spec.must_splice and turn and conversation.history != "spliced":
                raise LoadError(f"turn {turn + 1}: expected a spliced history, got {conversation.history}")
            if spec.cpu_per_turn:
                await asyncio.sleep(SETTLE_SECONDS)
                before, cpu = cpu, cpu_seconds(spec.pid)
                self._samples.costs.append(
                    {"prompt_tokens": conversation.prompt_tokens, "cpu_ms": 1e3 * (cpu - before)}
                )
            if spec.longest_prompt is not None and conversation.prompt_tokens >= spec.longest_prompt:
                return

    async def _answer(self, conversation: Conversation, cookie: bytes, turn: int) -> Answer:
        try:
            answer = await self._client.post(conversation.path, conversation.body(), cookie)
        except (OSError, TimeoutError, httptools.HttpParserError) as error:
            raise LoadError(f"turn {turn + 1}: {type(error).__name__}: {error}") from error
        if answer.status != 200:
            raise LoadError(
                f"turn {turn + 1}: HTTP {answer.status}: {answer.body[:500].decode(errors='replace')}"
            )
        return answer

    def _result(self, started: float, seconds: float, used: Clocks, *, memory_before: float) -> LoadResult:
        latencies = [1e3 * value for value in self._samples.seconds]
        count = len(latencies)
        return {
            "requests": count,
            "started_at": started,
            "seconds": seconds,
            "requests_per_second": count / seconds,
            "p50_ms": quantile(latencies, 0.5),
            "p95_ms": quantile(latencies, 0.95),
            "p99_ms": quantile(latencies, 0.99),
            "cpu_ms_per_request": 1e3 * used.server / count,
            "client_cpu_ms_per_request": 1e3 * used.client / count,
            "foreign_cores": max(0.0, used.foreign) / seconds if seconds > TELLING_SECONDS else math.nan,
            "rss_before_mb": memory_before,
            "rss_after_mb": memory_mb(self._spec.pid),
            "rss_peak_mb": memory_mb(self._spec.pid, "VmHWM"),
            "turn_ms": [1e3 * median(values) for _, values in sorted(self._samples.by_turn.items())],
            "turn_costs": self._samples.costs,
        }


def main() -> int:
    spec = LoadSpec(**orjson.loads(sys.stdin.buffer.read()))
    failures: Sequence[BaseException] = ()
    try:
        sys.stdout.buffer.write(orjson.dumps(uvloop.run(LoadRun(spec).run())))
    except* LoadError as group:
        failures = group.exceptions
    if failures:
        print(f"{len(failures)} sessions failed; {failures[0]}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
