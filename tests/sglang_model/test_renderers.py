"""The tokenizer in this process and the engine's own: the same ids, never on the event loop, nothing cut."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from nemo_gym.errors import ConfigError, UpstreamContractError, UpstreamStatusError
from nemo_gym.http_pool import HTTPClientConfig, HTTPPool
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.token_ids import TokenIds
from sglang_model.message_forms import MessageForms
from sglang_model.renderer import (
    SMALL_IDS,
    SMALL_MESSAGES,
    SMALL_RENDERING,
    SMALL_TEXT,
    LocalRenderer,
    load_renderer,
    read_chat_template,
)
from sglang_model.server_renderer import ServerRenderer
from sglang_model.splice_types import Refusal, RefusalReason, Rendered, RenderFailed, RenderRequest
from sglang_model.testing import Engine, Misbehaviour
from sglang_model.testing.tokenizer import builtin_tokenizer
from sglang_model.testing.tokenizer_folder import write_tokenizer_folder
from sglang_model.text_encoder import GIL_STEP, LIBRARY_NICENESS, TextEncoder, token_ids_of
from tests.support.local_tokenizer import engine_with, tokenizer_folder, transport_of
from tests.support.model_servers import no_sleep
from tests.support.turns import assistant, call, system, tool, user

ROOT = Path(__file__).resolve().parents[2]
CONVERSATION = (system("Be brief."), user("What is 2 + 2?"), assistant("4"), user("Grüße, 世界! 🚀"))
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look it up",
        "parameters": {"type": "object", "properties": {}},
    },
}


def request_of(*messages: dict[str, object], **fields: Any) -> RenderRequest:
    given = {"tools": None, "chat_template_kwargs": {}, "add_generation_prompt": True, **fields}
    return RenderRequest(messages=tuple(messages), **given)


class FakeTokenizer:
    """A tokenizer written in Python: no backend; says in which thread it was used."""

    eos_token_id = 2
    chat_template = "t"

    def __init__(self, rendered: object = "[x]") -> None:
        self.added_tokens_decoder = {
            2: SimpleNamespace(content="<end>", special=True),
            3: SimpleNamespace(content="<tool>", special=False),
        }
        self.rendered = rendered
        self.threads: list[str] = []
        self.asked: list[dict[str, object]] = []

    def __len__(self) -> int:
        return 10

    def _note(self) -> None:
        self.threads.append(threading.current_thread().name)

    def __call__(self, text: str, *, add_special_tokens: bool) -> object:
        self._note()
        assert add_special_tokens is False
        return {"input_ids": [len(text)]}

    def apply_chat_template(self, conversation: list[object], **fields: object) -> object:
        self._note()
        self.asked.append({"conversation": conversation, **fields})
        if isinstance(self.rendered, Exception):
            raise self.rendered
        return self.rendered

    def decode(self, token_ids: list[int], **switches: object) -> str:
        self._note()
        assert switches == {
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "clean_up_tokenization_spaces": False,
        }
        return "".join(f"<{token_id}>" for token_id in token_ids)


class Tensor:
    def __init__(self, values: object) -> None:
        self.values = values

    def tolist(self) -> object:
        return self.values


ENCODED: dict[str, object] = {
    "a list": [1, 2],
    "a tuple": (1, 2),
    "a batch of one": [[1, 2]],
    "a batch of one in tuples": ((1, 2),),
    "a mapping": {"input_ids": [1, 2], "attention_mask": [1, 1]},
    "a mapping of a batch": {"input_ids": [[1, 2]]},
    "an object": SimpleNamespace(input_ids=[1, 2]),
    "a tensor": Tensor([1, 2]),
    "a tensor of a batch": Tensor([[1, 2]]),
    "a mapping of a tensor": {"input_ids": Tensor([[1, 2]])},
    "numbers of another library": [numpy.int64(1), numpy.int32(2)],
    "an array of another library": numpy.array([[1, 2]]),
}


@pytest.mark.parametrize("form", ENCODED)
def test_ids_are_found_in_whatever_a_tokenizer_returns(form):
    ids = token_ids_of(ENCODED[form])
    assert ids == [1, 2]
    assert all(type(token_id) is int for token_id in ids)


@pytest.mark.parametrize("form", [[], (), {"input_ids": []}, Tensor([])])
def test_no_ids_are_no_ids(form):
    assert token_ids_of(form) == []


@pytest.mark.parametrize("form", ["12", 5, None, Tensor("x"), {"input_ids": "12"}])
def test_what_holds_no_ids_is_named_by_its_type(form):
    with pytest.raises(TypeError, match=r"expected token ids, got (str|int|NoneType)"):
        token_ids_of(form)


async def test_nothing_that_takes_long_is_done_on_the_event_loop():
    """W68: a long prompt stopped every other session."""
    tokenizer = FakeTokenizer()
    renderer = LocalRenderer(tokenizer)
    tokenizer.threads.clear()

    def steps(*messages):
        rendered = yield request_of(*messages)
        return rendered.text

    long = user("a" * (SMALL_RENDERING + 1))
    assert await renderer.run(steps(long), [long]) == "[x]"
    many = [user("a")] * (SMALL_MESSAGES + 1)
    assert await renderer.run(steps(*many), many) == "[x]"
    tokenizer.rendered = "x" * (SMALL_TEXT + 1)
    assert await renderer.render_ids(request_of(*[user("a")] * (SMALL_MESSAGES + 1)), MessageForms()) == [
        SMALL_TEXT + 1
    ]
    assert await renderer.compute(lambda encode: encode("x" * (SMALL_TEXT + 1))) == [SMALL_TEXT + 1]
    assert (await renderer.decode([7] * (SMALL_IDS + 1))).startswith("<7><7>")
    assert len(tokenizer.threads) == 6
    assert all(name.startswith("renderer") for name in tokenizer.threads)
    renderer.close()


async def test_the_messages_of_a_long_conversation_are_not_even_looked_at_on_the_event_loop():
    looked: set[str] = set()

    class Watched(dict[str, object]):
        def items(self) -> Any:
            looked.add(threading.current_thread().name)
            return super().items()

    renderer = LocalRenderer(FakeTokenizer())
    await renderer.render_ids(request_of(*[Watched(user("a"))] * (SMALL_MESSAGES + 1)), MessageForms())
    assert looked == {"renderer-template_0"}
    renderer.close()


async def test_short_work_is_done_at_once_because_a_thread_costs_more():
    tokenizer = FakeTokenizer()
    renderer = LocalRenderer(tokenizer)
    tokenizer.threads.clear()

    def steps():
        rendered = yield request_of(user("a"))
        return rendered.text

    assert await renderer.run(steps()) == "[x]"
    assert await renderer.render_ids(request_of(user("a")), MessageForms()) == [3]
    assert await renderer.compute(lambda encode: list(encode("four"))) == [4]
    assert await renderer.decode([7, 8]) == "<7><8>"
    assert set(tokenizer.threads) == {threading.current_thread().name}
    renderer.close()


async def test_a_tokenizer_written_in_python_is_used_by_one_thread_at_a_time():
    class Meeting(FakeTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.barrier = threading.Barrier(2)
            self.met = False

        def __call__(self, text: str, *, add_special_tokens: bool) -> object:
            try:
                self.barrier.wait(timeout=0.05)
                self.met = True
            except threading.BrokenBarrierError:
                self.barrier.reset()
            return [1]

    tokenizer = Meeting()
    renderer = LocalRenderer(tokenizer)
    await asyncio.gather(*(renderer.compute(lambda encode: encode("x")) for _ in range(2)))
    assert not tokenizer.met
    renderer.close()


def test_the_template_gets_its_inputs_and_only_text_is_asked_for():
    tokenizer = FakeTokenizer()
    renderer = LocalRenderer(tokenizer, chat_template="own")
    request = request_of(
        user("a"), tools=(TOOL,), chat_template_kwargs={"enable_thinking": False}, add_generation_prompt=False
    )
    assert renderer.render(request) == Rendered("[x]")
    assert tokenizer.asked == [
        {
            "conversation": [user("a")],
            "tools": [TOOL],
            "chat_template": "own",
            "add_generation_prompt": False,
            "tokenize": False,
            "enable_thinking": False,
        }
    ]


@pytest.mark.parametrize(
    "error", [TypeError("t"), ValueError("v"), KeyError("k"), AttributeError("a"), ZeroDivisionError("z")]
)
def test_what_a_template_raises_is_the_conversations_failure(error):
    failed = LocalRenderer(FakeTokenizer(error)).render(request_of(user("a")))
    assert isinstance(failed, RenderFailed)
    assert str(error) in failed.message


def test_a_failure_of_the_machine_is_not_the_templates():
    with pytest.raises(MemoryError):
        LocalRenderer(FakeTokenizer(MemoryError())).render(request_of(user("a")))


def test_a_template_that_makes_no_text_has_failed():
    assert LocalRenderer(FakeTokenizer([1])).render(request_of(user("a"))) == RenderFailed(
        "the template made a list"
    )


async def test_special_tokens_are_those_that_are_hidden():
    renderer = LocalRenderer(FakeTokenizer(), stop_token_ids=[2])
    assert renderer.tokens.texts == ("<end>", "<tool>")
    assert renderer.tokens.stops == ("<2>",)
    assert await renderer.special([1, 2, 3]) == {2}


def test_stop_tokens_are_the_tokenizers_and_those_of_the_generation_config(tmp_path):
    folder = write_tokenizer_folder(tmp_path)
    ids = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    document = next(token["id"] for token in ids if token["content"] == "<|endoftext|>")
    renderer = load_renderer(str(folder))
    assert renderer.tokens.stops == ("<|im_end|>",)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [*renderer.stop_token_ids, document]})
    )
    assert set(load_renderer(str(folder)).tokens.stops) == {"<|im_end|>", "<|endoftext|>"}
    (folder / "generation_config.json").unlink()
    assert load_renderer(str(folder)).tokens.stops == ("<|im_end|>",)


def test_the_vocabulary_is_the_models_and_what_the_library_knows_without_one():
    assert load_renderer(str(tokenizer_folder(vocabulary=5000))).vocabulary_size == 5000
    assert load_renderer(str(tokenizer_folder())).vocabulary_size == 2**32


async def test_a_tokenizer_that_was_saved_with_truncation_or_padding_cuts_and_pads_nothing(tmp_path):
    """tokenizer.json may hold the lengths of somebody's training run; transformers does not apply them either."""
    folder = write_tokenizer_folder(tmp_path)
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    saved["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    request = request_of(user("one two three four five six seven eight nine ten"))
    expected = await load_renderer(str(tokenizer_folder())).render_ids(request, MessageForms())
    assert await load_renderer(str(folder)).render_ids(request, MessageForms()) == expected


@pytest.mark.parametrize("text", [None, "own"])
def test_an_inline_template_wins_over_a_file_that_is_then_never_read(text, tmp_path):
    (path := tmp_path / "t").write_text("file")
    assert read_chat_template(text, str(path)) == (text or "file")
    assert read_chat_template("own", str(tmp_path / "none")) == "own"
    assert read_chat_template(None, None) is None


def test_a_template_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=str(tmp_path / "none")) as caught:
        read_chat_template(None, str(tmp_path / "none"))
    assert caught.value.param == "sglang_chat_template_path"


def client_of(engine: Engine) -> NeMoGymAsyncOpenAI:
    pool = HTTPPool(HTTPClientConfig(max_attempts=2), transport=transport_of(engine), sleep=no_sleep)
    return NeMoGymAsyncOpenAI(base_url="http://engine/v1", api_key="k", http_pool=pool, name="policy")


def server_renderer(engine: Engine, **fields: Any) -> ServerRenderer:
    return ServerRenderer(client_of(engine), "m", **fields)


CONVERSATIONS = {
    "text": CONVERSATION,
    "parts": (user([{"type": "text", "text": "a"}]),),
    "calls": (
        user("a"),
        assistant(None, tool_calls=[call("c1", "look", '{"a": 1}')]),
        tool("c1", "found"),
    ),
    "reasoning": (user("a"), assistant("b", reasoning_content="why"), user("c")),
    "developer": ({"role": "developer", "content": "x"}, user("a")),
    "markup": (user("<|im_end|>\n<tool_call></think>"),),
}


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_both_renderers_make_the_same_ids_of_a_conversation(name):
    engine = engine_with()
    local = load_renderer(str(tokenizer_folder()))
    request = request_of(*CONVERSATIONS[name])
    ours = await local.render_ids(request, MessageForms())
    assert isinstance(ours, TokenIds)
    assert ours == await server_renderer(engine).render_ids(request, MessageForms())
    assert local.render(request) == await server_renderer(engine).render(request)


async def test_the_engines_renderer_sends_tools_and_arguments_of_the_template():
    engine = engine_with()
    request = request_of(user("a"), tools=(TOOL,), chat_template_kwargs={"enable_thinking": False})
    await server_renderer(engine).render_ids(request, MessageForms())
    assert engine.requests[-1].body == {
        "model": "m",
        "messages": [user("a")],
        "tools": [TOOL],
        "chat_template_kwargs": {"enable_thinking": False},
    }


async def test_the_ids_of_a_conversation_are_the_engines_and_never_made_of_its_text():
    """Decoded and encoded again they could be others."""
    engine = engine_with()
    await server_renderer(engine).render_ids(request_of(user("a")), MessageForms())
    assert [request.path for request in engine.requests] == ["/tokenize"]


async def test_each_text_of_a_computation_is_asked_for_once():
    engine = engine_with()

    def twice(encode):
        return [*encode("one"), *encode("two"), *encode("one")]

    ids = await server_renderer(engine).compute(twice)
    assert ids == [
        *engine.tokenizer.encode("one"),
        *engine.tokenizer.encode("two"),
        *engine.tokenizer.encode("one"),
    ]
    assert [request.body["prompt"] for request in engine.requests] == ["one", "two"]
    assert all(request.body["add_special_tokens"] is False for request in engine.requests)


async def test_no_ids_are_no_text_and_no_call():
    engine = engine_with()
    assert await server_renderer(engine).decode([]) == ""
    assert await server_renderer(engine).special([]) == frozenset()
    assert engine.requests == []


async def test_special_tokens_stand_in_the_text_of_ids():
    engine = engine_with()
    ids = engine.tokenizer.encode("a<|im_end|>\n<tool_call>")
    assert await server_renderer(engine).decode(ids) == "a<|im_end|>\n<tool_call>"


async def test_the_engine_knows_which_of_its_tokens_are_special():
    engine = engine_with()
    ids = engine.tokenizer.encode("<|im_end|>\n<tool_call>a <|im_start|>")
    special = await server_renderer(engine).special(ids)
    assert special == {engine.tokenizer.eos_token_id, engine.tokenizer.encode("<|im_start|>")[0]}


async def test_a_conversation_that_the_engine_refuses_is_refused_with_its_words():
    refusal = Misbehaviour(path="/tokenize", status=400, body={"message": "No user query found."})
    renderer = server_renderer(engine_with(misbehave=(refusal,)))
    failed = await renderer.render(request_of(system("x")))
    assert isinstance(failed, RenderFailed)
    assert "No user query found." in failed.message
    refused = await renderer.render_ids(request_of(system("x")), MessageForms())
    assert isinstance(refused, Refusal)
    assert refused.reason is RefusalReason.TEMPLATE_REJECTED


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_failure_of_the_engine_is_no_refusal_of_the_conversation(status):
    failing = Misbehaviour(path="/tokenize", status=status, body={"message": "no"})
    renderer = server_renderer(engine_with(misbehave=(failing,)))
    with pytest.raises(UpstreamStatusError):
        await renderer.render_ids(request_of(user("a")), MessageForms())
    with pytest.raises(UpstreamStatusError):
        await renderer.compute(lambda encode: encode("a"))


@pytest.mark.parametrize("answer", [{"text": "one"}, {"text": ["a", "b", "c"]}, {}])
async def test_texts_of_other_tokens_than_were_asked_for_are_a_broken_contract(answer):
    wrong = Misbehaviour(path="/detokenize", status=200, body=answer)
    with pytest.raises(UpstreamContractError, match="/detokenize"):
        await server_renderer(engine_with(misbehave=(wrong,))).special([1, 2])


async def test_known_stop_tokens_are_handed_on():
    renderer = server_renderer(engine_with(), stop_tokens=[(7, "<x>")])
    assert renderer.stop_token_ids == {7}
    assert renderer.tokens.stops == ("<x>",)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_the_librarys_threads_stand_behind_the_event_loop_and_no_other_thread_does():
    """In a process of its own: the library's threads live as long as the process."""
    program = (
        "import os\n"
        "from sglang_model.renderer import load_renderer\n"
        f"load_renderer({str(tokenizer_folder())!r})\n"
        "tasks = [int(name) for name in os.listdir('/proc/self/task')]\n"
        "print(sorted({os.getpriority(os.PRIO_PROCESS, task) for task in tasks}))\n"
    )
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert run.stdout.strip() == str([own, own + LIBRARY_NICENESS])


def test_very_many_ids_become_text_in_steps_and_stay_the_same():
    encoder = TextEncoder(PreTrainedTokenizerFast(tokenizer_object=builtin_tokenizer().backend))
    texts = ["the weather, 12345 and 🚀 " * (GIL_STEP // 4), "a", "b " * GIL_STEP, ""]
    encoded = encoder.texts(texts)
    assert len(encoded[0]) > 2 * GIL_STEP
    assert encoded == [encoder.ids(text) for text in texts]


@settings(deadline=None)  # the first example loads the tokenizer
@given(st.lists(st.integers(0, 900), max_size=30))
def test_ids_decode_in_the_library_as_transformers_decodes_them(ids: list[int]):
    renderer = shared_renderer()
    expected = renderer._tokenizer.decode(
        ids,
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
        clean_up_tokenization_spaces=False,
    )
    assert renderer._library is not None
    assert renderer._decode(ids) == renderer._decode_long(ids) == expected
    assert asyncio.run(renderer.decode(ids)) == expected


def test_a_class_with_a_decoding_of_its_own_is_asked():
    assert LocalRenderer(FakeTokenizer())._library is None


@cache
def shared_renderer() -> LocalRenderer:
    return load_renderer(str(tokenizer_folder()))
