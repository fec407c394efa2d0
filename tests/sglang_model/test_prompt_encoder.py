"""Prompts get the ids of their whole text, each piece encoded once, and a difference ends the cutting."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.errors import UpstreamContractError
from nemo_gym.token_ids import TokenIds
from sglang_model.message_forms import MessageForms
from sglang_model.prompt_encoder import COMPARED_FIRST, SMALL_TEXT, PromptEncoder
from sglang_model.render_steps import run
from sglang_model.renderer import LocalRenderer, load_renderer
from sglang_model.segment_cache import SegmentCache
from sglang_model.segments import EDGES, Cuts
from sglang_model.splice import full_render_steps
from sglang_model.splice_types import Refusal, RenderRequest
from sglang_model.template_probe import probe_template
from sglang_model.testing.template_families import FAMILIES
from tests.support.local_tokenizer import family_folder, tokenizer_folder
from tests.support.turns import assistant, system, user

MESSAGE = "<s>" + "x" * 300
LONG = "<s>" + "y" * (SMALL_TEXT + 1)


class Encoder:
    """Encodes to bytes; remembers what it was asked and in which thread; can wait, fail, and be wrong."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.threads: set[str] = set()
        self.wrong_at: str | None = None
        self.failures = 0
        self.begun = threading.Event()
        self.gate: threading.Event | None = None

    def __call__(self, texts: list[str]) -> list[TokenIds]:
        self.asked.append(texts)
        self.begun.set()
        self.threads.add(threading.current_thread().name)
        if self.gate is not None:
            assert self.gate.wait(timeout=10)
        if self.failures:
            self.failures -= 1
            raise UpstreamContractError("not this time")
        return [TokenIds([*text.encode(), *([7] if text == self.wrong_at else [])]) for text in texts]


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="worker") as pool:
        yield pool


@pytest.fixture
def encode() -> Encoder:
    return Encoder()


def made(encode: Encoder, threads: ThreadPoolExecutor, budget: int = 10**6) -> PromptEncoder:
    return PromptEncoder(encode, threads, cuts=Cuts(["<s>"]), cache=SegmentCache(budget))


async def ids_of(prompts: PromptEncoder, text: str) -> TokenIds:
    return await prompts.ids(prompts.pieces(text))


async def test_known_pieces_are_not_encoded_again(encode, threads):
    prompts = made(encode, threads)
    assert await ids_of(prompts, MESSAGE) == list(MESSAGE.encode())
    assert await ids_of(prompts, MESSAGE * 2 + "end") == list((MESSAGE * 2 + "end").encode())
    assert encode.asked[:2] == [[MESSAGE], [MESSAGE + "end"]]
    assert (prompts.cache.hits, prompts.cache.misses) == (1, 2)
    encode.asked.clear()
    assert await ids_of(prompts, MESSAGE * 2 + "end") == list((MESSAGE * 2 + "end").encode())
    assert encode.asked == []


async def test_a_piece_that_stands_in_a_prompt_twice_is_encoded_once(encode, threads):
    assert await ids_of(made(encode, threads), MESSAGE * 3) == list((MESSAGE * 3).encode())
    assert encode.asked[0] == [MESSAGE]


async def test_no_text_is_no_ids(encode, threads):
    ids = await ids_of(made(encode, threads), "")
    assert ids == []
    assert len(ids) == 0


async def test_short_texts_are_encoded_at_once_and_long_ones_in_a_thread(encode, threads):
    prompts = made(encode, threads)
    await ids_of(prompts, MESSAGE)
    assert encode.threads == {threading.current_thread().name}
    encode.threads.clear()
    await ids_of(prompts, LONG)
    assert encode.threads == {"worker_0"}


@pytest.mark.parametrize("budget", [0, 10**6])
async def test_a_group_that_arrives_together_encodes_its_prompt_once(encode, threads, budget):
    prompts = made(encode, threads, budget)
    encode.gate = threading.Event()
    tasks = [asyncio.create_task(ids_of(prompts, LONG + LONG)) for _ in range(8)]
    await asyncio.sleep(0)
    encode.gate.set()
    assert await asyncio.gather(*tasks) == [list((LONG + LONG).encode())] * 8
    assert encode.asked == [[LONG], [LONG + LONG]], "once in pieces and once for the comparison"
    assert prompts.flights.shared == 7
    assert prompts.compared == 1


async def test_without_a_budget_nothing_is_remembered(encode, threads):
    prompts = made(encode, threads, 0)
    for _ in range(2):
        assert await ids_of(prompts, MESSAGE) == list(MESSAGE.encode())
    assert encode.asked == [[MESSAGE], [MESSAGE]]
    assert prompts.cache.bytes == 0


async def test_a_failure_is_the_first_ones_and_the_group_goes_on(encode, threads):
    prompts = made(encode, threads)
    encode.gate, encode.failures = threading.Event(), 1
    tasks = [asyncio.create_task(ids_of(prompts, LONG)) for _ in range(8)]
    await asyncio.sleep(0)
    encode.gate.set()
    first, *others = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, UpstreamContractError)
    assert others == [list(LONG.encode())] * 7


async def test_the_first_one_may_leave(encode, threads):
    prompts = made(encode, threads)
    encode.gate = threading.Event()
    first, *others = [asyncio.create_task(ids_of(prompts, LONG)) for _ in range(8)]
    await asyncio.to_thread(encode.begun.wait, 10)
    first.cancel()
    encode.gate.set()
    assert await asyncio.gather(*others) == [list(LONG.encode())] * 7
    assert encode.asked == [[LONG]]


async def test_the_first_prompts_are_compared_and_then_ever_fewer(encode, threads):
    prompts = made(encode, threads)
    compared: list[int] = []
    for number in range(1, 70):
        before = prompts.compared
        await ids_of(prompts, f"<s>{number:0300}" * 2 + str(number))
        if prompts.compared > before:
            compared.append(number)
    assert compared == [*range(1, COMPARED_FIRST + 1), 16, 32, 64]


async def test_a_prompt_of_one_piece_needs_no_comparison(encode, threads):
    prompts = made(encode, threads)
    await ids_of(prompts, MESSAGE)
    assert (prompts.compared, len(encode.asked)) == (0, 1)


@pytest.mark.parametrize("message", [MESSAGE, LONG])
async def test_a_difference_at_run_time_gives_the_whole_and_ends_the_cutting(
    encode, threads, message, caplog
):
    caplog.set_level(logging.WARNING)
    prompts = made(encode, threads)
    text = message * 2
    encode.wrong_at = text
    assert await ids_of(prompts, text) == [*text.encode(), 7]
    assert prompts.differing == 1
    assert prompts.pieces(text) == [text]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "xxx" not in caplog.text
    assert await ids_of(prompts, text) == [*text.encode(), 7]


def request_of(*messages: dict[str, object]) -> RenderRequest:
    return RenderRequest(messages=messages, tools=None, chat_template_kwargs={}, add_generation_prompt=True)


def contents(*tokens: str) -> st.SearchStrategy[str]:
    """Texts long enough to be cut, with special tokens and odd characters in them."""
    part = st.one_of(st.sampled_from([*EDGES, *tokens]), st.text(st.characters(exclude_categories=["Cs"])))
    return st.tuples(st.lists(part, max_size=12).map("".join), st.sampled_from([1, 40])).map(
        lambda drawn: drawn[0] * drawn[1]
    )


RENDERERS = {
    "builtin": tokenizer_folder,
    **{family.name: lambda name=family.name: family_folder(name) for family in FAMILIES},
}


@pytest.mark.parametrize("name", RENDERERS)
def test_ids_of_conversations_are_those_of_the_whole_text_from_the_cache_too(name):
    renderer = load_renderer(str(RENDERERS[name]()))
    forms = probe_template(renderer.render, renderer.tokens).forms
    cut: list[int] = []

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        texts = data.draw(st.lists(contents(*renderer.tokens.texts), min_size=1, max_size=4))
        messages = [(assistant if n % 2 else user)(text) for n, text in enumerate(texts)]
        request = request_of(*messages, *([] if len(texts) % 2 else [user("z")]))
        rendered = run(full_render_steps(request, forms), renderer.render)
        if isinstance(rendered, Refusal):
            return
        expected = renderer.encode(rendered.text)
        cut.append(len(renderer.prompts.pieces(rendered.text)))

        async def twice() -> list[object]:
            return [await renderer.render_ids(request, forms) for _ in range(2)]

        assert asyncio.run(twice()) == [expected, expected]

    check()
    assert renderer.prompts.differing == 0
    assert renderer.prompts.cache.hits > 0
    assert max(cut, default=0) > 1 or not renderer.prompts.cuts.tokens
    renderer.close()


class CountingBackend:
    """The tokenizer library's object, counting what it is asked."""

    def __init__(self, backend: object) -> None:
        self.backend = backend
        self.batches: list[list[str]] = []

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> object:
        return self.backend.encode(text, add_special_tokens=add_special_tokens)

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> object:
        self.batches.append(texts)
        return self.backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


class Wrapped:
    """A transformers tokenizer with another backend."""

    def __init__(self, tokenizer: object, backend: CountingBackend) -> None:
        self._tokenizer, self.backend_tokenizer = tokenizer, backend

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return len(self._tokenizer)


async def test_eight_rollouts_of_a_group_are_one_call_of_the_library():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder()))
    backend = CountingBackend(tokenizer.backend_tokenizer)
    renderer = LocalRenderer(Wrapped(tokenizer, backend))
    for number in range(COMPARED_FIRST):
        await renderer.render_ids(request_of(system(f"{number}" * 400), user("a")), MessageForms())
    backend.batches.clear()
    conversation = request_of(system("Be brief. " * 1000), user("What is the weather? " * 1000))
    results = await asyncio.gather(*(renderer.render_ids(conversation, MessageForms()) for _ in range(8)))
    assert len(backend.batches) == 1
    assert len(backend.batches[0]) > 1
    assert all(ids == results[0] for ids in results)
    assert renderer.prompts.cache.bytes > 0
    renderer.close()


async def test_ids_beyond_the_vocabulary_are_never_remembered():
    renderer = load_renderer(str(tokenizer_folder(vocabulary=300)))
    for _ in range(2):
        with pytest.raises(UpstreamContractError, match="the model's vocabulary has 300"):
            await renderer.render_ids(request_of(user("weather " * 2000)), MessageForms())
    assert len(renderer.prompts.cache) == 0
    renderer.close()


async def test_a_budget_of_nothing_reaches_the_cache():
    renderer = load_renderer(str(tokenizer_folder()), segment_cache_bytes=0)
    await renderer.render_ids(request_of(user("a")), MessageForms())
    assert len(renderer.prompts.cache) == 0
    assert load_renderer(str(tokenizer_folder())).prompts.cache.max_bytes == 64 * 2**20


def test_where_prompts_are_cut_is_told_once_at_the_start(caplog):
    caplog.set_level(logging.INFO, "sglang_model")
    load_renderer(str(tokenizer_folder()))
    told = [record.getMessage() for record in caplog.records if "prompts are encoded" in record.getMessage()]
    assert len(told) == 1
    assert "in pieces" in told[0]
    assert "<|im_start|>" in told[0]
    caplog.clear()
    load_renderer(str(family_folder("no-end")))
    assert "prompts are encoded whole" in caplog.text
