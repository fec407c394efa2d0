"""Which tokens the engine sampled, read from one answer. Pure: no HTTP, no tokenizer, no framework.

Everything a trainer learns from passes through here once. A silently empty, shifted or invented entry would poison
the loss mask of a batch without any error, so whatever is not exactly as expected is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from nemo_gym.errors import UpstreamContractError
from nemo_gym.token_metadata import LogProbs, TokenIds
from sglang_model.sampled_entries import SampledEntries

UNSUPPORTED_SAMPLING_PARAMS = (
    "user",
    "parallel_tool_calls",
    "prediction",
    "modalities",
    "audio",
    "web_search_options",
)
"""Request fields that SGLang's `/generate` has no counterpart for (0.5.13)."""


def extract_generated_tokens_and_logprobs(result: Mapping[str, object]) -> tuple[TokenIds, LogProbs]:
    """The sampled ids and the logprob of each, from a `/generate` answer or a chat choice that carries `meta_info`.

    Reads `meta_info.output_token_logprobs` (`SampledEntries`, or a list of [logprob, id, text] or of mappings), else
    the parallel `output_token_logprobs_val` / `_idx` arrays. Only the first `meta_info.completion_tokens` entries
    count: with no token generated SGLang (0.5.12 to 0.5.23) still sends one entry, the token that would have come.
    Where the answer has a second copy of the ids (`output_ids`, `response_token_ids`) both must agree.

    Raises UpstreamContractError, a RuntimeError, for anything missing, misaligned, mistyped or non-finite.
    """
    meta = _meta_info(result)
    completion_tokens = _completion_tokens(meta)
    output_ids = _second_copy(result, meta)

    entries = meta.get("output_token_logprobs")
    if isinstance(entries, SampledEntries):
        _require_enough(len(entries.token_ids), completion_tokens)
        ids, logprobs = entries.first(completion_tokens)
    else:
        ids, logprobs = _checked_columns(result, meta, completion_tokens, output_ids)
    if output_ids is not None:
        _require_same(ids, output_ids)
    return ids, logprobs


def unsupported_sampling_params(body: Mapping[str, object]) -> list[str]:
    """The request fields that are set and that `/generate` cannot honour, in a fixed order."""
    return [name for name in UNSUPPORTED_SAMPLING_PARAMS if body.get(name) is not None]


def _meta_info(result: Mapping[str, object]) -> Mapping[str, object]:
    if not isinstance(result, Mapping):
        raise UpstreamContractError(
            f"expected one answer of the engine as an object, got {type(result).__name__} (n must be 1)"
        )
    meta = result.get("meta_info", {})
    if not isinstance(meta, Mapping):
        raise UpstreamContractError(f"expected meta_info to be an object, got {type(meta).__name__}")
    return meta


def _completion_tokens(meta: Mapping[str, object]) -> int | None:
    count = meta.get("completion_tokens")
    if count is None:
        return None
    if type(count) is not int or count < 0:
        raise UpstreamContractError(
            f"expected meta_info.completion_tokens to be a non-negative integer, got {type(count).__name__}"
        )
    return count


def _second_copy(result: Mapping[str, object], meta: Mapping[str, object]) -> TokenIds | None:
    """SGLang has it at the top of a /generate answer; 0.5.23's chat as response_token_ids when asked for."""
    for name, holder in (("output_ids", meta), ("output_ids", result), ("response_token_ids", result)):
        raw = holder.get(name)
        if raw is not None:
            # Most often it is compared and never read.
            return raw if isinstance(raw, TokenIds) else _token_ids(_sequence(raw, name), name)
    return None


def _require_enough(entries: int, completion_tokens: int | None) -> None:
    if completion_tokens is not None and entries < completion_tokens:
        raise UpstreamContractError(
            f"the engine reports completion_tokens={completion_tokens} but only {entries} sampled tokens came"
        )


def _checked_columns(
    result: Mapping[str, object],
    meta: Mapping[str, object],
    completion_tokens: int | None,
    output_ids: TokenIds | None,
) -> tuple[TokenIds, LogProbs]:
    """The ids and log probabilities of plain JSON, each looked at here."""
    entries = meta.get("output_token_logprobs")
    if entries is not None:
        raw_logprobs, raw_ids = _split_entries(_sequence(entries, "output_token_logprobs"))
    elif _either(meta, result, "output_token_logprobs_val") is not None:
        raw_logprobs, raw_ids = _split_arrays(result, meta, output_ids)
    else:
        raise UpstreamContractError(
            "the engine's answer has no output_token_logprobs: expected it in meta_info, but the answer has the keys "
            f"{sorted(result)} and meta_info has {sorted(meta)}. Ask for it: return_logprob on /generate, logprobs and "
            "return_meta_info on chat"
        )
    _require_enough(len(raw_ids), completion_tokens)
    try:
        return _checked(raw_ids[:completion_tokens], raw_logprobs[:completion_tokens])
    except UpstreamContractError:
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            _pair(entry, index)  # says more of a null than that it is no number
        raise


def _split_arrays(
    result: Mapping[str, object], meta: Mapping[str, object], output_ids: TokenIds | None
) -> tuple[list[object], list[object]]:
    values = list(_sequence(_either(meta, result, "output_token_logprobs_val"), "output_token_logprobs_val"))
    indices = _either(meta, result, "output_token_logprobs_idx")
    if indices is not None:
        ids: list[object] = list(_sequence(indices, "output_token_logprobs_idx"))
    else:
        ids = list(_token_ids(output_ids, "output_ids")) if output_ids is not None else []
    if len(ids) != len(values):
        raise UpstreamContractError(
            f"expected one logprob per sampled token, got {len(values)} logprobs for {len(ids)} token ids"
        )
    return values, ids


def _split_entries(entries: Sequence[object]) -> tuple[list[object], list[object]]:
    """(logprobs, token ids) of [logprob, id, text] entries.

    All of them at once where all look alike, as they do; one by one, to say which one is odd, where not.
    """
    if set(map(type, entries)) == {list}:
        columns = list(zip(*cast("Sequence[list[object]]", entries), strict=False))
        if len(columns) >= 2:
            return list(columns[0]), list(columns[1])
    pairs = [_pair(entry, index) for index, entry in enumerate(entries)]
    return [logprob for logprob, _ in pairs], [token_id for _, token_id in pairs]


def _pair(entry: object, index: int) -> tuple[object, object]:
    """(logprob, token id) of one entry."""
    if isinstance(entry, Mapping):
        logprob, token_id = entry.get("logprob"), entry.get("token_id", entry.get("id"))
    elif isinstance(entry, list | tuple) and len(entry) >= 2:
        logprob, token_id = entry[0], entry[1]
    else:
        raise UpstreamContractError(
            f"expected output_token_logprobs[{index}] to be [logprob, token id, ...], got {type(entry).__name__}"
        )
    if logprob is None or token_id is None:
        missing = "logprob" if logprob is None else "token id"
        raise UpstreamContractError(
            f"output_token_logprobs[{index}] has no {missing} (SGLang writes null for a non-finite logprob)"
        )
    return logprob, token_id


def _checked(raw_ids: Sequence[object], raw_logprobs: Sequence[object]) -> tuple[TokenIds, LogProbs]:
    ids = _token_ids(raw_ids, "output_token_logprobs")
    try:
        return ids, LogProbs.checked(raw_logprobs, "output_token_logprobs")
    except ValueError as error:
        raise UpstreamContractError(f"the engine's logprobs cannot be used: {error}") from error


def _token_ids(raw: Sequence[object], name: str) -> TokenIds:
    try:
        return TokenIds.checked(raw, name).read(name)
    except ValueError as error:
        raise UpstreamContractError(f"the engine's token ids cannot be used: {error}") from error


def _require_same(ids: TokenIds, output_ids: TokenIds) -> None:
    if output_ids.carries(ids.text) or ids == _token_ids(output_ids, "output_ids"):
        return
    first = next(
        (i for i, (a, b) in enumerate(zip(ids, output_ids, strict=False)) if a != b),
        min(len(ids), len(output_ids)),
    )
    raise UpstreamContractError(
        f"the ids of output_token_logprobs do not match output_ids: {len(ids)} against {len(output_ids)} ids, "
        f"first difference at position {first}"
    )


def _either(meta: Mapping[str, object], result: Mapping[str, object], name: str) -> object:
    value = meta.get(name)
    return result.get(name) if value is None else value


def _sequence(value: object, name: str) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise UpstreamContractError(f"expected {name} to be a list, got {type(value).__name__}")
    return value
