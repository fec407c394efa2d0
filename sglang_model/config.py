"""The settings of the SGLang model server. Attribute docstrings are the source of docs/configuration.md."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from sglang_model.message_forms import check_template_kwargs
from sglang_model.segment_cache import DEFAULT_SEGMENT_CACHE_BYTES
from sglang_model.sessions import DEFAULT_MAX_AGE_SECONDS, DEFAULT_MAX_SESSIONS, DEFAULT_MAX_TOKENS
from sglang_model.tool_formats import TOOL_FORMATS
from vllm_model.config import VLLMModelConfig

SERVER_TOOL_FORMAT = "server"
"""Parse with the engine's own parsers."""

GENERATE_ONLY = ("context_length", "sglang_tool_format")
"""Settings that mean nothing on `transport: chat`, where the engine knows its window and parses."""

LOCAL_ONLY = (
    "trust_remote_code",
    "sglang_tokenizer",
    "sglang_chat_template",
    "sglang_chat_template_path",
    "sglang_segment_cache_bytes",
)
"""Settings that mean nothing where nothing is rendered here."""

SPLICE_ONLY = (
    "sglang_eos_markers",
    "sglang_turn_suffix",
    "sglang_renderer",
    "on_broken_prefix",
    "session_max_tokens",
    "session_max_sessions",
    "session_max_age_seconds",
)
"""Settings that mean nothing where no history is spliced."""


class SGLangModelConfig(VLLMModelConfig):
    transport: Literal["chat", "generate"] = "chat"
    """`chat`: SGLang's `/v1/chat/completions`, which renders, parses and returns the token ids (SGLang >= 0.5.13).
    `generate`: `/generate` with a prompt that is rendered and spliced here, for older builds and forks."""

    context_length: PositiveInt | None = Field(default=None)
    """Context window of the engine in tokens. Required for `transport: generate`, which guards it itself."""

    trust_remote_code: bool = False
    """Let the tokenizer's repository run its own code when it is loaded."""

    sglang_tokenizer: str | None = Field(default=None, min_length=1)
    """Repository or folder of the tokenizer. Unset: `model`, which then must be one and not just a served name."""

    sglang_chat_template: str | None = Field(default=None, min_length=1)
    """Chat template as text, instead of the tokenizer's own; wins over the path. Must be the engine's."""

    sglang_chat_template_path: str | None = Field(default=None, min_length=1)
    """UTF-8 file with the chat template; a relative path starts at the working directory. Must be the engine's."""

    sglang_tool_format: str = "hermes"
    """How the model writes tool calls, `transport: generate` only: `hermes`, `qwen3_coder`, `llama3_json`, `glm45`,
    `mistral`, `nemotron`, or `server` to let the engine's own parsers do it. On chat its --tool-call-parser decides."""

    sglang_eos_markers: tuple[str, ...] | None = None
    """Texts that end a turn and are no part of the answer. Unset: derived from the chat template, on ChatML
    `<|im_end|>` and `<|endoftext|>`."""

    sglang_turn_suffix: str | None = None
    """What the chat template writes behind an assistant turn. Unset: derived from it, on ChatML `<|im_end|>` and a
    newline."""

    sglang_splice_history: bool | None = None
    """Begin each prompt with the exact ids of the turns before. Unset: on for generate, off for chat."""

    sglang_renderer: Literal["local", "server"] = "local"
    """Who renders what is spliced, and on generate the first prompt: a tokenizer here, or the engine's `/tokenize` and
    `/detokenize`."""

    sglang_segment_cache_bytes: NonNegativeInt = DEFAULT_SEGMENT_CACHE_BYTES
    """Bytes for pieces of prompts that were encoded here and their ids, so that a group's rollouts encode their prompt
    once; what was unused for longest goes first. 0 remembers nothing."""

    on_broken_prefix: Literal["resync", "error"] = "resync"
    """A history that cannot be spliced starts a new segment, as the headers say (`resync`), or is a 400 (`error`)."""

    session_max_tokens: PositiveInt = DEFAULT_MAX_TOKENS
    """Token ids remembered for all sessions together, about 3 bytes each; the session unused for longest goes first."""

    session_max_sessions: PositiveInt = DEFAULT_MAX_SESSIONS
    """Sessions remembered at most."""

    session_max_age_seconds: PositiveFloat = DEFAULT_MAX_AGE_SECONDS
    """Seconds after its last request when a session is forgotten."""

    @property
    def splices_history(self) -> bool:
        return (
            self.transport == "generate" if self.sglang_splice_history is None else self.sglang_splice_history
        )

    @property
    def renders_locally(self) -> bool:
        """Whether a tokenizer is needed here."""
        return self.sglang_renderer == "local" and (self.splices_history or self.transport == "generate")

    @property
    def ignored_settings(self) -> list[str]:
        """Settings that were given although nothing reads them."""
        unread: tuple[str, ...] = () if self.transport == "generate" else GENERATE_ONLY
        unread += () if self.renders_locally else LOCAL_ONLY
        unread += () if self.splices_history else SPLICE_ONLY
        if self.transport == "generate":
            unread = tuple(name for name in unread if name != "sglang_renderer")
        return [name for name in unread if name in self.model_fields_set and getattr(self, name) is not None]

    @field_validator("sglang_tool_format")
    @classmethod
    def _a_known_tool_format(cls, value: str) -> str:
        choices = sorted([*TOOL_FORMATS, SERVER_TOOL_FORMAT])
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, got {value!r}")
        return value

    @field_validator("chat_template_kwargs")
    @classmethod
    def _the_renderers_own_arguments_stay_its_own(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        check_template_kwargs(value or {})
        return value

    @model_validator(mode="after")
    def _generate_needs_the_context_length(self) -> Self:
        if self.transport == "generate" and self.context_length is None:
            raise ValueError(
                "context_length is required for transport: generate, because the prompt is rendered here and must "
                "never be cut: set context_length to the engine's --context-length"
            )
        return self

    @model_validator(mode="after")
    def _splicing_needs_ids_and_one_process(self) -> Self:
        if not self.splices_history:
            return self
        if self.transport == "chat" and not self.return_token_id_information:
            raise ValueError(
                "sglang_splice_history: true on transport: chat needs return_token_id_information: true, because the "
                "ids to splice come from the engine's answers"
            )
        if self.num_workers is not None and self.num_workers > 1:
            raise ValueError(
                f"num_workers: {self.num_workers} cannot splice histories: each worker would remember other turns of a "
                "session. Set num_workers: 1, or sglang_splice_history: false"
            )
        return self
