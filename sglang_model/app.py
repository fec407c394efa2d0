"""`SGLangModel`: a `VLLMModel` whose turns carry exactly the ids that SGLang saw and sampled.

Both transports are the inherited flow with steps replaced. `transport: chat` replaces what is asked for and how the
token triple is read; `transport: generate` replaces the call itself. Around the flow stands the history: a plan in
front (with which ids the prompt begins), a commit behind.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, cast

from fastapi import Request
from pydantic import BaseModel

from nemo_gym.errors import ConfigError, UpstreamError
from nemo_gym.grown_list import new_elements
from nemo_gym.loop_time import give_way
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.openai_utils import NeMoGymChatCompletion, NeMoGymResponse
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.server_utils import SESSION_ID_KEY, is_nemo_gym_fastapi_entrypoint
from nemo_gym.token_metadata import TokenIds
from sglang_model import chat_request
from sglang_model.chat_answer import decode_chat_answer
from sglang_model.config import SGLangModelConfig
from sglang_model.generate_answer import decode_generate_answer
from sglang_model.generate_transport import GenerateTransport
from sglang_model.history import NOT_ONLY_TEXT, History, PromptPlan
from sglang_model.history_report import history_field, report_history
from sglang_model.json_size import exceeds
from sglang_model.length_refusals import SGLANG_PATTERNS
from sglang_model.message_forms import check_template_kwargs
from sglang_model.preflight import check_engine_settings
from sglang_model.renderers import Renderers
from sglang_model.rendering import Renderer, check_vocabulary
from sglang_model.sessions import InMemorySessionStore
from sglang_model.turn_commit import doubtful_stop, finished_turn, without_token_ids
from sglang_model.wire import read_chat_turn, refuse_unusable_finish
from vllm_model.app import VLLMModel
from vllm_model.chat_body import Body, Message, messages_of, require_one_choice
from vllm_model.engine_answer import message_of

__all__ = ["SGLangModel", "SGLangModelConfig"]

PREFLIGHT_SECONDS = 5.0

IDS_ON_THE_LOOP = 16_384
MESSAGES_ON_THE_LOOP = 300
CHARACTERS_ON_THE_LOOP = 65_536
"""Longer conversations are digested in a thread: 0.7 ms for 100k tokens, most of it without the GIL, where the thread
itself costs 0.1 ms; and the rollouts of a batch arrive at the same moment, one behind the other on the loop."""


class SGLangModel(VLLMModel):
    length_patterns: ClassVar[Sequence[re.Pattern[str]]] = SGLANG_PATTERNS
    shares_items: ClassVar[bool] = True

    config: SGLangModelConfig

    def _post_init(self) -> None:
        super()._post_init()
        _ = self._renderers, self._history, self._generate
        self._watch_what_is_kept()
        if self.config.ignored_settings:
            logging.getLogger(self.config.name).warning(
                "nothing reads %s with this transport and history", ", ".join(self.config.ignored_settings)
            )

    def _watch_what_is_kept(self) -> None:
        self.metrics.watch("session_tokens", "Token ids remembered", lambda: self._store.size().tokens)
        self.metrics.watch("sessions", "Sessions remembered", lambda: self._store.size().sessions)
        self.metrics.watch("request_items", "Items of requests remembered", lambda: self.request_memo.items)
        self.metrics.watch(
            "session_text_bytes",
            "Latest turns that are at hand unpacked",
            lambda: self._store.recent_text_bytes,
        )
        if self._renderers.local is not None:
            prompts = self._renderers.local.prompts
            cache = prompts.cache
            self.metrics.watch("segment_cache_bytes", "Texts whose ids are kept", lambda: cache.bytes)
            self.metrics.watch("segment_cache_hits", "Pieces of prompts that were known", lambda: cache.hits)
            self.metrics.watch("segment_cache_misses", "Pieces that were encoded", lambda: cache.misses)
            self.metrics.watch(
                "segments_shared", "Pieces that another request was encoding", lambda: prompts.flights.shared
            )

    def get_converter(self) -> ResponsesConverter:
        # The prompt is made of what was sampled here, never of the ids that come back.
        return super().get_converter().model_copy(update={"forwards_token_ids": False})

    @cached_property
    def _renderers(self) -> Renderers:
        return Renderers(self.config)

    @cached_property
    def _store(self) -> InMemorySessionStore:
        return InMemorySessionStore(
            max_tokens=self.config.session_max_tokens,
            max_sessions=self.config.session_max_sessions,
            max_age_seconds=self.config.session_max_age_seconds,
            on_evict=lambda reason, _turns, _tokens: self.metrics.count(f"session_evicted_{reason.value}"),
        )

    @cached_property
    def _history(self) -> History:
        return History(
            self._store,
            pins=self._renderers.pins,
            forms=self._renderers.forms,
            splices=self.config.splices_history,
        )

    @cached_property
    def _generate(self) -> GenerateTransport:
        return GenerateTransport(self.config, self._renderers)

    def _decode_answer(self, raw: bytes) -> object:
        if self.config.transport == "generate":
            return decode_generate_answer(raw)
        with_ids = self.config.return_token_id_information
        return decode_chat_answer(raw) if with_ids else super()._decode_answer(raw)

    async def on_startup(self) -> None:
        """Look at the engines that are up already. Raises ConfigError for one whose every turn would fail or lie."""
        await super().on_startup()
        log = logging.getLogger(self.config.name)
        for client in self._clients:
            try:
                info = await client.get_server_info(timeout=PREFLIGHT_SECONDS, max_attempts=1)
            except UpstreamError as error:
                log.info(
                    "the engine's settings cannot be read yet, its answers are checked all the same: %s",
                    error.message,
                )
                continue
            found = check_engine_settings(
                info,
                needs_chat_ids=self.config.transport == "chat" and self.config.return_token_id_information,
                parses_on_engine=self.config.transport == "chat",
                uses_reasoning_parser=self.config.uses_reasoning_parser,
            )
            for warning in found.warnings:
                log.warning("the engine at %s: %s", client.root, warning)
            if found.refusals:
                raise ConfigError(f"the engine at {client.root} cannot be used: {'; '.join(found.refusals)}")

    async def on_shutdown(self) -> None:
        await super().on_shutdown()
        self._renderers.close()

    def _preprocess_chat_completion_create_params(self, request: Request, body_dict: Body) -> Body:
        # First of all, so that no later step sees ids: what follows is the same for the same words.
        body = chat_request.without_carried_token_ids(body_dict)
        body = super()._preprocess_chat_completion_create_params(request, body)
        body = chat_request.without_nulls(body)
        body = chat_request.with_refusals_as_text(body)
        check_template_kwargs(chat_request.rendering_kwargs(body))
        if self.config.transport == "generate":
            require_one_choice(body)
            with_ids = self.config.return_token_id_information
            return chat_request.without_vllm_token_id_request(body) if with_ids else body
        if self.config.return_token_id_information:
            body = chat_request.with_sglang_token_id_request(body)
        return body

    async def _chat_turn(
        self, request: Request, body_dict: Body, client: NeMoGymAsyncOpenAI
    ) -> NeMoGymChatCompletion:
        """A turn between its plan and its commit. Nothing is held while the engine works."""
        renderer = await self._renderers.of(client)
        plan = await self._plan(request, body_dict, renderer)
        report_history(request, plan, self.metrics)
        self._history.refuse_broken(plan, error=self.config.on_broken_prefix == "error")
        body = body_dict
        if plan.token_ids is not None:
            await give_way(len(plan.token_ids.text))
            body = {**body_dict, "input_ids": plan.token_ids}
        elif self.config.transport == "generate":
            rendered = await self._history.render_whole(plan.conversation, renderer)
            body = {**body_dict, "input_ids": rendered}
        completion = await super()._chat_turn(request, body, client)
        if isinstance(prompt := body.get("input_ids"), TokenIds):
            await give_way(len(prompt.text))
        await self._remember(plan, completion, body, renderer)
        self._annotate(completion, plan)
        return completion

    async def _plan(self, request: Request, body: Body, renderer: Renderer) -> PromptPlan:
        messages = messages_of(body)
        inputs = (
            str(request.session[SESSION_ID_KEY]),
            messages,
            chat_request.rendered_tools(body),
            chat_request.rendering_kwargs(body),
        )
        if self._history.splices and _is_long(new_elements(messages)):
            conversation = await asyncio.to_thread(self._history.conversation, *inputs)
        else:
            conversation = self._history.conversation(*inputs)
        if self.config.transport == "chat" and not chat_request.is_only_text(messages):
            return self._history.unspliced(conversation, NOT_ONLY_TEXT)
        return await self._history.plan(conversation, renderer)

    async def _remember(
        self, plan: PromptPlan, completion: NeMoGymChatCompletion, body: Body, renderer: Renderer
    ) -> None:
        """Commit the turn, so that the next one can begin with its ids."""
        if not self._history.splices:
            return
        stops = renderer.stop_token_ids
        doubtful = doubtful_stop(completion, body)
        if doubtful is not None and doubtful not in stops:
            stops |= await renderer.special([doubtful])
        turn = finished_turn(completion, body, stops, uses_reasoning_parser=self.config.uses_reasoning_parser)
        if turn is None:
            return
        if turn.stop_token_id is not None and turn.stop_token_id not in chat_request.requested_stop_ids(body):
            await self._renderers.learn_stop(renderer, turn.stop_token_id)
        outcome = self._history.commit(plan, turn)
        self.metrics.count(f"history_commit_{outcome.value}")

    def _annotate(self, completion: NeMoGymChatCompletion, plan: PromptPlan) -> None:
        choice = completion.choices[0]
        extra = _extra_of(choice)
        extra["sglang"] = {**cast("Mapping[str, object]", extra.get("sglang") or {}), **history_field(plan)}
        if not self.config.return_token_id_information:
            choice.message = without_token_ids(choice.message)

    def _finished_response(
        self, response: NeMoGymResponse, completion: NeMoGymChatCompletion
    ) -> NeMoGymResponse:
        _extra_of(response)["sglang"] = _extra_of(completion.choices[0]).get("sglang")
        return response

    async def _create_chat_completion(self, body_dict: Body, client: NeMoGymAsyncOpenAI) -> Body:
        if self.config.transport == "chat":
            return await super()._create_chat_completion(body_dict, client)
        return await self._generate.completion(body_dict, client, await self._renderers.of(client))

    async def _tokenized_prompt(self, body_dict: Body, client: NeMoGymAsyncOpenAI) -> TokenIds:
        sent = body_dict.get("input_ids")
        return sent if isinstance(sent, TokenIds) else await super()._tokenized_prompt(body_dict, client)

    async def _attach_token_id_information(
        self,
        choice_dict: Body,
        body_dict: Body,
        client: NeMoGymAsyncOpenAI,  # noqa: ARG002 - everything is in the choice; no /tokenize round trip
    ) -> None:
        """Put the token triple of SGLang's own fields into the message, and take those fields out of the choice."""
        sent_ids = cast("TokenIds | None", body_dict.get("input_ids"))
        turn = read_chat_turn(choice_dict, self.config.name, sent_ids=sent_ids)
        if self._history.splices:
            await self._check_vocabulary(turn.generation_token_ids)
            if sent_ids is None:
                await self._check_vocabulary(turn.prompt_token_ids)
        message = message_of(choice_dict)
        message.update(
            prompt_token_ids=turn.prompt_token_ids,
            generation_token_ids=turn.generation_token_ids,
            generation_log_probs=turn.generation_log_probs,
        )
        if turn.routed_experts is not None:
            message["routed_experts"] = turn.routed_experts
        for field in chat_request.ANSWER_FIELDS:
            choice_dict.pop(field, None)

    async def _check_vocabulary(self, token_ids: TokenIds) -> None:
        """What is kept will be sent as ids, of which SGLang checks none. Known only with a tokenizer here."""
        local = self._renderers.local
        if local is None:
            return
        size, who = local.vocabulary_size, "the engine answered with"
        if len(token_ids) > IDS_ON_THE_LOOP:
            await asyncio.to_thread(lambda: check_vocabulary(token_ids.tolist(), size, who))
        else:
            check_vocabulary(token_ids.tolist(), size, who)

    def _refuse_unusable(self, choice_dict: Body) -> None:
        refuse_unusable_finish(choice_dict, self.config.name)

    def _tidy_choice(self, choice_dict: Body) -> None:
        if self.config.transport == "chat":
            chat_request.without_forged_token_ids(choice_dict)
        chat_request.tidy_tool_calls(choice_dict)


def _extra_of(model: BaseModel) -> dict[str, object]:
    """The fields that one of openai's models does not declare; pydantic takes 5 µs to set one as an attribute."""
    return cast("dict[str, object]", model.model_extra)


def _is_long(messages: Sequence[Message]) -> bool:
    parts = (message.get(name) for message in messages for name in ("content", "tool_calls"))
    return len(messages) > MESSAGES_ON_THE_LOOP or exceeds(parts, CHARACTERS_ON_THE_LOOP)


if __name__ == "__main__":
    SGLangModel.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = SGLangModel.run_webserver()
