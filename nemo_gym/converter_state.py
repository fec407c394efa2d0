"""Collects the items of one assistant turn until the turn is complete.

The Responses API spreads a turn over items (reasoning, text, calls), the Chat API has one message. A
message stands for one sampled turn: it carries that turn's token ids or none, never another's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from nemo_gym.chat_types import (
    NeMoGymChatCompletionAssistantMessageForTrainingParam,
    NeMoGymChatCompletionAssistantMessageParam,
    NeMoGymChatCompletionMessageParam,
    NeMoGymChatCompletionMessageToolCallParam,
)
from nemo_gym.token_metadata import TokenIDLogProbMixin

AssistantMessage: TypeAlias = (
    NeMoGymChatCompletionAssistantMessageParam | NeMoGymChatCompletionAssistantMessageForTrainingParam
)


@dataclass
class ResponsesConverterState:
    """The messages so far and the buffers of the turn being collected.

    `assistant_item_buffered` says that an item asked for a message even if it brought no text.
    `token_information` closes the turn: the item that carries the ids is the turn's last one.
    """

    return_token_id_information: bool
    messages: list[NeMoGymChatCompletionMessageParam] = field(default_factory=list)
    content_buffer: str = ""
    tool_calls_buffer: list[NeMoGymChatCompletionMessageToolCallParam] = field(default_factory=list)
    token_information: TokenIDLogProbMixin | None = None
    assistant_item_buffered: bool = False

    @property
    def is_between_turns(self) -> bool:
        """Whether nothing is being collected: what was converted so far does not depend on what follows."""
        collecting = self.content_buffer or self.tool_calls_buffer or self.assistant_item_buffered
        return not collecting and self.token_information is None

    def begin_assistant_item(self) -> None:
        """An item of the assistant follows. If the turn before it is closed, this one starts a message of
        its own.
        """
        if self.token_information is not None:
            self.flush_assistant()

    def flush_assistant(self) -> None:
        """Turn the buffers into one assistant message and empty them, the token ids included, on every
        path.
        """
        content, calls, tokens = self.content_buffer, self.tool_calls_buffer, self.token_information
        buffered = self.assistant_item_buffered
        self.content_buffer, self.tool_calls_buffer, self.token_information = "", [], None
        self.assistant_item_buffered = False
        if not (content or calls or buffered):
            return
        if not self.return_token_id_information:
            tokens = None
        self.messages.append(_message(content or None, calls, tokens))


def _message(
    content: str | None,
    calls: list[NeMoGymChatCompletionMessageToolCallParam],
    tokens: TokenIDLogProbMixin | None,
) -> NeMoGymChatCompletionMessageParam:
    message: AssistantMessage
    if tokens is None:
        message = NeMoGymChatCompletionAssistantMessageParam(role="assistant", content=content)
    else:  # the lists themselves: a dump would copy tens of thousands of ids
        message = NeMoGymChatCompletionAssistantMessageForTrainingParam(
            role="assistant",
            content=content,
            prompt_token_ids=tokens.prompt_token_ids,
            generation_token_ids=tokens.generation_token_ids,
            generation_log_probs=tokens.generation_log_probs,
        )
        if tokens.routed_experts is not None:
            message["routed_experts"] = tokens.routed_experts
    if calls:  # templates of the Llama 3.1 family and OpenAI's API refuse an empty list
        message["tool_calls"] = calls
    return message
