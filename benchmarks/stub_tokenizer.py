"""/tokenize and /detokenize as SGLang 0.5.13 answers them, with the tokenizer and chat template of a folder.

With `messages`, /tokenize renders what chat would render: a generation prompt always follows, whatever
`add_generation_prompt` says, and an assistant message at the end becomes the user's.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import cast

from sglang_model.testing.chat_template import (
    ChatTemplate,
    JsonObject,
    messages_for_template,
    tools_for_template,
)
from sglang_model.testing.tokenizer import folder_tokenizer
from sglang_model.testing.versions import VERSIONS

VERSION = VERSIONS["0.5.13"]
_CUT = "<|im_start|>"
"""A special token: what stands before it and behind it is encoded apart anyway."""
_SEGMENTS = 4_096


class StubTokenizer:
    """Loads a folder once. Segments between special tokens are encoded once: the stub is not what is measured."""

    def __init__(self, folder: Path) -> None:
        template = ChatTemplate.from_folder(folder)
        if template is None:
            raise ValueError("BENCH_TOKENIZER: the folder holds no chat template")
        self._template = template
        self._tokenizer = folder_tokenizer(folder)
        self._segment_ids = lru_cache(_SEGMENTS)(self._encode)

    def tokenize(self, body: JsonObject) -> JsonObject:
        """Raises ValueError with the template's own message."""
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ids = self._encode(prompt)
        else:
            first, *rest = self._render(body).split(_CUT)
            segments = [first, *(_CUT + text for text in rest)]
            ids = [token_id for segment in segments if segment for token_id in self._segment_ids(segment)]
        return {"tokens": ids, "count": len(ids), "max_model_len": self._tokenizer.model_max_length}

    def _encode(self, text: str) -> list[int]:
        (encoding,) = self._tokenizer.backend.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _render(self, body: JsonObject) -> str:
        messages = messages_for_template(cast("list[JsonObject]", body["messages"]), VERSION)
        if messages and messages[-1].get("role") == "assistant":
            messages[-1] = {**messages[-1], "role": "user"}
        tools = cast("list[JsonObject] | None", body.get("tools"))
        kwargs = cast("JsonObject", body.get("chat_template_kwargs") or {})
        return self._template.render(messages, tools_for_template(tools, VERSION) if tools else None, kwargs)

    def detokenize(self, body: JsonObject) -> JsonObject:
        """Of one list of ids, or of several."""
        tokens = cast("list[int] | list[list[int]]", body["tokens"])
        hide = bool(body.get("skip_special_tokens", True))
        if tokens and isinstance(tokens[0], list):
            lists = tokens
            return {"text": [self._tokenizer.decode(ids, skip_special_tokens=hide) for ids in lists]}
        return {"text": self._tokenizer.decode(cast("list[int]", tokens), skip_special_tokens=hide)}
