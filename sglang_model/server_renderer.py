"""The chat template and the tokenizer of the engine itself, through /tokenize and /detokenize.

No tokenizer is needed here and none can drift from the engine's. What it costs: a few small calls per follow-up turn
with the whole conversation in them. SGLang (0.5.13, 0.5.23) always adds a generation prompt, and turns an assistant
message at the end into a user's, so a conversation cannot be rendered up to a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from nemo_gym.errors import UpstreamContractError, UpstreamStatusError
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.token_metadata import TokenIds
from sglang_model.fragment_ids import Encode
from sglang_model.message_forms import MessageForms
from sglang_model.render_steps import RenderSteps, run_async
from sglang_model.splice import full_render_steps
from sglang_model.splice_types import Refusal, Rendered, RenderFailed, RenderRequest, SpecialTokens

T = TypeVar("T")

_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {}}}
_LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
SCAFFOLDS = (
    RenderRequest(
        messages=(
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ),
        tools=None,
        chat_template_kwargs={},
        add_generation_prompt=True,
    ),
    RenderRequest(
        messages=(
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "c"},
        ),
        tools=(_LOOK,),
        chat_template_kwargs={},
        add_generation_prompt=True,
    ),
)
"""Conversations with hardly a word of their own: what special tokens they have, the chat template writes."""


class _NotEncodedYet(Exception):  # noqa: N818 - a question, not an error
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class ServerRenderer:
    """Asks one engine. Made for one request; `client` is the session's replica."""

    renders_without_generation_prompt = False
    vocabulary_size = None

    def __init__(
        self,
        client: NeMoGymAsyncOpenAI,
        model: str,
        *,
        stop_tokens: Iterable[tuple[int, str]] = (),
        special_tokens: Iterable[str] = (),
    ) -> None:
        self._client = client
        self._model = model
        stops = dict(stop_tokens)
        self.stop_token_ids = frozenset(stops)
        self.tokens = SpecialTokens(tuple(special_tokens), tuple(stops.values()))

    async def render(self, request: RenderRequest) -> Rendered | RenderFailed:
        ids = await self._rendered_ids(request)
        return ids if isinstance(ids, RenderFailed) else Rendered(await self.decode(ids))

    async def render_ids(self, request: RenderRequest, forms: MessageForms) -> TokenIds | Refusal:
        """The ids as the engine makes them: through their text and back they could become others."""
        made: list[TokenIds] = []

        async def render(rung: RenderRequest) -> Rendered | RenderFailed:
            ids = await self._rendered_ids(rung)
            if isinstance(ids, RenderFailed):
                return ids
            made.append(ids)
            return Rendered("")

        rendering = await run_async(full_render_steps(request, forms), render)
        return rendering if isinstance(rendering, Refusal) else made[-1]

    async def _rendered_ids(self, request: RenderRequest) -> TokenIds | RenderFailed:
        body: dict[str, object] = {"model": self._model, "messages": list(request.messages)}
        if request.tools:
            body["tools"] = list(request.tools)
        if request.chat_template_kwargs:
            body["chat_template_kwargs"] = dict(request.chat_template_kwargs)
        try:
            return await self._tokenize(body)
        except UpstreamStatusError as error:
            if error.status != 400:
                raise
            return RenderFailed(error.message)

    async def run(self, steps: RenderSteps[T], messages: Sequence[object] = (), *others: object) -> T:  # noqa: ARG002
        return await run_async(steps, self.render)

    async def compute(self, function: Callable[[Encode], T]) -> T:
        """Run `function` until every text it encodes is known: it is pure, and asks for a handful of them."""
        known: dict[str, list[int]] = {}

        def encode(text: str) -> list[int]:
            if text not in known:
                raise _NotEncodedYet(text)
            return known[text]

        while True:
            try:
                return function(encode)
            except _NotEncodedYet as question:
                body = {"model": self._model, "prompt": question.text, "add_special_tokens": False}
                known[question.text] = list(await self._tokenize(body))

    async def decode(self, ids: Sequence[int]) -> str:
        if not ids:
            return ""
        answer = await self._client.create_detokenize(
            model=self._model,
            tokens=ids if isinstance(ids, TokenIds) else list(ids),
            skip_special_tokens=False,
        )
        text = answer.get("text")
        if not isinstance(text, str):
            raise UpstreamContractError(
                f"{self._client.name}: expected a text in the engine's /detokenize answer, got {type(text).__name__}"
            )
        return text

    async def special(self, ids: Sequence[int]) -> frozenset[int]:
        """Ids whose text disappears when special tokens are hidden; some tokens of plain text have none at all."""
        hidden = [token_id for token_id, text in await self._texts(ids, hide_special=True) if not text]
        return frozenset(token_id for token_id, text in await self._texts(hidden, hide_special=False) if text)

    async def scaffold(self) -> tuple[str, ...]:
        """Texts of the special tokens that the chat template writes around turns, asked of the engine."""
        ids: dict[int, None] = {}
        for request in SCAFFOLDS:
            rendered = await self._rendered_ids(request)
            if not isinstance(rendered, RenderFailed):
                ids.update(dict.fromkeys(rendered))
        special = await self.special(list(ids))
        return tuple(text for _, text in await self._texts(sorted(special), hide_special=False))

    async def _texts(self, ids: Sequence[int], *, hide_special: bool) -> list[tuple[int, str]]:
        """Each distinct id with its own text, in one call."""
        distinct = list(dict.fromkeys(ids))
        if not distinct:
            return []
        answer = await self._client.create_detokenize(
            model=self._model, tokens=[[token_id] for token_id in distinct], skip_special_tokens=hide_special
        )
        texts = answer.get("text")
        if not isinstance(texts, list) or len(texts) != len(distinct):
            raise UpstreamContractError(
                f"{self._client.name}: expected {len(distinct)} texts in the engine's /detokenize answer, got "
                f"{len(texts) if isinstance(texts, list) else type(texts).__name__}"
            )
        return list(zip(distinct, map(str, texts), strict=True))

    async def _tokenize(self, body: dict[str, object]) -> TokenIds:
        answer = await self._client.create_tokenize(**body)
        try:
            return TokenIds.checked(answer.get("tokens"), "tokens").read("tokens")
        except ValueError as error:
            raise UpstreamContractError(
                f"{self._client.name}: the engine's /tokenize answer cannot be used: {error}"
            ) from error
