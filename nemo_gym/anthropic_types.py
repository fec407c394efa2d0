"""The part of Anthropic's Messages API that a text model with tools can serve.

Unknown kinds of content block are refused by name. Unknown keys inside a block (cache_control, citations) say
nothing that a model would see, and are ignored; so are the request fields at the end of `AnthropicRequest`.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from typing_extensions import TypedDict

from nemo_gym.sampling_fields import Count, NoStream, Number, Texts
from nemo_gym.tagged_union import PlainPath, described, field_of, text_or_parts


def _block_type(block: object) -> str:
    return described(field_of(block, "type"))


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class TextBlock(_Part):
    type: Literal["text"]
    text: str


class ImageSource(_Part):
    """Base64 data with its media type, or a URL; whether there are eyes for it is the engine's to say."""

    type: Literal["base64", "url"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"] | None = None
    data: str | None = None
    url: str | None = None


class ImageBlock(_Part):
    type: Literal["image"]
    source: ImageSource


class ToolUseBlock(_Part):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


ResultPart: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")] | Annotated[ImageBlock, Tag("image")],
    Discriminator(_block_type),
    PlainPath("tool result block", "text or image"),
]


class ToolResultBlock(_Part):
    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, Tag("text")] | Annotated[list[ResultPart], Field(fail_fast=True), Tag("parts")],
            Discriminator(text_or_parts),
            PlainPath("content", "a string or a list of blocks"),
        ]
        | None
    ) = None


class ThinkingBlock(_Part):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


Block: TypeAlias = TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock

TaggedBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ImageBlock, Tag("image")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")]
    | Annotated[ThinkingBlock, Tag("thinking")],
    Discriminator(_block_type),
    PlainPath("content block", "text, image, tool_use, tool_result or thinking"),
]


class AnthropicMessageParam(_Part):
    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[str, Tag("text")] | Annotated[list[TaggedBlock], Field(fail_fast=True), Tag("parts")],
        Discriminator(text_or_parts),
        PlainPath("content", "a string or a list of blocks"),
    ]


class AnthropicTool(_Part):
    """A tool that the client runs. Anthropic's own tools have other types, and no model here knows them."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, object]


class AnthropicToolChoice(_Part):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicMetadata(_Part):
    user_id: str | None = None


class AnthropicRequest(BaseModel):
    """A request to /v1/messages. Unknown fields are refused by name, as Anthropic's own API does."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    messages: Annotated[list[AnthropicMessageParam], Field(min_length=1, fail_fast=True)]
    model: str | None = None
    max_tokens: Count | None = None
    system: (
        Annotated[
            Annotated[str, Tag("text")] | Annotated[list[TextBlock], Field(fail_fast=True), Tag("parts")],
            Discriminator(text_or_parts),
            PlainPath("system", "a string or a list of text blocks"),
        ]
        | None
    ) = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(strict=True)] | None = None
    stop_sequences: Texts | None = None
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    metadata: AnthropicMetadata | None = None
    stream: NoStream = None

    # Accepted, because clients always send them, and without effect. Whether a model thinks is the business
    # of its chat template: `chat_template_kwargs` in the server's configuration.
    cache_control: object = None
    container: object = None
    context_management: object = None
    inference_geo: object = None
    output_config: object = None
    service_tier: object = None
    thinking: object = None


class TextContent(TypedDict):
    type: Literal["text"]
    text: str


class ThinkingContent(TypedDict):
    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseContent(TypedDict):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


AnthropicContent: TypeAlias = TextContent | ThinkingContent | ToolUseContent
StopReason: TypeAlias = Literal["end_turn", "max_tokens", "tool_use", "refusal"]


class AnthropicUsage(TypedDict):
    input_tokens: int
    output_tokens: int


class AnthropicMessage(TypedDict):
    """An answer of /v1/messages. `usage` is null when the engine reported none."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicContent]
    stop_reason: StopReason
    stop_sequence: None
    usage: AnthropicUsage | None
