"""What a remembered session takes: as the operating system sees the server grow, and as the store itself counts.

The growth of the process includes whatever else it keeps of a new prompt, caches of encoded text above all, and what
the allocator does not give back. The store is counted alone, in this process, by what Python allocates for it.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Collection, Iterator
from dataclasses import replace
from random import Random

from benchmarks.effort import Effort
from benchmarks.fleet import Fleet
from benchmarks.points import Point
from benchmarks.quantiles import slope
from benchmarks.records import Reading
from benchmarks.visits import load_spec, run_load
from sglang_model.conversation_digest import digest_conversation, digest_rendering
from sglang_model.sessions import InMemorySessionStore, Match, Turn

MEASUREMENT = "memory"
SERVER = "generate"
VOCABULARY = 150_000
WAVES = 10
WAVE = Point(
    name=MEASUREMENT,
    title="sessions of one 100k turn",
    servers=(SERVER,),
    prompt_tokens=102_400,
    concurrency=4,
    sessions=32,
)


def memory(fleet: Fleet, seed: int, effort: Effort, without: Collection[str]) -> Iterator[Reading]:
    if SERVER in without:
        return
    yield Reading(MEASUREMENT, SERVER, "store_bytes_per_token", store_bytes_per_token(group=1))
    yield Reading(MEASUREMENT, SERVER, "group_bytes_per_token", store_bytes_per_token(group=8))
    wave = replace(WAVE, sessions=4) if effort is Effort.QUICK else WAVE
    grown = _bytes_per_session(fleet, seed, wave)
    tokens = WAVE.prompt_tokens + WAVE.reply_tokens
    yield Reading(MEASUREMENT, SERVER, "rss_mb_per_session", grown / 1e6)
    yield Reading(MEASUREMENT, SERVER, "rss_bytes_per_token", grown / tokens)


def _bytes_per_session(fleet: Fleet, seed: int, wave: Point) -> float:
    """The slope of a fresh server's memory over the sessions it has seen.

    Of the later half only: the first sessions go into memory that loading the tokenizer has left free.
    """
    target = fleet.fresh(SERVER)
    fleet.configure(target.server.engine, wave.shape)
    sizes = []
    for number in range(WAVES):
        result = run_load(load_spec(target, wave, fleet, seed + number), what=f"{MEASUREMENT} on {SERVER}")
        sizes.append((float(number * wave.sessions), result["rss_after_mb"] * 2**20))
    fleet.retire(target.process)
    return slope(sizes[len(sizes) // 2 :])


def store_bytes_per_token(*, group: int, sessions: int = 8, turns: int = 20, tokens: int = 100_000) -> float:
    """Allocated bytes per token of the store's sessions: 90 % of each are prompts, a group shares its first prompt.

    Counted are the tokens of every session, also those that the store keeps once for several; not the latest turns that
    are at hand unpacked beside it, which have a bound of their own.
    """
    store = InMemorySessionStore(recent_text_bytes=0)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        seen = sum(
            _remember(store, number, Random(number // group), turns=turns, tokens=tokens)
            for number in range(sessions)
        )
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (held - before) / seen


def _remember(store: InMemorySessionStore, session: int, first: Random, *, turns: int, tokens: int) -> int:
    """Play one session into the store and return its length. `first` draws the ids of its first prompt."""
    later = Random(f"session {session}")
    rendering = digest_rendering(None, None)
    conversation = digest_conversation([{"role": "user", "content": "Begin."}])
    reply, message = tokens // 10 // turns, tokens * 4 // 10 // turns
    prompt = [first.randrange(VOCABULARY) for _ in range(tokens // 2)]
    for turn in range(turns):
        said = conversation.followed_by({"role": "assistant", "content": f"Turn {turn}."})
        sampled = [later.randrange(VOCABULARY) for _ in range(reply)]
        found = store.find(str(session), conversation, rendering)
        store.commit(
            str(session),
            found.handle if isinstance(found, Match) else None,
            Turn(
                conversation=said,
                rendering=rendering,
                prompt_token_ids=prompt,
                generation_token_ids=sampled,
                finish="stop",
                stop_token_id=None,
            ),
        )
        prompt = [*prompt, *sampled, *(later.randrange(VOCABULARY) for _ in range(message))]
        conversation = said.followed_by({"role": "user", "content": "Go on."})
    return len(prompt) - message
