"""Runs one generation: queue, sampling, stopping, aborting; and keeps the truth about what was sampled.

It is the engine's scheduler. It knows ids and the clock, and neither HTTP nor JSON.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from sglang_model.testing.limits import Window
from sglang_model.testing.misbehaviour import Misbehaviour
from sglang_model.testing.policy import Context, Policy, Rule
from sglang_model.testing.sampling import SamplingParams, WireValueError
from sglang_model.testing.tokenizer import EngineTokenizer
from sglang_model.testing.versions import WireVersion

_TAIL_TOKENS = 48
_REMEMBERED_PREFIXES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One generation that is to run."""

    rid: str
    window: Window
    params: SamplingParams
    choice: int = 0
    rule: Rule | None = None
    misbehaviour: Misbehaviour | None = None
    disconnected: Callable[[], Awaitable[None]] | None = None


@dataclass(slots=True, kw_only=True)
class Sample:
    """One generation that ran: the truth, before any misbehaviour edits what is reported of it.

    `logprobs` may be one longer than `token_ids`: the phantom entry of a generation without room.
    """

    rid: str
    prompt_token_ids: list[int]
    echoed_prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    sampled_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: dict[str, object] = field(default_factory=dict)
    text: str = ""
    cached_tokens: int = 0
    queued: bool = False
    """Given up in the waiting queue: SGLang then reports neither prompt tokens nor cached tokens."""
    started_at: float = 0.0
    seconds: float = 0.0


class Gate:
    """A door that held requests wait at. Invariant: once open it stays open."""

    def __init__(self) -> None:
        self.waiting = 0
        self._open = asyncio.Event()
        self._changed = asyncio.Condition()

    def open(self) -> None:
        self._open.set()

    async def pass_through(self) -> None:
        async with self._changed:
            self.waiting += 1
            self._changed.notify_all()
        try:
            await self._open.wait()
        finally:
            self.waiting -= 1

    async def until_waiting(self, count: int = 1) -> None:
        """Returns when `count` requests stand at the gate: how a test knows that they arrived."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.waiting >= count)


class PrefixCache:
    """The last sequences, to report `cached_tokens` as a radix cache would."""

    def __init__(self) -> None:
        self._seen: deque[list[int]] = deque(maxlen=_REMEMBERED_PREFIXES)

    def longest(self, ids: list[int]) -> int:
        """Length of the longest known prefix of `ids`; the last prompt token is always computed."""
        best = max((_common_prefix(seen, ids) for seen in self._seen), default=0)
        return min(best, max(len(ids) - 1, 0))

    def add(self, ids: list[int]) -> None:
        self._seen.append(ids)


def _common_prefix(left: list[int], right: list[int]) -> int:
    """Bisected on slice equality, which runs in C: prompts can be long."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Scheduler:
    """Owns the requests in flight. Invariant: a live rid is unique; a run not cancelled ends in one `Sample`."""

    def __init__(
        self, policy: Policy, tokenizer: EngineTokenizer, version: WireVersion, eos_ids: Sequence[int]
    ) -> None:
        self.samples: list[Sample] = []
        self._policy = policy
        self._tokenizer = tokenizer
        self._version = version
        self._eos_ids = frozenset({tokenizer.eos_token_id, *eos_ids})
        self._live: dict[str, asyncio.Event] = {}
        self._gates: dict[str, Gate] = {}
        self._cache = PrefixCache()
        self._ended = asyncio.Condition()

    def gate(self, name: str) -> Gate:
        return self._gates.setdefault(name, Gate())

    def abort(self, rid_prefix: str, *, everything: bool = False) -> None:
        """Cancels live requests by rid prefix, as `/abort_request` does; an unknown rid is no error."""
        for rid, event in self._live.items():
            if everything or rid.startswith(rid_prefix):
                event.set()

    async def run(self, job: Job) -> Sample:
        """The sample of `job`; raises WireValueError when its rid is already live."""
        if job.rid in self._live:
            raise WireValueError(f"Duplicate request ID detected: {job.rid}")
        aborted = self._live[job.rid] = asyncio.Event()
        sample = Sample(
            rid=job.rid,
            prompt_token_ids=job.window.seen,
            echoed_prompt_ids=job.window.echoed,
            started_at=time.time(),
        )
        clock = time.perf_counter()
        try:
            if await self._gives_up(job, None, aborted):
                sample.queued = True
                sample.finish_reason = _abort_reason(job, "Abort in waiting queue")
            else:
                await self._sample(job, sample, aborted)
        finally:
            del self._live[job.rid]
        sample.seconds = time.perf_counter() - clock
        self.samples.append(sample)
        async with self._ended:
            self._ended.notify_all()
        return sample

    async def until_sampled(self, count: int) -> None:
        async with self._ended:
            await self._ended.wait_for(lambda: len(self.samples) >= count)

    async def _gives_up(self, job: Job, tokens: int | None, aborted: asyncio.Event) -> bool:
        """Holds the job where its misbehaviour says so; True when it is to be aborted at this point."""
        wrong = job.misbehaviour
        if wrong is None or wrong.after_tokens != tokens:
            return aborted.is_set()
        if wrong.gate is not None or wrong.delay > 0:
            await _first_of(self.hold(wrong), aborted.wait(), _abort_when_gone(job, aborted))
        return aborted.is_set() or wrong.abort is not None

    async def hold(self, wrong: Misbehaviour) -> None:
        """Waits as long as the misbehaviour says."""
        if wrong.gate is not None:
            await self.gate(wrong.gate).pass_through()
        if wrong.delay > 0:
            await asyncio.sleep(wrong.delay)

    async def _sample(self, job: Job, sample: Sample, aborted: asyncio.Event) -> None:
        script = self._policy.script(job.rule)
        context = Context(job.window.seen)
        budget = 0 if job.misbehaviour is not None and job.misbehaviour.phantom else job.window.budget
        sample.cached_tokens = self._cache.longest(job.window.seen)
        ids = sample.sampled_ids
        while not sample.finish_reason:
            if await self._gives_up(job, len(ids), aborted):
                sample.finish_reason = _abort_reason(job, "Aborted")
                break
            token_id = self._policy.next_token(script, len(ids), context, job.params, job.choice)
            sample.logprobs.append(context.logprob(token_id))
            context.push(token_id)
            ids.append(token_id)
            sample.finish_reason = self._finish(ids, job.params, budget) or {}
        sample.token_ids = ids[:budget] if sample.finish_reason["type"] != "abort" else ids
        sample.text = self._text(sample, job.params)
        self._cache.add(job.window.seen + sample.token_ids)

    def _finish(self, ids: list[int], params: SamplingParams, budget: int) -> dict[str, object] | None:
        """Why the generation ends after the last of `ids`, or None. The version orders the checks."""
        length = {"type": "length", "length": budget} if len(ids) >= budget else None
        token = None
        if not params.ignore_eos and (ids[-1] in self._eos_ids or ids[-1] in params.stop_token_ids):
            token = {"type": "stop", "matched": ids[-1]}
        text = self._matched_text(ids, params)
        found: tuple[dict[str, object] | None, ...] = (length, token, text)
        if self._version.eos_before_length:
            found = (text, token, length)
        return next((reason for reason in found if reason is not None), None)

    def _matched_text(self, ids: list[int], params: SamplingParams) -> dict[str, object] | None:
        if not params.stop and not params.stop_regex:
            return None
        longest = max((len(stop) for stop in params.stop), default=0)
        tail = self._tokenizer.decode(ids[-(longest + _TAIL_TOKENS) :])
        for stop in params.stop:
            if stop in tail:
                return {"type": "stop", "matched": stop}
        for pattern in params.stop_regex:
            if re.search(pattern, tail):
                return {"type": "stop", "matched": pattern}
        return None

    def _text(self, sample: Sample, params: SamplingParams) -> str:
        """The text, without the stop that ended it unless no_stop_trim: it need not be decode(ids)."""
        matched = None if params.no_stop_trim else sample.finish_reason.get("matched")
        ids = sample.token_ids
        if isinstance(matched, int):
            ids = ids[:-1]
        text = self._tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens)
        return text.split(matched, 1)[0] if isinstance(matched, str) and matched else text


def _abort_reason(job: Job, message: str) -> dict[str, object]:
    told = job.misbehaviour.abort if job.misbehaviour is not None else None
    reason: dict[str, object] = {"type": "abort", "message": message}
    if told is not None and told.message is not None:
        reason["message"] = told.message
    status = told.status_code if told is not None else None
    if message == "Aborted" or status is not None:
        reason |= {"status_code": status, "err_type": None}
    return reason


async def _abort_when_gone(job: Job, aborted: asyncio.Event) -> None:
    """SGLang aborts what a disconnected client had asked for."""
    if job.disconnected is None:
        await aborted.wait()
    else:
        await job.disconnected()
        aborted.set()


async def _first_of(*awaitables: Coroutine[object, object, object]) -> None:
    waits = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
