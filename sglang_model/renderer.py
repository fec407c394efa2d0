"""The chat template and the tokenizer in this process. The only importer of transformers.

Loaded once at start-up, so that a wrong name or template ends the start and not the first request. Long renderings and
encodings run in worker threads: a prompt of 100k tokens takes a good part of a second, and the event loop serves every
other session meanwhile. The tokenizers library releases the GIL in `encode_batch_fast` and `decode_batch`, not in
`encode` and `decode`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Protocol, TypeVar, cast

import jinja2

from nemo_gym.errors import ConfigError
from nemo_gym.token_ids import TokenIds
from sglang_model.fragment_ids import Encode
from sglang_model.json_size import exceeds
from sglang_model.message_forms import Message, MessageForms
from sglang_model.prompt_encoder import SMALL_TEXT, PromptEncoder
from sglang_model.render_steps import RenderSteps, run
from sglang_model.segment_cache import DEFAULT_SEGMENT_CACHE_BYTES, SegmentCache
from sglang_model.segments import Cuts, find_cuts
from sglang_model.splice import full_render_steps
from sglang_model.splice_types import Refusal, Rendered, RenderFailed, RenderRequest, SpecialTokens
from sglang_model.text_encoder import TextEncoder

T = TypeVar("T")

LOG = logging.getLogger(__name__)

ENCODING_THREADS = 2
"""Texts that are encoded at a time. The library has its own threads, one per core, for the pieces of each."""

TINY_TEXT = 32
TINY_TEXTS = 256
SMALL_IDS = 2_048
SMALL_RENDERING = 65_536
SMALL_MESSAGES = 16
"""Up to here work is done on the event loop, as with `SMALL_TEXT`: handing it to a thread and back costs 0.1 to 0.2 ms,
and a follow-up turn has five such pieces of 0.05 ms each. Ids, characters, messages and tools; the longest takes about
1 ms."""

IDS_OF_THE_LIBRARY = 2**32
"""How many ids the tokenizers library knows: the limit where no vocabulary is known."""

TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What a template can raise on messages it does not expect; all of it is the conversation's fault, not ours."""


class AddedToken(Protocol):
    content: str
    special: bool


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer (5.8.1)."""

    eos_token_id: int | None
    chat_template: object
    added_tokens_decoder: Mapping[int, AddedToken]

    def __len__(self) -> int: ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> object: ...

    def apply_chat_template(
        self,
        conversation: list[Mapping[str, object]],
        *,
        tools: list[Mapping[str, object]] | None,
        chat_template: str | None,
        add_generation_prompt: bool,
        tokenize: bool,
        **kwargs: object,
    ) -> object: ...

    def decode(
        self,
        token_ids: list[int],
        *,
        skip_special_tokens: bool,
        spaces_between_special_tokens: bool,
        clean_up_tokenization_spaces: bool,
    ) -> str: ...


class DecodingLibrary(Protocol):
    """What is used of tokenizers' Tokenizer (0.22.2)."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def decode_batch(self, sequences: list[list[int]], *, skip_special_tokens: bool) -> list[str]: ...


class LocalRenderer:
    """A tokenizer with one chat template. Immutable once made; safe to use from any number of requests."""

    renders_without_generation_prompt = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        chat_template: str | None = None,
        stop_token_ids: Iterable[int] = (),
        vocabulary_size: int | None = None,
        segment_cache_bytes: int = DEFAULT_SEGMENT_CACHE_BYTES,
    ) -> None:
        self._tokenizer = tokenizer
        self._chat_template = chat_template
        # Template code holds the GIL. With two threads of it the event loop would often wait for both.
        self._template_thread = ThreadPoolExecutor(1, thread_name_prefix="renderer-template")
        self._threads = ThreadPoolExecutor(ENCODING_THREADS, thread_name_prefix="renderer")
        self.stop_token_ids = frozenset(stop_token_ids)
        added = {int(token_id): token for token_id, token in tokenizer.added_tokens_decoder.items()}
        self._library = _decoding_library(tokenizer)
        self._text_of = {token_id: self._decode([token_id]) for token_id in added}
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.tokens = SpecialTokens(
            texts=tuple(token.content for token in added.values()),
            stops=tuple(self._decode([token_id]) for token_id in sorted(self.stop_token_ids)),
        )
        self.vocabulary_size = IDS_OF_THE_LIBRARY if vocabulary_size is None else vocabulary_size
        largest = max(len(tokenizer) - 1, *added) if added else len(tokenizer) - 1
        # Looking at every id costs a millisecond where none can be too large.
        checked = vocabulary_size if vocabulary_size is not None and largest >= vocabulary_size else None
        self._encoder = TextEncoder(tokenizer, vocabulary_size=checked)
        # The same few again and again: what ends a turn, in front of each follow-up.
        self._encode_tiny = lru_cache(TINY_TEXTS)(lambda text: tuple(self._encoder.ids(text)))
        self.prompts = PromptEncoder(
            self._encoder.texts,
            self._threads,
            cuts=self._proved_cuts([token.content for token in added.values()]),
            cache=SegmentCache(segment_cache_bytes),
        )
        at = self.prompts.cuts.tokens
        LOG.info("prompts are encoded %s", f"in pieces, cut in front of {', '.join(at)}" if at else "whole")

    def render(self, request: RenderRequest) -> Rendered | RenderFailed:
        """One rendering, in the calling thread."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(request.messages),
                tools=list(request.tools) if request.tools else None,
                chat_template=self._chat_template,
                add_generation_prompt=request.add_generation_prompt,
                tokenize=False,
                **request.chat_template_kwargs,
            )
        except TEMPLATE_ERRORS as error:
            return RenderFailed(str(error) or type(error).__name__)
        return (
            Rendered(text)
            if isinstance(text, str)
            else RenderFailed(f"the template made a {type(text).__name__}")
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a text, in the calling thread; special tokens recognised, none added."""
        return self._encoder.ids(text)

    async def run(self, steps: RenderSteps[T], messages: Sequence[object] = (), *others: object) -> T:
        if _is_small(messages, *others):
            return run(steps, self.render)
        return await _in(self._template_thread, lambda: run(steps, self.render))

    async def render_ids(self, request: RenderRequest, forms: MessageForms) -> TokenIds | Refusal:
        steps = self._piece_steps(request, forms)
        pieces = await self.run(steps, request.messages, request.tools, request.chat_template_kwargs)
        return pieces if isinstance(pieces, Refusal) else await self.prompts.ids(pieces)

    async def compute(self, function: Callable[[Encode], T]) -> T:
        try:
            return function(self._encode_small)
        except _TooLong:
            return await _in(self._threads, lambda: function(self.encode))

    async def decode(self, ids: Sequence[int]) -> str:
        if len(ids) == 1 and ids[0] in self._text_of:
            return self._text_of[ids[0]]
        if len(ids) <= SMALL_IDS:
            return self._decode(ids)
        return await _in(self._threads, lambda: self._decode_long(ids))

    async def special(self, ids: Sequence[int]) -> frozenset[int]:
        return self._special.intersection(ids)

    def close(self) -> None:
        for threads in (self._template_thread, self._threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _piece_steps(self, request: RenderRequest, forms: MessageForms) -> RenderSteps[list[str] | Refusal]:
        rendering = yield from full_render_steps(request, forms)
        return rendering if isinstance(rendering, Refusal) else self.prompts.pieces(rendering.text)

    def _proved_cuts(self, added: Sequence[str]) -> Cuts:
        """Where prompts may be cut with this tokenizer and chat template: their self-test."""
        if not self._encoder.is_native:
            return Cuts()

        def render(messages: tuple[Message, ...]) -> str | None:
            result = self.render(RenderRequest(messages, None, {}, True))
            return result.text if isinstance(result, Rendered) else None

        return find_cuts(added, render, self._encoder.unchecked)

    def _encode_small(self, text: str) -> Sequence[int]:
        if len(text) > SMALL_TEXT:
            raise _TooLong
        return self._encode_tiny(text) if len(text) <= TINY_TEXT else self.encode(text)

    def _decode(self, ids: Sequence[int]) -> str:
        if self._library is not None:
            return self._library.decode(
                ids if isinstance(ids, list) else list(ids), skip_special_tokens=False
            )
        return self._tokenizer.decode(
            list(ids),
            skip_special_tokens=False,
            spaces_between_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )

    def _decode_long(self, ids: Sequence[int]) -> str:
        if self._library is None:
            return self._decode(ids)
        (text,) = self._library.decode_batch([list(ids)], skip_special_tokens=False)
        return text


def _decoding_library(tokenizer: Tokenizer) -> DecodingLibrary | None:
    """The tokenizers library's own decoding, where the tokenizer's class leaves transformers' as it is.

    With special tokens kept and no cleaning up, all that transformers (5.8.1) adds to it is a look at each id.
    """
    kind, backend = type(tokenizer), getattr(tokenizer, "backend_tokenizer", None)
    own = [getattr(getattr(kind, name, None), "__module__", "") for name in ("decode", "_decode")]
    if backend is None or own != [
        "transformers.tokenization_utils_base",
        "transformers.tokenization_utils_tokenizers",
    ]:
        return None
    return cast("DecodingLibrary", backend)


async def _in(threads: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, function)


class _TooLong(Exception):  # noqa: N818 - no error, but a way out of a pure function
    """A text is too long to be encoded on the event loop."""


def _is_small(messages: Sequence[object] = (), *others: object) -> bool:
    """Whether a rendering of these takes less than a millisecond, as that of a few messages without long texts does."""
    return len(messages) <= SMALL_MESSAGES and not exceeds((*messages, *others), SMALL_RENDERING)


def load_renderer(
    name: str,
    *,
    chat_template: str | None = None,
    trust_remote_code: bool = False,
    segment_cache_bytes: int = DEFAULT_SEGMENT_CACHE_BYTES,
) -> LocalRenderer:
    """The renderer of a tokenizer's repository or folder. Raises ConfigError when it cannot render.

    transformers is imported here and not with the module: the chat transport needs none of it.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            "rendering prompts here needs transformers: install this project with its extra, pip install '.[generate]' "
            "in its folder, or let the engine render with sglang_renderer: server",
            param="sglang_renderer",
        ) from error
    try:
        tokenizer = cast(
            "Tokenizer", AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
        )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise ConfigError(
            f"the tokenizer {name!r} cannot be loaded ({type(error).__name__}: {_first_line(error)}); set "
            "sglang_tokenizer to a repository or folder that has one, or sglang_renderer: server",
            param="sglang_tokenizer",
        ) from error
    if chat_template is None and not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer {name!r} has no chat template; set sglang_chat_template or sglang_chat_template_path",
            param="sglang_chat_template",
        )
    return LocalRenderer(
        tokenizer,
        chat_template=chat_template,
        stop_token_ids=_stop_token_ids(name, tokenizer, trust_remote_code),
        vocabulary_size=_model_vocabulary(name, trust_remote_code),
        segment_cache_bytes=segment_cache_bytes,
    )


def read_chat_template(text: str | None, path: str | None) -> str | None:
    """The configured chat template, inline text before file; None for the tokenizer's own. Raises ConfigError."""
    if text is not None or path is None:
        return text
    file = Path(path).expanduser().resolve()
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"sglang_chat_template_path: {file} cannot be read as UTF-8 text: {_first_line(error)}",
            param="sglang_chat_template_path",
        ) from error
    if not content.strip():
        raise ConfigError(f"sglang_chat_template_path: {file} is empty", param="sglang_chat_template_path")
    return content


def _stop_token_ids(name: str, tokenizer: Tokenizer, trust_remote_code: bool) -> set[int]:
    """The tokens at which SGLang ends a turn: the tokenizer's eos, and those of generation_config.json."""
    from transformers import GenerationConfig

    stops = {tokenizer.eos_token_id}
    try:
        config = GenerationConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):
        config = None
    eos = config.eos_token_id if config is not None else None
    stops.update(eos if isinstance(eos, list) else [eos])
    return {token_id for token_id in stops if isinstance(token_id, int)}


def _model_vocabulary(name: str, trust_remote_code: bool) -> int | None:
    """The size of the model's embedding: it may be larger than the tokenizer's, or too small for its last added id."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):
        return None
    size = getattr(config.get_text_config(), "vocab_size", None)
    return size if isinstance(size, int) else None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
