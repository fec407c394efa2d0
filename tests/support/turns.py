"""Short ways to write conversations and finished turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sglang_model.conversation_digest import digest_conversation, digest_rendering
from sglang_model.sessions import CommitOutcome, InMemorySessionStore, Match, MissReason, Turn

Message = dict[str, object]

END = 151645
"""A stop token's id."""


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: object) -> Message:
    return {"role": "user", "content": text}


def assistant(text: object, **fields: object) -> Message:
    return {"role": "assistant", "content": text, **fields}


def tool(call_id: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def call(call_id: str, name: str, arguments: object) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def finished_turn(
    messages: Sequence[Message],
    reply: Message,
    prompt: Sequence[int],
    generation: Sequence[int],
    *,
    tools: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
    finish: str = "stop",
    stop_token_id: int | None = END,
) -> Turn:
    return Turn(
        conversation=digest_conversation(messages).followed_by(reply),
        rendering=digest_rendering(tools, kwargs),
        prompt_token_ids=prompt,
        generation_token_ids=generation,
        finish=finish,
        stop_token_id=stop_token_id,
    )


class Session:
    """A client's view of one session: asks and commits as a transport does, `find` first."""

    def __init__(self, store: InMemorySessionStore, session_id: str = "s") -> None:
        self.store = store
        self.id = session_id

    def find(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> Match | MissReason:
        return self.store.find(self.id, digest_conversation(messages), digest_rendering(tools, kwargs))

    def match(self, messages: Sequence[Message], *, tools: Sequence[object] | None = None) -> Match:
        found = self.find(messages, tools=tools)
        assert isinstance(found, Match), found
        return found

    def sample(
        self,
        messages: Sequence[Message],
        reply: Message,
        new_ids: Sequence[int],
        generation: Sequence[int],
        *,
        tools: Sequence[object] | None = None,
    ) -> CommitOutcome:
        """Answer `messages`: `new_ids` go behind the matched ids, or are the whole prompt without a match."""
        found = self.find(messages, tools=tools)
        match = found if isinstance(found, Match) and found.shortfall is None else None
        prompt = [*(match.token_ids if match else ()), *new_ids]
        turn = finished_turn(messages, reply, prompt, generation, tools=tools)
        return self.store.commit(self.id, match.handle if match else None, turn)
