"""The sampling controls that both dialects accept under one name.

OpenAI's own and SGLang's extensions, so that a `top_k` sent to either API reaches the engine by that name.
Values are checked for their type; their bounds are the engine's to judge.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, StrictBool, StrictInt
from pydantic_core import PydanticCustomError

Number: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=0)]
Texts: TypeAlias = Annotated[list[str], Field(fail_fast=True)]
"""Judged up to its first bad element, like every list of a request: each further error costs time on the loop."""


def _no_stream(value: object) -> object:
    if value is None or value is False:
        return value
    raise PydanticCustomError("stream", "streaming is not supported here; send stream: false or leave it out")


NoStream: TypeAlias = Annotated[bool | None, BeforeValidator(_no_stream)]
"""A finished completion is the only thing that can carry checked token ids."""


class SamplingFields(BaseModel):
    """Sampling controls with the same name and meaning in both request models."""

    temperature: Number | None = None
    top_p: Number | None = None
    n: Annotated[int, Field(strict=True, ge=1)] | None = None
    seed: StrictInt | None = None
    stop: str | Texts | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    logit_bias: dict[str, Number] | None = None
    response_format: dict[str, object] | None = None

    top_k: StrictInt | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[StrictInt], Field(fail_fast=True)] | None = None
    stop_regex: str | Texts | None = None
    ignore_eos: StrictBool | None = None
    no_stop_trim: StrictBool | None = None
    skip_special_tokens: StrictBool | None = None
    regex: str | None = None
    ebnf: str | None = None
    custom_params: dict[str, object] | None = None
    chat_template_kwargs: dict[str, object] | None = None
