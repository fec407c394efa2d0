"""The engine's configuration: which SGLang it stands in for, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from sglang_model.testing.misbehaviour import Misbehaviour
from sglang_model.testing.policy import Rule
from sglang_model.testing.versions import VersionName


class EngineSettings(BaseModel):
    """Flags of the stand-in. Names follow SGLang's own flags where there is one; unknown names are errors."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)

    version: VersionName = "0.5.13"
    """Which release's wire behaviour is shown."""
    rules: tuple[Rule, ...] = ()
    """The script; requests that match no rule are answered by the seeded sampler."""
    misbehave: tuple[Misbehaviour, ...] = ()
    """Misbehaviours of whole endpoints, looked at before any rule's."""
    seed: int = 0
    """Seed of the sampler, for requests that bring none."""

    context_length: int = Field(default=32768, ge=16)
    context_length_flag: bool = False
    """As if `--context-length` had been given: it shows in /server_info and bounds `max_tokens` on chat."""
    max_total_num_tokens: int | None = None
    """Size of the KV pool in tokens; None is four windows."""
    allow_auto_truncate: bool = False
    api_key: str | None = None
    served_model_name: str = "sglang-model-engine"
    model_path: str = "sglang-model-engine"
    tool_call_parser: str | None = "qwen25"
    """qwen25 (also called qwen), hermes, or None."""
    reasoning_parser: str | None = "qwen3"
    """qwen3, qwen3-thinking, deepseek-r1, or None."""
    generation_config: dict[str, float] = Field(
        default_factory=lambda: {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    )
    """What chat, and only chat, fills unset sampling fields from. The default is Qwen3's."""

    tokenizer_folder: Path | None = None
    """A folder with a tokenizer.json; None is the built-in tokenizer."""
    chat_template_path: Path | None = None
    """A Jinja file; None is the folder's own template, or else the built-in one."""
    eos_token_ids: tuple[int, ...] = ()
    """Further end-of-turn ids besides the tokenizer's eos token."""
    vocab_size: int | None = None
    """The model's vocabulary, which may be larger than the tokenizer's."""
    weight_version: str = "default"
