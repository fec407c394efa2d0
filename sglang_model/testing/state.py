"""What the engine's endpoints share: tokenizer, template, scheduler, and the memory of what was asked."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

from sglang_model.testing.chat_template import BUILTIN_TEMPLATE, ChatTemplate
from sglang_model.testing.exchange import ConnectionDroppedError, Exchange, InsteadError, RecordedRequest
from sglang_model.testing.generation import Job, Sample, Scheduler
from sglang_model.testing.limits import fit
from sglang_model.testing.misbehaviour import Misbehaviour
from sglang_model.testing.policy import Policy
from sglang_model.testing.sampling import SamplingParams, WireValueError
from sglang_model.testing.settings import EngineSettings
from sglang_model.testing.tokenizer import (
    END_OF_DOCUMENT,
    EngineTokenizer,
    builtin_tokenizer,
    folder_tokenizer,
)
from sglang_model.testing.versions import VERSIONS
from sglang_model.testing.wire_shapes import MetaInfo

_OLD_ABORT_STATUSES = (400, 500, 503)


class AbortStatusError(Exception):
    """A generation was given up with a status, which becomes the HTTP status on both endpoints."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class EngineState:
    """Invariant: `requests` and `samples` only grow, and what they hold never changes."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.version = VERSIONS[settings.version]
        self.tokenizer = _load_tokenizer(settings)
        self.template = _load_template(settings)
        self.vocab_size = settings.vocab_size or self.tokenizer.vocab_size
        self.policy = Policy(settings.rules, self.tokenizer, settings.seed)
        self.scheduler = Scheduler(self.policy, self.tokenizer, self.version, _stop_ids(self))
        self.meta_info = MetaInfo(self.tokenizer, self.version, settings.weight_version)
        self.requests: list[RecordedRequest] = []
        self.misbehaviours: list[Misbehaviour] = list(settings.misbehave)
        self._spent: dict[int, tuple[Misbehaviour, int]] = {}

    def misbehaviour_for(self, path: str) -> Misbehaviour | None:
        """The first engine-wide misbehaviour that applies to a request on `path`; counts its use."""
        return next((wrong for wrong in self.misbehaviours if self._spend(wrong, path)), None)

    def _spend(self, wrong: Misbehaviour, path: str) -> bool:
        if not wrong.applies_to(path):
            return False
        _, used = self._spent.get(id(wrong), (wrong, 0))
        if wrong.times is not None and used >= wrong.times:
            return False
        self._spent[id(wrong)] = (wrong, used + 1)
        return True

    async def generate(
        self, exchange: Exchange, prompt_ids: Sequence[int], params: SamplingParams, rid: str | None
    ) -> list[Sample]:
        """The `params.n` samples of one prompt.

        Raises WireValueError for what SGLang refuses with 400, AbortStatusError for an abort with another
        status, InsteadError when a misbehaviour answers, ConnectionDroppedError for a negative id, which
        kills SGLang.
        """
        if not prompt_ids:
            raise WireValueError("input_ids cannot be empty.")
        window = fit(prompt_ids, params.max_new_tokens, self.settings)
        params.verify(self.vocab_size, self.version)
        if any(token_id < 0 for token_id in prompt_ids):
            raise ConnectionDroppedError
        rule = self.policy.rule_for(window.seen)
        told = rule.misbehave if rule is not None else None
        if exchange.misbehaviour is None and told is not None and self._spend(told, exchange.record.path):
            exchange.misbehaviour = told
        wrong = exchange.misbehaviour
        if wrong is not None and wrong.answers_instead:
            await self.scheduler.hold(wrong)
            raise InsteadError(wrong)
        job = Job(
            rid=rid or uuid.uuid4().hex,
            window=window,
            params=params,
            rule=rule,
            misbehaviour=wrong,
            disconnected=exchange.disconnected,
        )
        jobs = [job, *(replace(job, rid=uuid.uuid4().hex, choice=n) for n in range(1, params.n))]
        samples = await asyncio.gather(*(self.scheduler.run(job) for job in jobs))
        for sample in samples:
            self._raise_for_abort(sample)
        return samples

    def _raise_for_abort(self, sample: Sample) -> None:
        status = sample.finish_reason.get("status_code")
        if not isinstance(status, int) or not 400 <= status < 600:
            return
        message = str(sample.finish_reason["message"])
        if status == 400:
            raise WireValueError(message)
        if self.version.every_abort_status or status in _OLD_ABORT_STATUSES:
            raise AbortStatusError(message, status)


def _stop_ids(state: EngineState) -> list[int]:
    """The model's end-of-turn ids: the configured ones, and the end of a document, as in Qwen3's generation_config."""
    document = state.tokenizer.backend.token_to_id(END_OF_DOCUMENT)
    return [*state.settings.eos_token_ids, *([] if document is None else [document])]


def _load_tokenizer(settings: EngineSettings) -> EngineTokenizer:
    if settings.tokenizer_folder is None:
        return builtin_tokenizer()
    return folder_tokenizer(settings.tokenizer_folder)


def _load_template(settings: EngineSettings) -> ChatTemplate:
    if settings.chat_template_path is not None:
        return ChatTemplate(settings.chat_template_path.read_text(encoding="utf-8"))
    if settings.tokenizer_folder is not None:
        found = ChatTemplate.from_folder(settings.tokenizer_folder)
        if found is not None:
            return found
    return ChatTemplate(BUILTIN_TEMPLATE)
