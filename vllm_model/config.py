"""The settings of a vLLM-style model server. Attribute docstrings are the source of docs/configuration.md."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig
from nemo_gym.http_pool import HTTPClientConfig
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from vllm_model.chat_body import RESERVED_EXTRA_FIELDS


class VLLMModelConfig(BaseResponsesAPIModelConfig):
    base_url: list[str] = Field(min_length=1)
    """URL of the engine, with or without `/v1`; or a list of replicas. A session stays with one of them while it
    answers."""

    api_key: str
    """Bearer token for the engine. Any text for an engine that asks for none."""

    model: str
    """Model name; replaces the caller's `model` on every outgoing call."""

    return_token_id_information: bool
    """Ask the engine for token ids and logprobs, and attach them to every turn. Required for training."""

    uses_reasoning_parser: bool
    """The engine splits reasoning from the answer. Wraps it into `<think>` on the way out and back on the way in."""

    uses_interleaved_reasoning: bool = True
    """Send the reasoning of earlier turns back to the engine; false removes it from the history."""

    replace_developer_role_with_system: bool = False
    """Send messages of the role `developer` as `system`, for chat templates that do not know the role."""

    sequential_reasoning_allowed: bool = True
    """False: a conversation that ends in an empty assistant turn is answered with an empty turn, without the engine."""

    is_responses_native: bool = False
    """Forward `/v1/responses` to the engine's own Responses API. Excludes `return_token_id_information`."""

    chat_template_kwargs: dict[str, Any] | None = None
    """Arguments of the chat template for every request; a request's own values win, key by key."""

    extra_body: dict[str, Any] | None = None
    """Fields for every outgoing body, under the request's own: a field that the request sets wins, a null does not."""

    default_headers: dict[str, str] = Field(default_factory=dict)
    """Headers of every call to the engine."""

    audio_root: str | None = None
    """Folder that relative `metadata.audio_path` values start from."""

    on_context_overflow: Literal["length", "error"] = "length"
    """A prompt that does not fit ends the turn with finish_reason `length` (`length`) or is a 400 (`error`)."""

    http_client: HTTPClientConfig = Field(default_factory=HTTPClientConfig)
    """Connections to the engine: timeouts, pool and retries."""

    @field_validator("base_url", mode="before")
    @classmethod
    def _one_url_is_a_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("extra_body")
    @classmethod
    def _extra_body_leaves_the_prompt_alone(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        reserved = sorted(RESERVED_EXTRA_FIELDS & (value or {}).keys())
        if reserved:
            raise ValueError(f"may not set {', '.join(reserved)}")
        return value

    @model_validator(mode="after")
    def _engines_can_be_called(self) -> Self:
        """What the client would refuse is refused with the configuration, before anything is started."""
        for url in self.base_url:
            NeMoGymAsyncOpenAI(
                base_url=url, api_key=self.api_key, default_headers=self.default_headers, name="the engine"
            )
        return self

    @model_validator(mode="after")
    def _native_forwards_what_it_gets(self) -> Self:
        """The engine's own Responses API returns no token ids, and its requests are not rewritten here."""
        unusable = {
            "return_token_id_information: true": self.return_token_id_information,
            "replace_developer_role_with_system: true": self.replace_developer_role_with_system,
            "sequential_reasoning_allowed: false": not self.sequential_reasoning_allowed,
        }
        chosen = [setting for setting, is_set in unusable.items() if is_set]
        if self.is_responses_native and chosen:
            raise ValueError(f"is_responses_native: true cannot be combined with {', '.join(chosen)}")
        return self
