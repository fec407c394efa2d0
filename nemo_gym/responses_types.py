"""Request and response of the Responses API, under NeMo Gym's names.

openai's types, with three differences: the server validates (openai's request type is a TypedDict that
checks nothing), SGLang's sampling extensions are accepted by name, and what is only echoed is not judged by
the enumerations of whichever openai release is installed.
"""

from __future__ import annotations

from typing import Annotated, Literal, Required, TypeAlias

from openai.types.responses import Response, ResponseUsage
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import ConfigDict, Discriminator, Field, StrictBool, Tag, with_config
from typing_extensions import TypedDict

from nemo_gym.responses_items import NeMoGymResponseInput, NeMoGymResponseOutputItem
from nemo_gym.sampling_fields import Count, NoStream, SamplingFields, Texts
from nemo_gym.tagged_union import PlainPath, described, field_of

Metadata: TypeAlias = dict[str, str | None]
"""OpenAI's key-value pairs; null values are tolerated, as agents fill in what they do not know."""


@with_config(ConfigDict(extra="allow"))
class NeMoGymFunctionToolParam(TypedDict, total=False):
    """A function that the model may call. `strict` and `parameters` may be left out, as OpenAI's API
    allows.
    """

    type: Required[Literal["function"]]
    name: Required[str]
    description: str | None
    parameters: dict[str, object] | None
    strict: bool | None


@with_config(ConfigDict(extra="allow"))
class NeMoGymHostedToolParam(TypedDict):
    """A tool that OpenAI hosts (web search and the like); an engine has none, only a native server can use
    it.
    """

    type: Required[str]


def _tool_kind(tool: object) -> str:
    kind = field_of(tool, "type")
    if not isinstance(kind, str):
        return "none" if kind is None and isinstance(tool, dict) else described(kind or tool)
    return "function" if kind == "function" else "hosted"


NeMoGymToolParam: TypeAlias = Annotated[
    Annotated[NeMoGymFunctionToolParam, Tag("function")] | Annotated[NeMoGymHostedToolParam, Tag("hosted")],
    Discriminator(_tool_kind),
    PlainPath("tool type", "a dict whose type is function"),
]


def _tool_choice_kind(choice: object) -> str:
    if isinstance(choice, str):
        return "mode"
    return "named" if isinstance(choice, dict) else described(choice)


NeMoGymToolChoice: TypeAlias = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")] | Annotated[dict[str, object], Tag("named")],
    Discriminator(_tool_choice_kind),
    PlainPath("tool choice", "none, auto, required or a dict that names a function"),
]


@with_config(ConfigDict(extra="allow"))
class NeMoGymReasoning(TypedDict, total=False):
    """How much to think; which efforts exist is the engine's to say."""

    effort: str | None
    summary: str | None


@with_config(ConfigDict(extra="allow"))
class NeMoGymTextConfig(TypedDict, total=False):
    """`format` is text, json_object or json_schema."""

    format: dict[str, object] | None
    verbosity: str | None


def _input_kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    return "items" if isinstance(value, (list, tuple)) else described(value)


class NeMoGymResponseCreateParamsNonStreaming(SamplingFields):
    """A request to `/v1/responses`. Unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    input: Annotated[
        Annotated[str, Tag("text")] | Annotated[NeMoGymResponseInput, Tag("items")],
        Discriminator(_input_kind),
        PlainPath("input", "a string or a list of items"),
    ]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    metadata: Metadata | None = None
    model: str | None = None
    parallel_tool_calls: StrictBool | None = True
    previous_response_id: str | None = None
    reasoning: NeMoGymReasoning | None = None
    stream: NoStream = None
    text: NeMoGymTextConfig | None = None
    tool_choice: NeMoGymToolChoice | None = "auto"
    tools: Annotated[list[NeMoGymToolParam], Field(fail_fast=True)] | None = Field(default_factory=list)
    top_logprobs: Count | None = None

    access_programs: object = None
    background: StrictBool | None = None
    background_options: object = None
    context_management: object = None
    conversation: object = None
    image: object = None
    include: Texts | None = None
    max_tool_calls: int | None = None
    moderation: object = None
    prompt: object = None
    prompt_cache_key: str | None = None
    prompt_cache_options: object = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: StrictBool | None = None
    stream_options: object = None
    truncation: str | None = None
    user: str | None = None


class NeMoGymResponseInputTokensDetails(InputTokensDetails):
    """`cache_write_tokens` came with later openai releases; SGLang has no such number."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class NeMoGymResponseOutputTokensDetails(OutputTokensDetails):
    reasoning_tokens: int = 0


class NeMoGymResponseUsage(ResponseUsage):
    """Token counts as the engine reported them.

    openai's `Response`, and NeMo Gym's copy of it, refuse null in the details. A count that the engine did
    not report is therefore written as 0 and named in `unreported`, so that a reader can tell it from a
    measured zero.
    """

    input_tokens_details: NeMoGymResponseInputTokensDetails
    output_tokens_details: NeMoGymResponseOutputTokensDetails
    unreported: list[str] | None = None


class NeMoGymResponse(Response):
    """An answer of `/v1/responses`. The echoed request fields have the request's types, not openai's
    enumerations.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    output: list[NeMoGymResponseOutputItem]  # type: ignore[assignment]
    usage: NeMoGymResponseUsage | None = None
    metadata: Metadata | None = None  # type: ignore[assignment]
    reasoning: NeMoGymReasoning | None = None  # type: ignore[assignment]
    service_tier: str | None = None  # type: ignore[assignment]
    text: NeMoGymTextConfig | None = None  # type: ignore[assignment]
    tool_choice: NeMoGymToolChoice  # type: ignore[assignment]
    tools: list[NeMoGymToolParam]  # type: ignore[assignment]
    truncation: str | None = None  # type: ignore[assignment]
