"""Request and response of the Chat Completions API, under NeMo Gym's names.

Request messages are TypedDicts (plain dicts at run time, as templates and engines want them), chosen by
`role`; keys that are not named here are kept and travel on. The answer's types are openai's.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, Required, TypeAlias

from openai.types.chat import ChatCompletion, ChatCompletionMessage, ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_function_tool_call import Function
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, StrictBool, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.responses_types import Metadata
from nemo_gym.sampling_fields import Count, NoStream, SamplingFields, Texts
from nemo_gym.tagged_union import PlainPath, described, part_type, text_or_parts
from nemo_gym.token_metadata import (
    LogProbs,
    RoutedExperts,
    TokenIDLogProbMixin,
    TokenIds,
    aligned_triple,
    has_token_metadata,
)

_KEEP = ConfigDict(extra="allow")


@with_config(_KEEP)
class NeMoGymChatCompletionContentPartTextParam(TypedDict, total=False):
    type: Required[Literal["text"]]
    text: Required[str]


@with_config(_KEEP)
class NeMoGymImageURL(TypedDict, total=False):
    url: Required[str]
    detail: str | None


@with_config(_KEEP)
class NeMoGymChatCompletionContentPartImageParam(TypedDict, total=False):
    type: Required[Literal["image_url"]]
    image_url: Required[NeMoGymImageURL]


@with_config(_KEEP)
class NeMoGymChatCompletionContentPartMediaParam(TypedDict, total=False):
    """Audio, video and files: passed to the engine as they are."""

    type: Required[Literal["audio_url", "video_url", "input_audio", "file"]]


@with_config(_KEEP)
class NeMoGymChatCompletionContentPartRefusalParam(TypedDict, total=False):
    type: Required[Literal["refusal"]]
    refusal: Required[str]


def _part_kind(part: object) -> str:
    kind = part_type(part)
    return "media" if kind in {"audio_url", "video_url", "input_audio", "file"} else kind


NeMoGymChatCompletionContentPartParam: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionContentPartTextParam, Tag("text")]
    | Annotated[NeMoGymChatCompletionContentPartImageParam, Tag("image_url")]
    | Annotated[NeMoGymChatCompletionContentPartMediaParam, Tag("media")]
    | Annotated[NeMoGymChatCompletionContentPartRefusalParam, Tag("refusal")],
    Discriminator(_part_kind),
    PlainPath("content part", "text, image_url, audio_url, video_url, input_audio, file or refusal"),
]

NeMoGymChatCompletionContent: TypeAlias = (
    Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[NeMoGymChatCompletionContentPartParam], Field(fail_fast=True), Tag("parts")],
        Discriminator(text_or_parts),
        PlainPath("content", "a string, a list of parts or null"),
    ]
    | None
)


@with_config(_KEEP)
class NeMoGymChatCompletionUserMessageParam(TypedDict):
    role: Literal["user"]
    content: NeMoGymChatCompletionContent
    name: NotRequired[str | None]


@with_config(_KEEP)
class NeMoGymChatCompletionSystemMessageParam(TypedDict):
    role: Literal["system"]
    content: NeMoGymChatCompletionContent
    name: NotRequired[str | None]


@with_config(_KEEP)
class NeMoGymChatCompletionDeveloperMessageParam(TypedDict):
    role: Literal["developer"]
    content: NeMoGymChatCompletionContent
    name: NotRequired[str | None]


@with_config(_KEEP)
class NeMoGymChatCompletionMessageToolCallFunctionParam(TypedDict):
    arguments: str
    name: str


@with_config(_KEEP)
class NeMoGymChatCompletionMessageToolCallParam(TypedDict):
    id: str
    function: NeMoGymChatCompletionMessageToolCallFunctionParam
    type: Literal["function"]


@with_config(_KEEP)
class NeMoGymChatCompletionAssistantMessageParam(TypedDict, total=False):
    """An assistant turn of the history. Content may be null or absent, `tool_calls` null, absent or empty."""

    role: Required[Literal["assistant"]]
    content: NeMoGymChatCompletionContent
    tool_calls: Annotated[list[NeMoGymChatCompletionMessageToolCallParam], Field(fail_fast=True)] | None
    reasoning_content: str | None
    reasoning: str | None
    refusal: str | None


@with_config(_KEEP)
class NeMoGymChatCompletionAssistantMessageForTrainingParam(
    NeMoGymChatCompletionAssistantMessageParam, total=False
):
    """An assistant turn with its token triple."""

    prompt_token_ids: Required[TokenIds]
    generation_token_ids: Required[TokenIds]
    generation_log_probs: Required[LogProbs]
    routed_experts: RoutedExperts | None


@with_config(_KEEP)
class NeMoGymChatCompletionToolMessageParam(TypedDict):
    role: Literal["tool"]
    content: NeMoGymChatCompletionContent
    tool_call_id: str


def _message_kind(message: object) -> str:
    if not isinstance(message, dict):
        return f"a message of kind {type(message).__name__}"
    role = message.get("role")
    if role == "assistant" and has_token_metadata(message):
        return "assistant_for_training"
    return role if isinstance(role, str) and role in _ROLES else described(role)


_ROLES = {"developer", "system", "user", "assistant", "tool"}

NeMoGymChatCompletionMessageParam: TypeAlias = Annotated[
    Annotated[NeMoGymChatCompletionDeveloperMessageParam, Tag("developer")]
    | Annotated[NeMoGymChatCompletionSystemMessageParam, Tag("system")]
    | Annotated[NeMoGymChatCompletionUserMessageParam, Tag("user")]
    | Annotated[NeMoGymChatCompletionAssistantMessageParam, Tag("assistant")]
    | Annotated[
        NeMoGymChatCompletionAssistantMessageForTrainingParam,
        AfterValidator(aligned_triple),
        Tag("assistant_for_training"),
    ]
    | Annotated[NeMoGymChatCompletionToolMessageParam, Tag("tool")],
    Discriminator(_message_kind),
    PlainPath("role", "developer, system, user, assistant or tool"),
]


@with_config(_KEEP)
class NeMoGymFunctionDefinition(TypedDict, total=False):
    name: Required[str]
    description: str | None
    parameters: dict[str, object] | None
    strict: bool | None


@with_config(_KEEP)
class NeMoGymChatCompletionToolParam(TypedDict):
    type: Literal["function"]
    function: NeMoGymFunctionDefinition


def _tool_choice_kind(choice: object) -> str:
    if isinstance(choice, str):
        return "mode"
    return "named" if isinstance(choice, dict) else described(choice)


NeMoGymChatToolChoice: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")] | Annotated[dict[str, object], Tag("named")],
    Discriminator(_tool_choice_kind),
    PlainPath("tool choice", "none, auto, required or a dict that names a function"),
]


class NeMoGymChatCompletionCreateParamsNonStreaming(SamplingFields):
    """A request to `/v1/chat/completions`. Unknown fields are refused by name: dropped ones would be lost
    unseen.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    messages: Annotated[list[NeMoGymChatCompletionMessageParam], Field(min_length=1, fail_fast=True)]
    model: str | None = None
    logprobs: StrictBool | None = None
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: StrictBool | None = True
    reasoning_effort: str | None = None
    stream: NoStream = None
    tool_choice: NeMoGymChatToolChoice | None = None
    tools: Annotated[list[NeMoGymChatCompletionToolParam], Field(fail_fast=True)] | None = None
    top_logprobs: Count | None = None

    audio: object = None
    modalities: Texts | None = None
    moderation: object = None
    prediction: object = None
    prompt_cache_key: str | None = None
    prompt_cache_options: object = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: StrictBool | None = None
    stream_options: object = None
    user: str | None = None
    verbosity: str | None = None
    web_search_options: object = None


class NeMoGymFunction(Function):
    """Name and arguments, both strings, both required."""


class NeMoGymChatCompletionMessageToolCall(ChatCompletionMessageFunctionToolCall):
    function: NeMoGymFunction


class NeMoGymChatCompletionMessage(ChatCompletionMessage):
    tool_calls: list[NeMoGymChatCompletionMessageToolCall] | None = None  # type: ignore[assignment]


class NeMoGymChatCompletionMessageForTraining(NeMoGymChatCompletionMessage, TokenIDLogProbMixin):
    """A sampled message with its token triple."""


def _answer_kind(message: object) -> str:
    return "for_training" if has_token_metadata(message) else "plain"


class NeMoGymChoice(Choice):
    message: Annotated[
        Annotated[NeMoGymChatCompletionMessage, Tag("plain")]
        | Annotated[NeMoGymChatCompletionMessageForTraining, Tag("for_training")],
        Discriminator(_answer_kind),
        PlainPath("message", "a chat message"),
    ]


class NeMoGymChatCompletion(ChatCompletion):
    """A finished completion. Keys of the engine that openai does not know are kept."""

    model_config = ConfigDict(hide_input_in_errors=True)

    choices: Annotated[list[NeMoGymChoice], Field(min_length=1)]  # type: ignore[assignment]
    service_tier: str | None = None  # type: ignore[assignment]
    metadata: dict[str, object] | None = None  # type: ignore[assignment]
    """OpenAI's holds texts; SGLang 0.5.23 puts lists of weight versions here."""
