"""Completions that the server makes itself, and the token triple of vLLM's chat answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from secrets import token_hex
from typing import Literal

from nemo_gym.errors import UpstreamContractError
from nemo_gym.openai_utils import NeMoGymChatCompletion
from nemo_gym.token_metadata import LogProbs, TokenIds

TOKEN_ID_PREFIX = "token_id:"  # noqa: S105 - vLLM's prefix of a token id, no secret


def empty_completion(
    model: str, finish_reason: Literal["length", "content_filter"], prompt_token_ids: TokenIds | None = None
) -> NeMoGymChatCompletion:
    """A turn in which nothing was sampled.

    With `prompt_token_ids` it carries the whole triple, with empty generation lists, so that a turn which ended at the
    context limit stays attributable. `usage` is there only when the prompt's length is known.
    """
    message: dict[str, object] = {"role": "assistant", "content": None}
    completion: dict[str, object] = {
        "id": f"chatcmpl-{token_hex(16)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": message, "logprobs": None}],
    }
    if prompt_token_ids is not None:
        count = len(prompt_token_ids)
        message.update(
            prompt_token_ids=prompt_token_ids,
            generation_token_ids=TokenIds(),
            generation_log_probs=LogProbs(),
        )
        completion["usage"] = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
    return NeMoGymChatCompletion.model_validate(completion)


def read_token_ids_of_logprobs(choice: Mapping[str, object], server: str) -> tuple[TokenIds, LogProbs]:
    """Sampled ids and logprobs of a vLLM choice that was asked for with `return_tokens_as_token_ids`.

    vLLM writes each sampled id as the text `token_id:<id>` of a logprob entry. An empty list is a generation of zero
    tokens. Raises UpstreamContractError.
    """
    logprobs = choice.get("logprobs")
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        came = type(content if isinstance(logprobs, Mapping) else logprobs).__name__
        raise UpstreamContractError(
            f"{server}: Cannot extract token ids and logprobs: expected a list in choices[0].logprobs.content, got "
            f"{came}. The request had logprobs=true and return_tokens_as_token_ids=true; the engine must honour both"
        )
    ids: list[int] = []
    values: list[object] = []
    for index, entry in enumerate(content):
        token = entry.get("token") if isinstance(entry, Mapping) else None
        digits = token.removeprefix(TOKEN_ID_PREFIX) if isinstance(token, str) else ""
        if not isinstance(token, str) or digits == token or not (digits.isascii() and digits.isdigit()):
            raise UpstreamContractError(
                f"{server}: Cannot extract token ids: expected logprobs.content[{index}].token to read "
                f"'{TOKEN_ID_PREFIX}<id>', got another text. Does the engine honour return_tokens_as_token_ids?"
            )
        ids.append(int(digits))
        values.append(entry.get("logprob"))
    try:
        return TokenIds.checked(ids), LogProbs.checked(values, "logprobs.content[].logprob")
    except ValueError as error:
        raise UpstreamContractError(
            f"{server}: the engine's token ids or logprobs cannot be used: {error}"
        ) from error


def read_tokenized_prompt(answer: Mapping[str, object], server: str) -> TokenIds:
    """The prompt's ids from an answer of `/tokenize`. Raises UpstreamContractError."""
    try:
        return TokenIds.checked(answer.get("tokens"), "tokens").read("tokens")
    except ValueError as error:
        raise UpstreamContractError(
            f"{server}: the engine's /tokenize answer cannot be used: {error}"
        ) from error
