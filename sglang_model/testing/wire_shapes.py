"""SGLang's JSON: how a sample is reported, and how an error is. No decisions about when."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sglang_model.testing.generation import Sample
from sglang_model.testing.policy import Context
from sglang_model.testing.tokenizer import EngineTokenizer
from sglang_model.testing.versions import WireVersion

Json = dict[str, object]


def object_error(message: str, kind: str, code: int) -> Json:
    """The error object of the OpenAI endpoints, and of 500/503 and schema errors everywhere."""
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def native_error(message: str) -> Json:
    """A refused `/generate`."""
    return {"error": {"message": message}}


def weight_spans(sample: Sample, weight_version: str) -> list[Json]:
    return [{"version": weight_version, "start": 0, "end": len(sample.token_ids)}]


class MetaInfo:
    """Builds `meta_info`, the same on both endpoints but for the texts, which chat always asks for."""

    def __init__(self, tokenizer: EngineTokenizer, version: WireVersion, weight_version: str) -> None:
        self._tokenizer = tokenizer
        self._version = version
        self._weight_version = weight_version

    def build(
        self,
        sample: Sample,
        *,
        logprobs: bool,
        top_logprobs: int = 0,
        with_text: bool = False,
        logprob_start: int = -1,
        watched_ids: Sequence[int] = (),
    ) -> Json:
        spans: Json = {}
        if self._version.weight_versions:
            spans["weight_versions"] = weight_spans(sample, self._weight_version)
        if sample.queued:
            return self._queued(sample, spans, logprobs=logprobs)
        scores: Json = {}
        if logprobs:
            scores = self._scores(sample, top_logprobs, logprob_start, with_text=with_text)
            if watched_ids:
                scores |= self._watched(sample, logprob_start, watched_ids, with_text=with_text)
        cached = sample.cached_tokens
        return {
            "id": sample.rid,
            "finish_reason": dict(sample.finish_reason),
            "prompt_tokens": len(sample.prompt_token_ids),
            "weight_version": self._weight_version,
            "num_retractions": 0,
            **scores,
            "reasoning_tokens": 0,
            "completion_tokens": len(sample.token_ids),
            "cached_tokens": cached,
            **spans,
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "dp_rank": None,
            "e2e_latency": sample.seconds,
            "response_sent_to_client_ts": time.time(),
        }

    def _queued(self, sample: Sample, spans: Json, *, logprobs: bool) -> Json:
        empty: Json = {
            "input_token_logprobs": [],
            "output_token_logprobs": [],
            "output_token_logprobs_length": 0,
        }
        return {
            "id": sample.rid,
            "finish_reason": dict(sample.finish_reason),
            "weight_version": self._weight_version,
            "e2e_latency": sample.seconds,
            **spans,
            **(empty if logprobs else {}),
            "completion_tokens": 0,
            "response_sent_to_client_ts": time.time(),
        }

    def _scores(self, sample: Sample, top: int, start: int, *, with_text: bool) -> Json:
        prompt = sample.prompt_token_ids
        inputs = self._input_entries(prompt, start, with_text=with_text)
        outputs = [
            self._entry(logprob, token_id, with_text=with_text)
            for logprob, token_id in zip(sample.logprobs, sample.sampled_ids, strict=True)
        ]
        scores: Json = {
            "input_token_logprobs": inputs,
            "output_token_logprobs": outputs,
            "output_token_logprobs_length": len(outputs),
        }
        if top > 0:
            scores["input_top_logprobs"] = [
                None if entry[0] is None else self._top(entry, top, with_text=with_text) for entry in inputs
            ]
            scores["output_top_logprobs"] = [self._top(entry, top, with_text=with_text) for entry in outputs]
        return scores

    def _watched(self, sample: Sample, start: int, ids: Sequence[int], *, with_text: bool) -> Json:
        """`token_ids_logprob`: how likely each of `ids` was at each position."""
        prompt = sample.prompt_token_ids
        context = Context(prompt)
        outputs = []
        for token_id in sample.sampled_ids:
            outputs.append([self._entry(context.logprob(one), one, with_text=with_text) for one in ids])
            context.push(token_id)
        inputs = [None] * (len(prompt) - start) if 0 <= start < len(prompt) else []
        return {"input_token_ids_logprobs": inputs, "output_token_ids_logprobs": outputs}

    def _entry(self, logprob: float | None, token_id: int, *, with_text: bool) -> list[object]:
        return [logprob, token_id, self._tokenizer.decode([token_id]) if with_text else None]

    def _input_entries(self, prompt: Sequence[int], start: int, *, with_text: bool) -> list[list[object]]:
        """Scores of the prompt's own ids from `start` on; the first is never scored."""
        if start < 0 or start >= len(prompt):
            return []
        context = Context(prompt[:start])
        entries = []
        for position in range(start, len(prompt)):
            token_id = prompt[position]
            logprob = context.logprob(token_id) if position > start else None
            entries.append(self._entry(logprob, token_id, with_text=with_text))
            context.push(token_id)
        return entries

    def _top(self, entry: list[object], count: int, *, with_text: bool) -> list[list[object]]:
        """The token itself, then its neighbours in the vocabulary, each a nat less likely."""
        logprob, token_id = entry[0], entry[1]
        if not isinstance(logprob, float) or not isinstance(token_id, int):
            return []
        size = self._tokenizer.vocab_size
        return [
            self._entry(logprob - rank, (token_id + rank) % size, with_text=with_text)
            for rank in range(count)
        ]


def openai_logprobs(meta_info: Json, tokenizer: EngineTokenizer, version: WireVersion) -> Json:
    """Chat's `logprobs` of a choice: texts and bytes, and never an id."""

    def token(entry: list[object]) -> Json:
        text, token_id = str(entry[2]), entry[1]
        octets = text.encode()
        if version.true_token_bytes and isinstance(token_id, int):
            octets = tokenizer.token_bytes(token_id)
        return {"token": text, "bytes": list(octets), "logprob": entry[0]}

    entries = meta_info.get("output_token_logprobs")
    tops = meta_info.get("output_top_logprobs")
    content = []
    for position, entry in enumerate(entries if isinstance(entries, list) else []):
        top = tops[position] if isinstance(tops, list) else []
        content.append({**token(entry), "top_logprobs": [token(item) for item in top]})
    return {"content": content}


def usage(samples: Sequence[Sample], version: WireVersion, n: int) -> Json:
    """The prompt is counted once, for a negative `n` never; what was given up in the queue counts as nothing."""
    prompt = 0 if samples[0].queued or n < 0 else len(samples[0].prompt_token_ids)
    completion = sum(len(sample.token_ids) for sample in samples)
    counts: Json = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
        "reasoning_tokens": 0,
    }
    if version.weight_versions:
        counts["completion_tokens_details"] = None
    return counts
