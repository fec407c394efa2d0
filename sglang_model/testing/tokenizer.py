"""A real, small byte-level BPE tokenizer, built in code; or any other one, read from a folder.

It exists so that tests and the demo tokenise for real without downloading anything: words merge, special
tokens are single ids, and text has more than one encoding, so a re-encoded history can differ from what was
sampled. It knows nothing of chat templates or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import orjson
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END_OF_DOCUMENT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_DOCUMENT, "<|im_start|>", "<|im_end|>")
"""Hidden by skip_special_tokens, as in Qwen3."""
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
"""One id each, but ordinary text for skip_special_tokens, as in Qwen3."""

_PIECES = (
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Splits as the Qwen family does: punctuation takes the newline after it along, where seams appear."""

_CORPUS = """
You are a helpful assistant. You can call functions to answer the question of the user, one or more.

The weather in Paris is sunny and the temperature is twenty degrees. What is the weather in London today?

Let me look that up for you. I will use the tool and then tell you the result. First we think, then answer.
This is what I found: there are three people in the room, and each of them has two books. How many books?

Hello there! How can I help you? Say hello to the world. Thank you very much. Yes, no, please, because.
The number of steps is known; we should add the first and the second, multiply by four, subtract seven.

It would be good to know which file was changed, where it is, who made the change, and if the test passed.
Write a short program that reads a line from the input, makes it upper case, and prints it to the screen.

Reasoning: the user wants to know the time in another city. I need the function with the right arguments.
Some answers are long and some answers are short, but every answer must be correct. Stop when done.

{"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city",
"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}

{"name": "get_weather", "arguments": {"city": "Paris"}}
{"name": "calculator", "arguments": {"expression": "2 + 2", "value": true, "other": false, "nothing": null}}

def main(argument): return argument + 1 if value is not None else list(range(10))
"""
_WORDS = """
system user assistant tool function name description type object properties required string number argument
short long plain answer question result hello world the and for with from into about after before between one
two three four five six seven eight nine ten first second third last next step add subtract multiply divide
city country time day week month year morning evening night weather temperature degrees sunny cloudy rain wind
read write file line word letter token text model server client request response error status message content
think reason because therefore however always never maybe again more most less least many few some all none
held partial slow fast odd even free run call look find make take give know want need use try check done stop
"""
_VOCABULARY_SIZE = 2000


class EngineTokenizer:
    """Wraps a `tokenizers.Tokenizer`. Invariant: encoding adds nothing, no BOS and no EOS."""

    def __init__(self, backend: Tokenizer, *, eos_token: str, model_max_length: int = 131072) -> None:
        eos_id = backend.token_to_id(eos_token)
        if eos_id is None:
            raise ValueError(f"the tokenizer has no token {eos_token!r}: name an eos token that it has")
        self.backend = backend
        self.eos_token = eos_token
        self.eos_token_id: int = eos_id
        self.model_max_length = model_max_length
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        added = backend.get_added_tokens_decoder()
        self.ordinary_ids = [token_id for token_id in range(256, self.vocab_size) if token_id not in added]
        """Ids that stand for text of more than one byte: what a sampler without a script chooses from."""
        self._added = frozenset(added)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_bytewise(self, text: str) -> list[int]:
        """One id per byte of `text`: a valid sampling of it that no encoder would produce. For seam tests."""
        table = byte_table()
        found = [self.backend.token_to_id(table[byte]) for byte in text.encode()]
        ids = [token_id for token_id in found if token_id is not None]
        if len(ids) != len(found):
            raise ValueError("the tokenizer has no token for some single byte: it is not byte-level")
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token, which need not be whole characters."""
        token = self.backend.id_to_token(token_id)
        values = _byte_values()
        if token is None or token_id in self._added or not values.keys() >= set(token):
            return self.decode([token_id]).encode()
        return bytes(values[character] for character in token)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Ids that no token has, negative ones too, decode to nothing: SGLang checks no prompt id."""
        known = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
        text: str = self.backend.decode(known, skip_special_tokens=skip_special_tokens)
        return text


def byte_table() -> list[str]:
    """The printable stand-in of each byte value, as byte-level BPE (GPT-2) numbers them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    spare = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + n) for n, byte in enumerate(spare)})
    return [table[byte] for byte in range(256)]


@cache
def _byte_values() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(byte_table())}


@cache
def builtin_tokenizer() -> EngineTokenizer:
    """The small tokenizer: 256 bytes, merges learned from a page of text, the ChatML specials."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY_SIZE,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    words = _WORDS.split()
    backend.train_from_iterator([_CORPUS, " " + " ".join(words), "\n".join(words)], trainer)
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    return EngineTokenizer(backend, eos_token=SPECIAL_TOKENS[-1])


@cache
def folder_tokenizer(folder: Path) -> EngineTokenizer:
    """The tokenizer of a folder: `tokenizer.json`, and `tokenizer_config.json` for the eos token if there is one.

    Cached, because a big vocabulary takes a second to read and nothing here ever changes it.
    """
    config_path = folder / "tokenizer_config.json"
    config = orjson.loads(config_path.read_bytes()) if config_path.exists() else {}
    eos = config.get("eos_token", SPECIAL_TOKENS[-1])
    return EngineTokenizer(
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        eos_token=eos["content"] if isinstance(eos, dict) else eos,
        model_max_length=int(config.get("model_max_length", 131072)),
    )
