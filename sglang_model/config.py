"""The settings of the SGLang model server. Attribute docstrings are the source of docs/configuration.md."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PositiveInt, model_validator

from vllm_model.config import VLLMModelConfig

GENERATE_ONLY = (
    "context_length",
    "trust_remote_code",
    "sglang_chat_template",
    "sglang_chat_template_path",
    "sglang_tool_format",
    "sglang_eos_markers",
    "sglang_turn_suffix",
)
"""Settings that mean nothing on `transport: chat`, where the engine renders and parses."""


class SGLangModelConfig(VLLMModelConfig):
    transport: Literal["chat", "generate"] = "chat"
    """`chat`: SGLang's `/v1/chat/completions`, which renders, parses and returns the token ids (SGLang >= 0.5.13).
    `generate`: `/generate` with a prompt that is rendered and spliced here, for older builds and forks."""

    context_length: PositiveInt | None = Field(default=None)
    """Context window of the engine in tokens. Required for `transport: generate`, which guards it itself."""

    trust_remote_code: bool = False
    """Let the tokenizer's repository run its own code when it is loaded. `transport: generate` only."""

    sglang_chat_template: str | None = Field(default=None, min_length=1)
    """Chat template as text, instead of the tokenizer's own; wins over the path. `transport: generate` only."""

    sglang_chat_template_path: str | None = Field(default=None, min_length=1)
    """File with the chat template. `transport: generate` only."""

    sglang_tool_format: Literal["hermes", "qwen3_coder"] = "hermes"
    """How the model writes tool calls. `transport: generate` only; on chat the engine's --tool-call-parser decides."""

    sglang_eos_markers: tuple[str, ...] | None = None
    """Texts that end a turn and are no part of the answer. Unset: derived from the chat template, on ChatML
    `<|im_end|>` and `<|endoftext|>`. `transport: generate` only."""

    sglang_turn_suffix: str | None = None
    """What the chat template writes behind an assistant turn. Unset: derived from it, on ChatML `<|im_end|>` and a
    newline. `transport: generate` only."""

    @model_validator(mode="after")
    def _generate_needs_the_context_length(self) -> Self:
        if self.transport == "generate" and self.context_length is None:
            raise ValueError(
                "context_length is required for transport: generate, because the prompt is rendered here and must "
                "never be cut: set context_length to the engine's --context-length"
            )
        return self

    @property
    def ignored_settings(self) -> list[str]:
        """Settings that were given although the transport does not use them."""
        if self.transport == "generate":
            return []
        return [
            name
            for name in GENERATE_ONLY
            if name in self.model_fields_set and getattr(self, name) is not None
        ]
