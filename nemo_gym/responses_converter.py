"""Translation between the Responses API and the Chat Completions API, under NeMo Gym's names.

The rooms behind this door: `converter_state` collects a turn, `converter_items` turns items into messages,
`converter_message` takes a message apart, `converter_params` translates request fields, `converter_answer`
usage and echo. The converter knows no server, no client and no engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast
from uuid import uuid4

from pydantic import BaseModel

from nemo_gym.chat_types import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionContentPartTextParam,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymChatCompletionMessageParam,
    NeMoGymChatCompletionUserMessageParam,
    NeMoGymChoice,
)
from nemo_gym.converter_answer import echoed_fields, incomplete_reason, response_usage
from nemo_gym.converter_errors import UnsupportedContentError, unsupported
from nemo_gym.converter_items import add_item, input_content
from nemo_gym.converter_message import assistant_text, function_calls, output_parts, own_reasoning
from nemo_gym.converter_params import (
    chat_fields,
    refuse_several_answers,
    refuse_stored_state,
    refuse_without_effect,
    responses_fields,
    with_instructions,
)
from nemo_gym.converter_state import ResponsesConverterState
from nemo_gym.errors import RequestError
from nemo_gym.grown_list import GrownList, made_list_before, note_list
from nemo_gym.reasoning import extract_reasoning_from_content, wrap_reasoning_in_think_tags
from nemo_gym.responses_items import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponseInputItem,
    NeMoGymResponseOutputItem,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputMessageForTraining,
    NeMoGymResponseReasoningItem,
    NeMoGymSummary,
    training_variant_of,
)
from nemo_gym.responses_parts import NeMoGymContent
from nemo_gym.responses_types import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.tagged_union import described, field_of
from nemo_gym.token_metadata import TokenIDLogProbMixin, has_token_metadata, token_fields

__all__ = [
    "ResponsesConverter",
    "ResponsesConverterState",
    "UnsupportedContentError",
    "VLLMConverter",
    "VLLMConverterResponsesToChatCompletionsState",
    "split_responses_input_output_items",
]


class ResponsesConverter(BaseModel):
    """Stateless. Token ids pass through by reference and stay with the turn that they were sampled in."""

    return_token_id_information: bool
    uses_reasoning_parser: bool = True
    forwards_token_ids: bool = True
    """Whether messages made of items carry the ids of their turns; False for a server that sends none of them on."""

    @staticmethod
    def _wrap_reasoning_in_think_tags(texts: Iterable[str]) -> str:
        return wrap_reasoning_in_think_tags(texts)

    @classmethod
    def _parse_think_tags(cls, content: str) -> tuple[list[str], str]:
        return extract_reasoning_from_content(content)

    def _extract_reasoning_from_content(self, content: str) -> tuple[list[str], str]:
        return extract_reasoning_from_content(content)

    def responses_to_chat_completion_create_params(
        self, responses_create_params: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymChatCompletionCreateParamsNonStreaming:
        """A Responses request as a chat request.

        Raises UnsupportedContentError or RequestError, naming the field, for what a chat request cannot say.
        """
        params = responses_create_params
        fields = {name: getattr(params, name) for name in params.model_fields_set if name != "input"}
        refuse_stored_state(fields)
        refuse_several_answers(fields)
        refuse_without_effect(fields)
        messages = self._chat_messages(params.input)
        if params.instructions:
            messages = with_instructions(messages, params.instructions)
        if not messages:
            raise RequestError("input: expected at least one item that makes a message", param="input")
        made = NeMoGymChatCompletionCreateParamsNonStreaming.model_validate(
            {"messages": _ANY_MESSAGE, **chat_fields(fields)}
        )
        # The messages were made here, of validated items: validating them again takes as long as all the rest.
        made.messages = messages
        return made

    def _chat_messages(
        self, items: str | Sequence[NeMoGymResponseInputItem]
    ) -> list[NeMoGymChatCompletionMessageParam]:
        if isinstance(items, str):
            text = NeMoGymChatCompletionContentPartTextParam(type="text", text=items)
            return [NeMoGymChatCompletionUserMessageParam(role="user", content=[text])]
        with_ids = self.return_token_id_information and self.forwards_token_ids
        messages: GrownList[NeMoGymChatCompletionMessageParam]
        # Messages with ids are made anew each time, as their ids come with every request.
        done, messages = (0, GrownList()) if with_ids else made_list_before(items, _MESSAGES)
        state = ResponsesConverterState(return_token_id_information=with_ids, messages=messages)
        finished = done, len(messages)
        for index, item in enumerate(items[done:], start=done):
            add_item(item, state, f"input.{index}")
            if state.is_between_turns:
                finished = index + 1, len(messages)
        if not with_ids:
            # The last turn may go on in the next request.
            whole = messages if finished[0] == len(items) else GrownList(messages[: finished[1]])
            note_list(items, _MESSAGES, whole, done=finished[0])
        state.flush_assistant()
        return state.messages

    def postprocess_chat_response(self, choice: NeMoGymChoice) -> list[NeMoGymResponseOutputItem]:
        """The items of a sampled message."""
        return self.postprocess_assistant_message_dict(choice.message.model_dump(exclude_none=True))

    def postprocess_assistant_message_dict(
        self, message_dict: Mapping[str, object], where: str = "message"
    ) -> list[NeMoGymResponseOutputItem]:
        """The items of an assistant message: reasoning, text, calls; the last one carries the ids.

        `where` is the message's place in the request, for errors.
        """
        content = assistant_text(message_dict.get("content"), f"{where}.content")
        spans = own_reasoning(message_dict)
        if self.uses_reasoning_parser:
            inside, content = self._extract_reasoning_from_content(content)
            spans += inside
        calls = function_calls(message_dict, where)
        items: list[NeMoGymResponseOutputItem] = []
        if spans:
            items.append(_reasoning_item(spans))
        parts = output_parts(content, message_dict.get("refusal"), required=not (spans or calls))
        carried = self.return_token_id_information and has_token_metadata(message_dict)
        tokens = token_fields(message_dict) if carried else {}
        if parts:
            items.append(_message_item(parts, {} if calls else tokens))
        items.extend(calls)
        return _with_tokens_on_the_last(items, tokens)

    def chat_completion_to_response(
        self,
        responses_create_params: NeMoGymResponseCreateParamsNonStreaming,
        chat_completion: NeMoGymChatCompletion,
    ) -> NeMoGymResponse:
        """The first choice as a Response to the request that led to it."""
        choice = chat_completion.choices[0]
        reason = incomplete_reason(choice.finish_reason)
        return NeMoGymResponse.model_validate(
            {
                **echoed_fields(responses_create_params),
                "id": f"resp_{uuid4().hex}",
                "created_at": chat_completion.created,
                "model": responses_create_params.model or chat_completion.model,
                "object": "response",
                "output": self.postprocess_chat_response(choice),
                "usage": response_usage(chat_completion.usage),
                "status": "incomplete" if reason else "completed",
                "incomplete_details": {"reason": reason} if reason else None,
            }
        )

    def chat_messages_to_responses_items(
        self, messages: Iterable[Mapping[str, object]]
    ) -> list[NeMoGymResponseOutputItem]:
        """The items of a chat history, in order. The messages are not changed."""
        return [item for index, message in enumerate(messages) for item in self._items(message, index)]

    def chat_completions_messages_to_responses_items(
        self, messages: Iterable[Mapping[str, object]]
    ) -> list[NeMoGymResponseOutputItem]:
        """The name of `chat_messages_to_responses_items` in NeMo Gym 0.4.0."""
        return self.chat_messages_to_responses_items(messages)

    def _items(self, message: Mapping[str, object], index: int) -> list[NeMoGymResponseOutputItem]:
        where, role = f"messages.{index}", message.get("role")
        if role == "assistant":
            return self.postprocess_assistant_message_dict(message, where)
        if role in {"user", "system", "developer"}:
            content = input_content(message.get("content"), f"{where}.content")
            return [NeMoGymEasyInputMessage(role=role, content=content, type="message")]
        if role == "tool":
            output = input_content(message.get("content"), f"{where}.content")
            call_id = str(message.get("tool_call_id") or "")
            return [
                NeMoGymFunctionCallOutput(
                    call_id=call_id, output=output, status="completed", type="function_call_output"
                )
            ]
        raise unsupported(where, f"role {described(role)}", "system, developer, user, assistant or tool")

    def chat_completion_to_responses_create_params(
        self, chat_completion_create_params: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymResponseCreateParamsNonStreaming:
        """A chat request as a Responses request."""
        params = chat_completion_create_params
        fields = params.model_dump(exclude_unset=True, exclude={"messages"})
        return NeMoGymResponseCreateParamsNonStreaming.model_validate(
            {"input": self.chat_messages_to_responses_items(params.messages), **responses_fields(fields)}
        )


def _reasoning_item(texts: list[str]) -> NeMoGymResponseReasoningItem:
    """Types are given although they are defaults: a dump of what was set must still say what each item is."""
    summary = [NeMoGymSummary(text=text, type="summary_text") for text in texts]
    return NeMoGymResponseReasoningItem(id=f"rs_{uuid4().hex}", summary=summary, type="reasoning")


def _message_item(
    parts: list[NeMoGymContent], tokens: Mapping[str, object]
) -> NeMoGymResponseOutputMessage | NeMoGymResponseOutputMessageForTraining:
    kind = NeMoGymResponseOutputMessageForTraining if tokens else NeMoGymResponseOutputMessage
    fixed = {"role": "assistant", "status": "completed", "type": "message"}
    return kind.model_validate({"id": f"msg_{uuid4().hex}", "content": parts, **fixed, **tokens})


def _with_tokens_on_the_last(
    items: list[NeMoGymResponseOutputItem], tokens: Mapping[str, object]
) -> list[NeMoGymResponseOutputItem]:
    """The variant checks the triple: all of it must be there, and as many log probabilities as sampled ids."""
    last = items[-1]
    if not tokens or isinstance(last, TokenIDLogProbMixin):
        return items
    fields = {name: getattr(last, name) for name in last.model_fields_set}
    variant = training_variant_of(type(last)).model_validate({**fields, **tokens})
    return [*items[:-1], cast("NeMoGymResponseOutputItem", variant)]


_ANY_MESSAGE: Final = ({"role": "user", "content": ""},)
_MESSAGES: Final = "chat messages"

_GENERATED: Final = {
    "reasoning",
    "function_call",
    "custom_tool_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "web_search_call",
    "file_search_call",
    "computer_call",
    "code_interpreter_call",
    "image_generation_call",
    "local_shell_call",
    "shell_call",
    "apply_patch_call",
}


def split_responses_input_output_items(
    items: list[NeMoGymResponseOutputItem],
) -> tuple[list[NeMoGymResponseOutputItem], list[NeMoGymResponseOutputItem]]:
    """Cut a conversation before the first item that was generated; without one it is all input."""
    cut = next((index for index, item in enumerate(items) if _is_generated(item)), len(items))
    return items[:cut], items[cut:]


def _is_generated(item: object) -> bool:
    kind = field_of(item, "type")
    if kind in {None, "message"}:
        return field_of(item, "role") == "assistant"
    return kind in _GENERATED


# NeMo Gym's names for the same objects, from when only the vLLM server had them.
VLLMConverter = ResponsesConverter
VLLMConverterResponsesToChatCompletionsState = ResponsesConverterState
