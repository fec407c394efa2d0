"""`VLLMModel`: a Responses and Chat API model server in front of an OpenAI-style chat completions endpoint.

One request: `responses` converts to chat, `chat_completions` prepares the outgoing body, calls the engine, reads
its first choice and validates what goes back. Each step is a method that a subclass may replace; `SGLangModel`
replaces two. The steps themselves are pure functions in the modules beside this one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from typing import ClassVar, TypeVar

import orjson
from fastapi import Request
from pydantic import ConfigDict, PrivateAttr

from nemo_gym.base_responses_api_model import SimpleResponsesAPIModel
from nemo_gym.errors import (
    ContextOverflowError,
    GenerationAbortedError,
    UpstreamContractError,
    UpstreamError,
    UpstreamStatusError,
    UpstreamUnavailableError,
)
from nemo_gym.grown_list import new_elements
from nemo_gym.http_pool import HTTPPool
from nemo_gym.loop_time import off_the_loop_if_long
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.responses_converter import ResponsesConverter
from nemo_gym.server_utils import SESSION_ID_KEY, is_nemo_gym_fastapi_entrypoint
from nemo_gym.token_metadata import TOKEN_FIELDS, TokenIds
from vllm_model import chat_body
from vllm_model.audio import AUDIO_KEYS, move_audio_into_messages
from vllm_model.chat_body import Body, fields_set
from vllm_model.completions import empty_completion, read_token_ids_of_logprobs, read_tokenized_prompt
from vllm_model.config import VLLMModelConfig
from vllm_model.engine_answer import (
    check_usage,
    choices_of,
    message_of,
    read_as_engine_answer,
    read_token_ids,
    validated,
)
from vllm_model.length_refusal import VLLM_PATTERNS, read_length_refusal
from vllm_model.reasoning_fields import with_reasoning_fields, wrap_choice_reasoning
from vllm_model.replicas import Replicas

__all__ = ["VLLMModel", "VLLMModelConfig"]

T = TypeVar("T")

MAX_BUDGET_CUTS = 2
"""SGLang may first name the most it allows at all, and only when asked again what this prompt leaves."""

TOKENIZE_FIELDS = ("model", "messages", "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort")
"""The parts of a chat body that its prompt is made of."""


class VLLMModel(SimpleResponsesAPIModel):
    """Keeps no state of a conversation: only connections, and which replicas are down."""

    model_config = ConfigDict(arbitrary_types_allowed=True, hide_input_in_errors=True)

    length_patterns: ClassVar[Sequence[re.Pattern[str]]] = VLLM_PATTERNS
    """The sentences by which this engine refuses a request for its length."""

    config: VLLMModelConfig
    http_pool: HTTPPool | None = None
    """The connections to the engine. Made from `config.http_client` when not given; one per process."""

    _warned_of_reasoning: bool = PrivateAttr(default=False)

    def model_post_init(self, context: object, /) -> None:
        super().model_post_init(context)
        self._post_init()

    def _post_init(self) -> None:
        """Make what the server needs. The place for a subclass's own state."""
        self.http_pool = self.http_pool or HTTPPool(self.config.http_client, observer=self.metrics)
        _ = self._clients, self._converter

    # Not private attributes of pydantic's, which takes 2 µs each time to find one.
    @cached_property
    def _clients(self) -> list[NeMoGymAsyncOpenAI]:
        return [
            NeMoGymAsyncOpenAI(
                base_url=url,
                api_key=self.config.api_key,
                default_headers=self.config.default_headers,
                http_pool=self.http_pool,
                name=self.config.name,
                decode=self._decode_answer,
            )
            for url in self.config.base_url
        ]

    @cached_property
    def _replicas(self) -> Replicas:
        return Replicas()

    @cached_property
    def _converter(self) -> ResponsesConverter:
        return self.get_converter()

    def _decode_answer(self, raw: bytes) -> object:
        """The JSON of an engine's answer, without its id arrays. Raises ValueError for what is none."""
        return orjson.loads(raw)

    def get_converter(self) -> ResponsesConverter:
        return ResponsesConverter(
            return_token_id_information=self.config.return_token_id_information,
            uses_reasoning_parser=self.config.uses_reasoning_parser,
        )

    async def on_shutdown(self) -> None:
        await super().on_shutdown()
        if self.http_pool is not None:
            await self.http_pool.aclose()

    async def check_engine(self) -> None:
        """Well when one replica is; those that are get their sessions back. Raises UpstreamUnavailableError."""
        reasons = await asyncio.gather(*(_why_unwell(client) for client in self._clients))
        for index, reason in enumerate(reasons):
            if reason is None:
                self._replicas.mark_up(index)
        if None not in reasons:
            raise UpstreamUnavailableError(f"{self.config.name}: no engine is well; {reasons[-1]}")

    async def responses(  # type: ignore[override]  # the base passes the request to whoever asks for it
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        if self.config.is_responses_native:
            return await self._responses_native(request, body)
        params = await off_the_loop_if_long(
            len(new_elements(body.input if isinstance(body.input, list) else ())),
            self._converter.responses_to_chat_completion_create_params,
            body,
        )
        completion = await self.chat_completions(request, params)
        with read_as_engine_answer(self.config.name):
            response = self._converter.chat_completion_to_response(body, completion)
        response.model = self.config.model
        return self._finished_response(response, completion)

    async def chat_completions(  # type: ignore[override]
        self, request: Request, body: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymChatCompletion:
        body_dict = await self._preprocessed(request, fields_set(body))
        if not self.config.sequential_reasoning_allowed and _ends_in_empty_assistant_turn(body_dict):
            return empty_completion(self.config.model, "content_filter")
        try:
            completion = await self._with_failover(
                request, lambda client: self._chat_turn(request, body_dict, client)
            )
        except GenerationAbortedError:
            self.metrics.count("generation_aborted")
            raise
        if completion.usage is not None:
            usage = completion.usage
            self.metrics.count_tokens(prompt=usage.prompt_tokens, generated=usage.completion_tokens)
        return completion

    async def _responses_native(
        self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        """Forward to the engine's own Responses API; configured fields stand under the request's."""
        outgoing: Body = body.model_dump(exclude_unset=True)
        outgoing["model"] = self.config.model
        outgoing = chat_body.with_extra_body(
            chat_body.with_chat_template_kwargs(outgoing, self.config.chat_template_kwargs),
            self.config.extra_body,
        )
        answer = await self._with_failover(request, lambda client: client.create_response(**outgoing))
        return validated(NeMoGymResponse, answer, self.config.name)

    async def _preprocessed(self, request: Request, body_dict: Body) -> Body:
        """The outgoing body; in a thread when files must be read for it or there is much of it, because the loop serves
        every session.
        """
        step = self._preprocess_chat_completion_create_params
        metadata = body_dict.get("metadata")
        if isinstance(metadata, dict) and any(metadata.get(key) for key in AUDIO_KEYS):
            return await asyncio.to_thread(step, request, body_dict)
        return await off_the_loop_if_long(
            len(new_elements(chat_body.messages_of(body_dict))), step, request, body_dict
        )

    def _preprocess_chat_completion_create_params(self, request: Request, body_dict: Body) -> Body:  # noqa: ARG002
        """The body for the engine, made of the caller's. The order is NeMo Gym's; see docs/pull_request_map.md."""
        config = self.config
        body = {**body_dict, "model": config.model}
        if config.replace_developer_role_with_system:
            body = chat_body.with_system_for_developer(body)
        body = chat_body.without_empty_tool_calls(body)
        body = chat_body.with_chat_template_kwargs(body, config.chat_template_kwargs)
        if config.uses_reasoning_parser:
            body = with_reasoning_fields(body, keep=config.uses_interleaved_reasoning)
        body = chat_body.with_extra_body(body, config.extra_body)
        if config.return_token_id_information:
            chat_body.require_one_choice(body)
            body = chat_body.with_token_id_request(body)
        else:
            body = chat_body.without_null(body, "top_logprobs")
        body = chat_body.without_idle_tool_choice(body)
        return move_audio_into_messages(body, config.audio_root)

    def _resolve_client(self, request: Request) -> NeMoGymAsyncOpenAI:
        """The client of the replica that serves this session, the same in every worker while that replica is up."""
        session_id = str(request.session[SESSION_ID_KEY])
        return self._clients[self._replicas.ranking(session_id, len(self._clients))[0]]

    async def _with_failover(self, request: Request, call: Callable[[NeMoGymAsyncOpenAI], Awaitable[T]]) -> T:
        """Call the session's replica, and another one when it cannot be reached.

        A replica that answers, even with 503, is up: its sessions stay, and their cached prefixes with them.
        """
        client = self._resolve_client(request)
        tried = [client]
        while True:
            try:
                return await call(client)
            except UpstreamUnavailableError as error:
                if not error.unreachable:
                    raise
                self.metrics.count("replica_down")
                self._replicas.mark_down(self._clients.index(client))
                client = self._resolve_client(request)
                if client in tried:
                    raise
                tried.append(client)

    async def _chat_turn(
        self,
        request: Request,  # noqa: ARG002 - for subclasses that keep something per session
        body_dict: Body,
        client: NeMoGymAsyncOpenAI,
    ) -> NeMoGymChatCompletion:
        """One call of the engine and what is made of its answer."""
        try:
            completion = await self._create_chat_completion(body_dict, client)
        except ContextOverflowError:
            self.metrics.count("context_overflow")
            if self.config.on_context_overflow == "error":
                raise
            return await self._length_finish(body_dict, client)
        choices = choices_of(completion, self.config.name)
        check_usage(completion, self.config.name)
        for choice in choices:
            self._refuse_unusable(choice)
            self._tidy_choice(choice)
            wrap_choice_reasoning(
                message_of(choice),
                uses_reasoning_parser=self.config.uses_reasoning_parser,
                server=self.config.name,
            )
            self._notice_unparsed_reasoning(choice)
        first = message_of(choices[0])
        if self.config.return_token_id_information and any(
            first.get(field) is None for field in TOKEN_FIELDS
        ):
            await self._attach_token_id_information(choices[0], body_dict, client)
        else:
            read_token_ids(first, self.config.name)
        return validated(NeMoGymChatCompletion, completion, self.config.name)

    async def _create_chat_completion(self, body_dict: Body, client: NeMoGymAsyncOpenAI) -> Body:
        """Ask the engine, with a smaller budget when it says that the budget, not the prompt, is too large.

        Raises ContextOverflowError when the prompt does not fit, UpstreamError for the rest.
        """
        body = body_dict
        for cuts_left in range(MAX_BUDGET_CUTS, -1, -1):
            try:
                return await client.create_chat_completion(**body)
            except UpstreamStatusError as error:
                refusal = read_length_refusal(error, self.length_patterns)
                if refusal is None:
                    raise
                if refusal.allowed_new_tokens is None:
                    raise ContextOverflowError(
                        error.message, response_content=error.response_content
                    ) from error
                if cuts_left == 0:
                    raise
                body = chat_body.with_budget(body, refusal.allowed_new_tokens)
        raise UpstreamContractError(f"{self.config.name}: the engine refuses every number of new tokens")

    async def _length_finish(self, body_dict: Body, client: NeMoGymAsyncOpenAI) -> NeMoGymChatCompletion:
        """The turn that ends because its prompt does not fit: nothing sampled, nothing cut, the prompt's ids kept."""
        if not self.config.return_token_id_information:
            return empty_completion(self.config.model, "length")
        return empty_completion(self.config.model, "length", await self._tokenized_prompt(body_dict, client))

    async def _attach_token_id_information(
        self, choice_dict: Body, body_dict: Body, client: NeMoGymAsyncOpenAI
    ) -> None:
        """Put the token triple into `choice_dict["message"]` and take the raw material out of the choice.

        The step that differs between engines; a subclass replaces it. Raises UpstreamContractError, a RuntimeError.
        """
        generation_token_ids, generation_log_probs = read_token_ids_of_logprobs(choice_dict, self.config.name)
        message_of(choice_dict).update(
            prompt_token_ids=await self._tokenized_prompt(body_dict, client),
            generation_token_ids=generation_token_ids,
            generation_log_probs=generation_log_probs,
        )
        choice_dict.pop("logprobs", None)

    async def _tokenized_prompt(self, body_dict: Body, client: NeMoGymAsyncOpenAI) -> TokenIds:
        """The prompt's ids as the engine makes them of the messages."""
        asked = {field: body_dict[field] for field in TOKENIZE_FIELDS if field in body_dict}
        return read_tokenized_prompt(await client.create_tokenize(**asked), self.config.name)

    def _notice_unparsed_reasoning(self, choice_dict: Body) -> None:
        """Thinking that a template opened in the prompt ends with a closer that has no opener, if nobody parsed it."""
        content = message_of(choice_dict).get("content")
        if not self.config.uses_reasoning_parser or not isinstance(content, str):
            return
        before, closer, _ = content.partition("</think>")
        if closer and "<think>" not in before:
            self.metrics.count("reasoning_not_parsed")
            if not self._warned_of_reasoning:
                self._warned_of_reasoning = True
                logging.getLogger(self.config.name).warning(
                    "an answer has its thinking in the text, closed by </think>: was the engine started with a "
                    "reasoning parser? Counted as reasoning_not_parsed from here on"
                )

    def _finished_response(
        self,
        response: NeMoGymResponse,
        completion: NeMoGymChatCompletion,  # noqa: ARG002
    ) -> NeMoGymResponse:
        """The place for what a subclass's completions carry besides OpenAI's fields."""
        return response

    def _refuse_unusable(self, choice_dict: Body) -> None:
        """Raise when the engine says that this choice is no finished generation, with or without token ids."""
        if choice_dict.get("finish_reason") == "abort":
            raise GenerationAbortedError(
                f"{self.config.name}: the engine ended this generation with finish_reason abort. A partial turn is "
                "never passed on as a complete one; repeat the request"
            )

    def _tidy_choice(self, choice_dict: Body) -> None:
        """Bring what differs between engine versions into one form, in place."""


async def _why_unwell(client: NeMoGymAsyncOpenAI) -> str | None:
    try:
        await client.get_health()
    except UpstreamError as error:
        return error.message
    return None


def _ends_in_empty_assistant_turn(body: Body) -> bool:
    last = chat_body.messages_of(body)[-1]
    return last.get("role") == "assistant" and not last.get("content") and not last.get("tool_calls")


if __name__ == "__main__":
    VLLMModel.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = VLLMModel.run_webserver()
