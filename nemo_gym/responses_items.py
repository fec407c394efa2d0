"""The items of the Responses API: what an agent sends as input and what a model answers with.

Every item is chosen by its `type` and `role`; the variant `*ForTraining` is chosen if and only if a token
field is present, and then all three must be. The names are NeMo Gym's.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from openai.types.responses.response_output_item import (
    McpApprovalRequest,
    McpCall,
    McpListTools,
    McpListToolsTool,
)
from openai.types.responses.response_reasoning_item import Content, Summary
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from nemo_gym.responses_parts import NeMoGymContent, NeMoGymInputContent, NeMoGymInputPart
from nemo_gym.tagged_union import PlainPath, described, field_of
from nemo_gym.tagged_union import part_type as part_type
from nemo_gym.token_metadata import TokenIDLogProbMixin, has_token_metadata

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class NeMoGymSummary(Summary):
    """One stretch of reasoning."""

    type: Literal["summary_text"] = "summary_text"


class NeMoGymReasoningContent(Content):
    type: Literal["reasoning_text"] = "reasoning_text"


class NeMoGymResponseReasoningItem(BaseModel):
    """Reasoning of the model. It has no `status`: OpenAI answers 400 when one is sent back."""

    id: str
    summary: Annotated[list[NeMoGymSummary], Field(fail_fast=True)]
    type: Literal["reasoning"] = "reasoning"
    content: Annotated[list[NeMoGymReasoningContent], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = None


class NeMoGymResponseOutputMessage(ResponseOutputMessage):
    """What the assistant said, as the server answered it."""

    content: Annotated[list[NeMoGymContent], Field(fail_fast=True)]  # type: ignore[assignment]  # narrower parts; openai's list is invariant
    role: Literal["assistant"] = "assistant"
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymEasyInputMessage(BaseModel):
    """A message as agents write it: a role and a string or parts."""

    model_config = ConfigDict(extra="allow")

    content: NeMoGymInputContent
    role: Literal["user", "assistant", "system", "developer"]
    type: Literal["message"] = "message"

    @model_validator(mode="before")
    @classmethod
    def _assistant_without_text(cls, value: object) -> object:
        """An assistant turn that only called tools or sampled nothing has no content, or null."""
        if isinstance(value, dict) and value.get("role") == "assistant" and value.get("content") is None:
            return value | {"content": ""}
        return value


class NeMoGymMessage(BaseModel):
    """A message as the API returns it: parts and a status, never the assistant's."""

    model_config = ConfigDict(extra="allow")

    content: Annotated[list[NeMoGymInputPart], Field(fail_fast=True)]
    role: Literal["user", "system", "developer"]
    status: ItemStatus = "completed"
    type: Literal["message"] = "message"


class NeMoGymToolMessage(BaseModel):
    """What a tool answered, as chat agents write it."""

    model_config = ConfigDict(extra="allow")

    content: NeMoGymInputContent
    role: Literal["tool"]
    tool_call_id: str
    type: Literal["message"] = "message"


class NeMoGymFunctionCallOutput(BaseModel):
    """What a tool answered."""

    model_config = ConfigDict(extra="allow")

    call_id: str
    output: NeMoGymInputContent
    type: Literal["function_call_output"] = "function_call_output"
    id: str | None = None
    status: ItemStatus | None = None


class NeMoGymResponseFunctionToolCall(ResponseFunctionToolCall):
    """A tool call of the assistant; `arguments` is the JSON text that was sampled."""

    type: Literal["function_call"] = "function_call"


class NeMoGymMcpCall(McpCall):
    """Hosted MCP items come without an id from some servers; an empty one stands for that."""

    id: str = ""


class NeMoGymMcpListTools(McpListTools):
    id: str = ""
    tools: Annotated[list[McpListToolsTool], Field(fail_fast=True)]


class NeMoGymMcpApprovalRequest(McpApprovalRequest):
    id: str = ""


class NeMoGymEasyInputMessageForTraining(NeMoGymEasyInputMessage, TokenIDLogProbMixin):
    pass


class NeMoGymMessageForTraining(NeMoGymMessage, TokenIDLogProbMixin):
    pass


class NeMoGymResponseOutputMessageForTraining(NeMoGymResponseOutputMessage, TokenIDLogProbMixin):
    pass


class NeMoGymResponseFunctionToolCallForTraining(NeMoGymResponseFunctionToolCall, TokenIDLogProbMixin):
    pass


class NeMoGymResponseReasoningItemForTraining(NeMoGymResponseReasoningItem, TokenIDLogProbMixin):
    pass


RESPONSES_TO_TRAIN: dict[type[BaseModel], type[TokenIDLogProbMixin]] = {
    NeMoGymEasyInputMessage: NeMoGymEasyInputMessageForTraining,
    NeMoGymMessage: NeMoGymMessageForTraining,
    NeMoGymResponseOutputMessage: NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseFunctionToolCall: NeMoGymResponseFunctionToolCallForTraining,
    NeMoGymResponseReasoningItem: NeMoGymResponseReasoningItemForTraining,
}


def training_variant_of(cls: type[BaseModel]) -> type[TokenIDLogProbMixin]:
    """The class that is `cls` with the token triple. NotImplementedError if such an item cannot carry one."""
    variant = RESPONSES_TO_TRAIN.get(cls)
    if variant is None:
        raise NotImplementedError(f"{cls.__name__} has no variant that carries token ids")
    return variant


_MESSAGE_KINDS: dict[type[BaseModel], str] = {
    NeMoGymEasyInputMessage: "easy_message",
    NeMoGymEasyInputMessageForTraining: "easy_message",
    NeMoGymMessage: "message",
    NeMoGymMessageForTraining: "message",
    NeMoGymResponseOutputMessage: "output_message",
    NeMoGymResponseOutputMessageForTraining: "output_message",
}


def input_item_kind(item: object) -> str:
    """Discriminator for input items. `type` may be missing where a `role` says that it is a message."""
    kind = field_of(item, "type")
    if kind is None and field_of(item, "role") is not None:
        kind = "message"
    return _item_kind(item, kind)


def output_item_kind(item: object) -> str:
    """Discriminator for output items: as for input, but each must carry its `type`."""
    return _item_kind(item, field_of(item, "type"))


def _item_kind(item: object, kind: object) -> str:
    if kind is None and isinstance(item, (dict, BaseModel)):
        return "none"
    if not isinstance(kind, str):  # first, because a list or an object cannot be looked for in a set
        return described(item if kind is None else kind)
    if kind == "message":
        kind = _message_kind(item)
    elif kind not in {"function_call", "reasoning"}:
        return kind if kind in _UNTRAINED_KINDS else described(kind or item)
    if kind == "tool_message":
        return kind
    return f"{kind}_for_training" if has_token_metadata(item) else kind


def _message_kind(item: object) -> str:
    of_class = _MESSAGE_KINDS.get(type(item)) if isinstance(item, BaseModel) else None
    if of_class is not None:
        return of_class
    role, parts = field_of(item, "role"), isinstance(field_of(item, "content"), (list, tuple))
    if role == "assistant":
        return "output_message" if parts and isinstance(field_of(item, "id"), str) else "easy_message"
    if role in ("user", "system", "developer"):
        return "message" if parts and field_of(item, "status") is not None else "easy_message"
    return "tool_message" if role == "tool" else f"message with role {described(role)}"


_UNTRAINED_KINDS = {"function_call_output", "mcp_call", "mcp_list_tools", "mcp_approval_request"}

NeMoGymResponseItem: TypeAlias = (
    Annotated[NeMoGymEasyInputMessage, Tag("easy_message")]
    | Annotated[NeMoGymMessage, Tag("message")]
    | Annotated[NeMoGymResponseOutputMessage, Tag("output_message")]
    | Annotated[NeMoGymResponseFunctionToolCall, Tag("function_call")]
    | Annotated[NeMoGymFunctionCallOutput, Tag("function_call_output")]
    | Annotated[NeMoGymToolMessage, Tag("tool_message")]
    | Annotated[NeMoGymResponseReasoningItem, Tag("reasoning")]
    | Annotated[NeMoGymMcpCall, Tag("mcp_call")]
    | Annotated[NeMoGymMcpListTools, Tag("mcp_list_tools")]
    | Annotated[NeMoGymMcpApprovalRequest, Tag("mcp_approval_request")]
    | Annotated[NeMoGymEasyInputMessageForTraining, Tag("easy_message_for_training")]
    | Annotated[NeMoGymMessageForTraining, Tag("message_for_training")]
    | Annotated[NeMoGymResponseOutputMessageForTraining, Tag("output_message_for_training")]
    | Annotated[NeMoGymResponseFunctionToolCallForTraining, Tag("function_call_for_training")]
    | Annotated[NeMoGymResponseReasoningItemForTraining, Tag("reasoning_for_training")]
)

_PATH = PlainPath(
    "item type",
    "message (user, system, developer, assistant or tool), reasoning, function_call, function_call_output, "
    "mcp_call, mcp_list_tools or mcp_approval_request",
)

NeMoGymResponseInputItem: TypeAlias = Annotated[NeMoGymResponseItem, Discriminator(input_item_kind), _PATH]
NeMoGymResponseOutputItem: TypeAlias = Annotated[NeMoGymResponseItem, Discriminator(output_item_kind), _PATH]
NeMoGymResponseInput: TypeAlias = Annotated[list[NeMoGymResponseInputItem], Field(fail_fast=True)]
