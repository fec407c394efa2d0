"""What is measured under load: prompt sizes, concurrency, conversations. Data, and nothing but data.

A point is a workload; its servers get the very same requests of it, round by round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.stub_answers import Reply, Shape

Tier = Literal["quick", "default", "full"]

CHAT = ("stub-chat", "floor-chat", "chat", "nemo-gym")
GENERATE = ("stub-generate", "floor-generate", "generate")
EVERY = (
    *("stub-chat", "floor-chat", "chat", "chat-spliced", "chat-training"),
    *("stub-generate", "floor-generate", "generate", "nemo-gym"),
)


@dataclass(frozen=True)
class Point:
    """One workload. `sessions` run `concurrency` at a time, each of `turns` turns; a group shares its first prompt."""

    name: str
    title: str
    servers: tuple[str, ...]
    prompt_tokens: int
    concurrency: int
    sessions: int
    tiers: frozenset[Tier] = frozenset({"default", "full"})
    reply_tokens: int = 256
    turns: int = 1
    group: int = 1
    user_tokens: int = 64
    echo_ids: bool = True
    reply: Reply = "text"
    latency_ms: float = 0.0
    longest_prompt: int | None = None
    rounds: int = 3

    @property
    def cpu_per_turn(self) -> bool:
        return self.concurrency == 1 and self.turns > 1

    @property
    def shape(self) -> Shape:
        return Shape(
            prompt_tokens=self.prompt_tokens,
            reply_tokens=self.reply_tokens,
            turn_tokens=self.user_tokens,
            reply=self.reply,
            latency_ms=self.latency_ms,
        )

    def in_quick(self) -> Point:
        """One round of fewer sessions: whether everything works, not how fast it is."""
        sessions = max(self.concurrency, self.sessions // 4)
        longest = None if self.longest_prompt is None else min(self.longest_prompt, 16_000)
        return replace(self, rounds=1, sessions=min(sessions, self.sessions), longest_prompt=longest)


_QUICK: frozenset[Tier] = frozenset({"quick", "default", "full"})
_FULL: frozenset[Tier] = frozenset({"full"})
_THOUSANDS = {1: 1_024, 8: 8_192, 32: 32_768, 100: 102_400}


def _single(
    thousands: int,
    concurrency: int,
    sessions: int,
    *,
    reply_tokens: int = 256,
    servers: tuple[str, ...] = CHAT,
    tiers: frozenset[Tier] = _FULL,
    rounds: int = 3,
) -> Point:
    """A point of single turns: every prompt is new to everybody."""
    long_reply = reply_tokens != 256
    return Point(
        name=f"{thousands}k-c{concurrency}{'-2k-reply' if long_reply else ''}",
        title=f"{thousands}k prompt, c={concurrency}{', 2k generated' if long_reply else ''}",
        servers=servers,
        prompt_tokens=_THOUSANDS[thousands],
        concurrency=concurrency,
        sessions=sessions,
        reply_tokens=reply_tokens,
        tiers=tiers,
        rounds=rounds,
    )


_SINGLE_TURNS = {
    point.name: point
    for point in (
        _single(1, 1, 150, tiers=_FULL | {"default"}, servers=(*CHAT, *GENERATE)),
        _single(1, 16, 320, tiers=_FULL | {"default"}),
        _single(1, 64, 384, tiers=_QUICK, servers=EVERY, rounds=5),
        _single(1, 256, 768, tiers=_FULL | {"default"}, servers=(*CHAT, *GENERATE)),
        _single(8, 16, 160, tiers=_QUICK, servers=EVERY, rounds=9),
        _single(8, 256, 512, tiers=_FULL | {"default"}),
        _single(32, 16, 64, tiers=_QUICK, servers=EVERY, rounds=5),
        _single(100, 1, 16, tiers=_FULL | {"default"}),
        _single(100, 16, 32, tiers=_QUICK, servers=EVERY, rounds=5),
        _single(1, 16, 160, reply_tokens=2048, tiers=_FULL | {"default"}, servers=(*CHAT, *GENERATE)),
        _single(100, 1, 16, reply_tokens=2048, tiers=_FULL | {"default"}),
    )
}

_CONVERSATIONS = (
    Point(
        name="turns-20",
        title="20 turns, 8k first prompt, ids echoed, c=4",
        servers=EVERY,
        prompt_tokens=8_192,
        concurrency=4,
        sessions=4,
        turns=20,
        tiers=_QUICK,
        rounds=11,
    ),
    Point(
        name="group-8k",
        title="groups of 8 sharing an 8k prompt, 6 turns, c=16",
        servers=EVERY,
        prompt_tokens=8_192,
        concurrency=16,
        sessions=32,
        turns=6,
        group=8,
        tiers=_QUICK,
        rounds=7,
    ),
    Point(
        name="cold-100k-c1",
        title="cold unique 100k prompts, c=1",
        servers=GENERATE,
        prompt_tokens=102_400,
        concurrency=1,
        sessions=6,
        tiers=_QUICK,
    ),
    Point(
        name="cold-100k-c4",
        title="cold unique 100k prompts, c=4",
        servers=GENERATE,
        prompt_tokens=102_400,
        concurrency=4,
        sessions=12,
    ),
    Point(
        name="growth-echoed",
        title="30 turns, 32k first prompt, ids echoed, c=1",
        servers=EVERY,
        prompt_tokens=32_768,
        concurrency=1,
        sessions=1,
        turns=30,
        tiers=_QUICK,
        rounds=5,
    ),
    Point(
        name="growth-bare",
        title="30 turns, 8k first prompt, ids not echoed, c=1",
        servers=EVERY,
        prompt_tokens=8_192,
        concurrency=1,
        sessions=1,
        turns=30,
        echo_ids=False,
        tiers=_QUICK,
        rounds=5,
    ),
    Point(
        name="slow-engine",
        title="256 sessions in groups of 8, 8k prompt, 4 turns, an engine that takes 1 s",
        servers=tuple(name for name in EVERY if name != "chat-spliced"),
        prompt_tokens=8_192,
        concurrency=256,
        sessions=256,
        turns=4,
        group=8,
        latency_ms=1_000.0,
        rounds=3,
    ),
    Point(
        name="history",
        title="tool rounds of about 350 tokens up to 128k, ids not echoed, c=1",
        servers=("generate", "generate-whole"),
        prompt_tokens=256,
        concurrency=1,
        sessions=1,
        turns=1_000,
        reply_tokens=32,
        user_tokens=320,
        echo_ids=False,
        reply="tool",
        longest_prompt=131_072,
        rounds=1,
    ),
)


def _grid() -> list[Point]:
    """Every combination that is not among the chosen points; only `--full` runs them."""
    rest = []
    for thousands in _THOUSANDS:
        for concurrency in (1, 16, 64, 256):
            for reply_tokens in (256, 2048):
                sessions = max(16, concurrency if thousands > 8 else 2 * concurrency, 160 // thousands)
                point = _single(thousands, concurrency, sessions, reply_tokens=reply_tokens)
                if point.name not in _SINGLE_TURNS:
                    rest.append(point)
    return rest


POINTS = {point.name: point for point in (*_SINGLE_TURNS.values(), *_CONVERSATIONS, *_grid())}


def points_of(tier: Tier) -> list[Point]:
    chosen = [point for point in POINTS.values() if tier in point.tiers]
    return [point.in_quick() for point in chosen] if tier == "quick" else chosen
