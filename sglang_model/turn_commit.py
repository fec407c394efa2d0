"""From a finished completion to what the history remembers of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionMessage,
    NeMoGymChatCompletionMessageForTraining,
)
from nemo_gym.token_metadata import TOKEN_FIELDS
from sglang_model.generation_end import EngineFinish, stop_token_id
from sglang_model.history import FinishedTurn
from vllm_model.reasoning_fields import split_message

CARRIED = {*TOKEN_FIELDS, "routed_experts"}


def finished_turn(
    completion: NeMoGymChatCompletion,
    body: Mapping[str, object],
    known_stops: Collection[int],
    *,
    uses_reasoning_parser: bool = False,
) -> FinishedTurn | None:
    """The turn to commit, or None: no ids, or a prompt that did not fit and which the engine never saw.

    With `uses_reasoning_parser` a returned reply is looked at without its think spans, so the stored one is as well:
    what is left may have a tag of its own.
    """
    choice = completion.choices[0]
    message = choice.message
    if not isinstance(message, NeMoGymChatCompletionMessageForTraining):
        return None
    if choice.finish_reason == "length" and not message.generation_token_ids:
        return None
    matched = (choice.model_extra or {}).get("matched_stop")
    finish = EngineFinish(choice.finish_reason, matched if type(matched) in (int, str) else None)
    reply = message.model_dump(exclude=CARRIED, exclude_none=True)
    return FinishedTurn(
        reply=split_message(reply, keep=True) if uses_reasoning_parser else reply,
        prompt_token_ids=message.prompt_token_ids,
        generation_token_ids=message.generation_token_ids,
        finish=choice.finish_reason,
        stop_token_id=stop_token_id(
            finish, message.generation_token_ids.last(1), known_stops, stop_strings=has_stop_strings(body)
        ),
    )


def doubtful_stop(completion: NeMoGymChatCompletion, body: Mapping[str, object]) -> int | None:
    """The last sampled id of a turn of which it is not known whether that or a stop string ended it.

    After a tool parse SGLang's chat no longer says what matched, and the request had stop strings.
    """
    choice = completion.choices[0]
    message = choice.message
    if not isinstance(message, NeMoGymChatCompletionMessageForTraining) or not message.generation_token_ids:
        return None
    forgotten = (choice.model_extra or {}).get("matched_stop") is None and choice.finish_reason != "length"
    return message.generation_token_ids.last(1)[0] if forgotten and has_stop_strings(body) else None


def has_stop_strings(body: Mapping[str, object]) -> bool:
    return any(body.get(name) for name in ("stop", "stop_regex"))


def without_token_ids(message: NeMoGymChatCompletionMessage) -> NeMoGymChatCompletionMessage:
    """The same message for a caller that asked for no ids."""
    return NeMoGymChatCompletionMessage.model_validate(
        message.model_dump(exclude=CARRIED, exclude_unset=True)
    )
