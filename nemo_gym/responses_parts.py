"""The content parts of Responses messages, and the choice among them by `type`."""

from __future__ import annotations

from typing import Annotated, Literal, Required, TypeAlias

from openai.types.responses import (
    ResponseInputFileParam,
    ResponseInputTextParam,
    ResponseOutputRefusal,
    ResponseOutputText,
)
from openai.types.responses.response_output_text import Annotation, Logprob
from pydantic import ConfigDict, Discriminator, Field, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.tagged_union import PlainPath, part_type, text_or_parts


class NeMoGymResponseOutputText(ResponseOutputText):
    annotations: Annotated[list[Annotation], Field(fail_fast=True)] = Field(default_factory=list)
    logprobs: Annotated[list[Logprob], Field(fail_fast=True)] | None = None
    type: Literal["output_text"] = "output_text"


class NeMoGymResponseOutputRefusal(ResponseOutputRefusal):
    type: Literal["refusal"] = "refusal"


NeMoGymContent: TypeAlias = Annotated[
    Annotated[NeMoGymResponseOutputText, Tag("output_text")]
    | Annotated[NeMoGymResponseOutputRefusal, Tag("refusal")],
    Discriminator(part_type),
    PlainPath("content part", "output_text or refusal"),
]


class NeMoGymResponseInputText(ResponseInputTextParam):
    """A text part; a dict at run time."""


@with_config(ConfigDict(extra="allow"))
class NeMoGymResponseInputImage(TypedDict, total=False):
    """An image part. openai's type requires `detail`, its API does not."""

    type: Required[Literal["input_image"]]
    image_url: str | None
    file_id: str | None
    detail: str | None


@with_config(ConfigDict(extra="allow"))
class NeMoGymAssistantTextPart(TypedDict, total=False):
    """A text part of an assistant turn that an agent wrote or shortened: no id, no annotations needed."""

    type: Required[Literal["output_text"]]
    text: Required[str]


@with_config(ConfigDict(extra="allow"))
class NeMoGymAssistantRefusalPart(TypedDict, total=False):
    type: Required[Literal["refusal"]]
    refusal: Required[str]


@with_config(ConfigDict(extra="allow"))
class NeMoGymResponseInputAudio(TypedDict, total=False):
    type: Required[Literal["input_audio"]]
    input_audio: Required[dict[str, object]]


NeMoGymInputPart: TypeAlias = Annotated[
    Annotated[NeMoGymResponseInputText, Tag("input_text")]
    | Annotated[NeMoGymResponseInputImage, Tag("input_image")]
    | Annotated[ResponseInputFileParam, Tag("input_file")]
    | Annotated[NeMoGymResponseInputAudio, Tag("input_audio")]
    | Annotated[NeMoGymAssistantTextPart, Tag("output_text")]
    | Annotated[NeMoGymAssistantRefusalPart, Tag("refusal")],
    Discriminator(part_type),
    PlainPath("content part", "input_text, input_image, input_file, input_audio, output_text or refusal"),
]

NeMoGymInputContent: TypeAlias = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[NeMoGymInputPart], Field(fail_fast=True), Tag("parts")],
    Discriminator(text_or_parts),
    PlainPath("content", "a string or a list of parts"),
]
