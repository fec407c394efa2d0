"""What `transport: chat` changes in an outgoing chat body, and in the choices that come back. Pure."""

from __future__ import annotations

from nemo_gym.token_metadata import TOKEN_FIELDS
from vllm_model.chat_body import Body, messages_of
from vllm_model.engine_answer import message_of

CARRIED_FIELDS = (*TOKEN_FIELDS, "routed_experts")
"""What a message of an earlier turn carries for the trainer."""

ANSWER_FIELDS = ("logprobs", "prompt_token_ids", "response_token_ids", "meta_info")
"""What a choice carries in order that the triple can be read from it; gone once it has been."""


def with_sglang_token_id_request(body: Body) -> Body:
    """SGLang's way to return ids: the prompt's in the choice, the sampled ones in its `meta_info` (SGLang 0.5.13).

    `logprobs` stays on from vLLM's way, because `meta_info` has no sampled ids without it.
    """
    asked = {key: value for key, value in body.items() if key != "return_tokens_as_token_ids"}
    return {**asked, "return_meta_info": True, "return_prompt_token_ids": True}


def without_carried_token_ids(body: Body) -> Body:
    """The messages without the ids of earlier turns: SGLang ignores them there, and they grow with every turn."""
    stripped = [
        {key: value for key, value in message.items() if key not in CARRIED_FIELDS}
        if any(field in message for field in CARRIED_FIELDS)
        else message
        for message in messages_of(body)
    ]
    return {**body, "messages": stripped}


def tidy_tool_calls(choice: Body) -> None:
    """No call is no call, in place.

    When the tool parser fires and finds nothing it can use, SGLang 0.5.13 answers finish_reason "tool_calls" with an
    empty list and leaves the markup in the content; 0.5.23 says "stop" and sends no list.
    """
    message = message_of(choice)
    if message.get("tool_calls"):
        return
    message.pop("tool_calls", None)
    if choice.get("finish_reason") == "tool_calls":
        choice["finish_reason"] = "stop"
