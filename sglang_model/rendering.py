"""What a renderer is: the chat template and the tokenizer, wherever they run.

The history and the generate transport compute with a renderer; `renderer.py` has the one in this process,
`server_renderer.py` the one in the engine. Nothing here imports a tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from nemo_gym.errors import UpstreamContractError
from nemo_gym.token_ids import TokenIds
from sglang_model.fragment_ids import Encode
from sglang_model.message_forms import MessageForms
from sglang_model.render_steps import RenderSteps
from sglang_model.splice_types import Refusal, RenderRequest, SpecialTokens

T = TypeVar("T")


def check_vocabulary(ids: Sequence[int], size: int | None, who: str) -> None:
    """Raise UpstreamContractError when an id is not in the model's vocabulary of `size` ids; `who` made them.

    SGLang does not check ids: one beyond the vocabulary breaks the engine for everybody. Each id is looked at once,
    where it comes into being.
    """
    if size is not None and ids and max(ids) >= size:
        raise UpstreamContractError(
            f"{who} the id {max(ids)}, but the model's vocabulary has {size}; do sglang_tokenizer and its added tokens "
            "belong to this model?"
        )


class Renderer(Protocol):
    """Renders messages with one chat template and turns text into ids and back, without blocking the loop."""

    @property
    def renders_without_generation_prompt(self) -> bool:
        """False when a conversation that ends with the assistant cannot be rendered as such."""

    @property
    def tokens(self) -> SpecialTokens:
        """Texts of the special tokens and of the tokens at which the engine ends a turn, as far as known."""

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """Ids of the tokens at which the engine ends a turn of its own accord, as far as known."""

    @property
    def vocabulary_size(self) -> int | None:
        """The size of the model's embedding: no id may be as large. None when it is not known here."""

    async def run(self, steps: RenderSteps[T], messages: Sequence[object] = (), *others: object) -> T:
        """Carry out a computation that asks for renderings of `messages` with `others`, whose size says where it is
        done. Raises UpstreamError when the engine renders and fails.
        """

    async def render_ids(self, request: RenderRequest, forms: MessageForms) -> TokenIds | Refusal:
        """Ids of a whole conversation, its messages as the client sent them. Raises RequestError, UpstreamError."""

    async def compute(self, function: Callable[[Encode], T]) -> T:
        """Run a pure function that encodes texts (special tokens recognised, none added)."""

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept, no clean-up of spaces."""

    async def special(self, ids: Sequence[int]) -> frozenset[int]:
        """Those of `ids` that are control tokens and no text: what `skip_special_tokens` hides."""
