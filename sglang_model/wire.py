"""What SGLang's answers must look like before anything is believed. Pure checks of decoded JSON.

Facts are of SGLang 0.5.12, 0.5.13 and 0.5.23, seen in real answers. This room knows field names and meanings of the
engine's JSON; it knows neither HTTP nor how a turn is used afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nemo_gym.errors import GenerationAbortedError, UpstreamContractError
from nemo_gym.token_metadata import LogProbs, TokenIds
from sglang_model._logic import extract_generated_tokens_and_logprobs

MINIMUM_CHAT_VERSION = "0.5.13"
"""First SGLang release whose chat endpoint returns token ids (sgl-project/sglang#23751)."""

NAN_HAPPENED = "NaN happened"
"""`finish_reason.matched` when the logits were not finite: the sampled id was overwritten, so it is no sample."""


@dataclass(frozen=True)
class SampledTurn:
    """One turn as the engine saw and sampled it. `len(generation_token_ids) == len(generation_log_probs)`."""

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: object | None = None


def finish_type(finish_reason: object) -> str | None:
    """The engine's word for how a generation ended: meta_info has a mapping, a chat choice the bare string."""
    if isinstance(finish_reason, dict):
        finish_reason = finish_reason.get("type")
    return finish_reason if isinstance(finish_reason, str) else None


def refuse_unusable_finish(choice: Mapping[str, object], server: str) -> None:
    """Raise when the generation was aborted or its logits were not finite, wherever the engine says so.

    After a tool parse, chat rewrites `choice.finish_reason` but `meta_info.finish_reason` may still say "abort", so
    both are read. Raises GenerationAbortedError or UpstreamContractError.
    """
    meta = choice.get("meta_info")
    in_meta = meta.get("finish_reason") if isinstance(meta, dict) else None
    if "abort" in (finish_type(choice.get("finish_reason")), finish_type(in_meta)):
        message = in_meta.get("message") if isinstance(in_meta, dict) else None
        detail = f" ({message})" if isinstance(message, str) and message else ""
        raise GenerationAbortedError(
            f"{server}: SGLang ended this generation with finish_reason abort{detail}, for example because of a "
            "preemption, a weight update or a shutdown. A partial turn is never passed on as a complete one; repeat "
            "the request"
        )
    if isinstance(in_meta, dict) and in_meta.get("matched") == NAN_HAPPENED:
        raise UpstreamContractError(
            f"{server}: SGLang reports '{NAN_HAPPENED}' for this generation: the logits were not finite and a sampled "
            "id was overwritten. Look at the weights and at the engine's log"
        )


def read_chat_turn(
    choice: Mapping[str, object], server: str, *, sent_ids: TokenIds | None = None
) -> SampledTurn:
    """The turn of one chat choice, every part checked against every other.

    `sent_ids` are the ids that were sent as `input_ids`, if any: the echo must be equal, because older engines and
    some routers drop the field and generate from the rendered messages instead. Raises GenerationAbortedError or
    UpstreamContractError.
    """
    refuse_unusable_finish(choice, server)
    raw_prompt = choice.get("prompt_token_ids")
    if raw_prompt is None:
        raise UpstreamContractError(
            f"{server}: the chat answer carries no prompt_token_ids although return_prompt_token_ids and "
            f"return_meta_info were sent; the choice has the keys {sorted(choice)}. `transport: chat` needs SGLang "
            f">= {MINIMUM_CHAT_VERSION} without a router that drops these fields; for older builds and forks use "
            "`transport: generate`"
        )
    generation_token_ids, generation_log_probs = extract_generated_tokens_and_logprobs(choice)
    prompt_token_ids = _checked_prompt(raw_prompt, sent_ids, server)
    meta = choice.get("meta_info")
    check_counts(len(prompt_token_ids), meta, server)
    if sent_ids is not None:
        check_echo(sent_ids, prompt_token_ids, server)
    routed_experts = meta.get("routed_experts") if isinstance(meta, dict) else None
    return SampledTurn(prompt_token_ids, generation_token_ids, generation_log_probs, routed_experts)


def read_generate_turn(answer: Mapping[str, object], prompt_token_ids: TokenIds, server: str) -> SampledTurn:
    """The turn of one `/generate` answer to `prompt_token_ids`.

    Raises GenerationAbortedError or UpstreamContractError.
    """
    refuse_unusable_finish(answer, server)
    generation_token_ids, generation_log_probs = extract_generated_tokens_and_logprobs(answer)
    meta = answer.get("meta_info")
    check_counts(len(prompt_token_ids), meta, server)
    echoed = answer.get("prompt_token_ids")
    if echoed is not None:
        check_echo(prompt_token_ids, _checked_prompt(echoed, prompt_token_ids, server), server)
    routed_experts = meta.get("routed_experts") if isinstance(meta, dict) else None
    return SampledTurn(prompt_token_ids, generation_token_ids, generation_log_probs, routed_experts)


def check_counts(prompt_length: int, meta: object, server: str) -> None:
    """`meta_info` must count both parts of the turn, and `prompt_tokens` must equal the number of prompt ids.

    Without `completion_tokens` the entry that SGLang sends for a generation of zero tokens would pass as a token.
    `prompt_tokens` differs when the engine cut the prompt (--allow-auto-truncate): the ids are then taken before the
    last cut. Raises UpstreamContractError.
    """
    counts = meta if isinstance(meta, dict) else {}
    missing = [name for name in ("prompt_tokens", "completion_tokens") if type(counts.get(name)) is not int]
    if missing:
        raise UpstreamContractError(
            f"{server}: expected {' and '.join(missing)} in meta_info as integers, as SGLang sends them with every "
            "finished generation"
        )
    if counts["prompt_tokens"] != prompt_length:
        raise UpstreamContractError(
            f"{server}: the engine returned {prompt_length} prompt_token_ids but reports "
            f"prompt_tokens={counts['prompt_tokens']}, so the model did not see this prompt. SGLang cuts prompts when "
            "it is started with --allow-auto-truncate; start it without"
        )


def check_echo(sent_ids: TokenIds, echoed_ids: TokenIds, server: str) -> None:
    """The prompt that the engine used must be the one that was sent."""
    if sent_ids == echoed_ids:
        return
    raise UpstreamContractError(
        f"{server}: {len(sent_ids)} input_ids were sent but the engine reports a prompt of {len(echoed_ids)} other "
        f"ids. SGLang older than {MINIMUM_CHAT_VERSION} and some routers ignore input_ids on chat; use "
        "`transport: generate` there"
    )


def _checked_prompt(raw: object, sent_ids: TokenIds | None, server: str) -> TokenIds:
    if isinstance(raw, TokenIds) and sent_ids is not None and raw.carries(sent_ids.text):
        return sent_ids
    if not isinstance(raw, list | TokenIds):
        raise UpstreamContractError(
            f"{server}: expected prompt_token_ids to be a list, got {type(raw).__name__}"
        )
    try:
        return TokenIds.checked(raw, "prompt_token_ids").read("prompt_token_ids")
    except ValueError as error:
        raise UpstreamContractError(f"{server}: the engine's prompt cannot be used: {error}") from error
