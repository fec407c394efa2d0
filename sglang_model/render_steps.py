"""Computations that ask for renderings, and the two ways to carry them out.

The splice and the probe need a chat template run, but must not know whether that happens here or in the
engine. They are generators: each yields a request for a rendering and goes on with the answer. Knows no
renderer.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TypeVar

from sglang_model.message_forms import Message
from sglang_model.splice_types import Rendered, RenderFailed, RenderRequest

T = TypeVar("T")

RenderSteps = Generator[RenderRequest, Rendered | RenderFailed, T]
"""A computation that yields renderings to be done and returns a T."""

_TEMPLATE_MESSAGE_LENGTH = 160
_QUOTE_LENGTH = 12


def run(
    steps: RenderSteps[T],
    render: Callable[[RenderRequest], Rendered | RenderFailed],
    *,
    first: RenderRequest | None = None,
) -> T:
    """Carry out the steps with a renderer that answers at once. What the renderer raises passes through.

    `first` is what steps that were begun elsewhere have asked for.
    """
    try:
        request = next(steps) if first is None else first
        while True:
            request = steps.send(render(request))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


async def run_async(
    steps: RenderSteps[T], render: Callable[[RenderRequest], Awaitable[Rendered | RenderFailed]]
) -> T:
    """Carry out the steps with a renderer that has to be awaited, such as the engine's own."""
    try:
        request = next(steps)
        while True:
            request = steps.send(await render(request))
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


def template_message(message: str, messages: Sequence[Message]) -> str:
    """A template's own error, cut short; withheld where it could be quoting the conversation."""
    shown = " ".join(message.split())[:_TEMPLATE_MESSAGE_LENGTH]
    texts = [text for m in messages if (text := str(m.get("content") or "").strip())]
    spoken = json.dumps([dict(m) for m in messages], ensure_ascii=False, default=str)
    windows = (shown[i : i + _QUOTE_LENGTH] for i in range(max(1, len(shown) - _QUOTE_LENGTH + 1)))
    if any(text in shown for text in texts) or any(window in spoken for window in windows):
        return "the chat template raised an error that may quote the conversation; its text is withheld"
    return f"the chat template raised {shown}"
