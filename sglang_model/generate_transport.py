"""`transport: generate`: from a body with prompt ids to a chat completion, through SGLang's `/generate`.

Guards the window before and after the call, maps the sampling controls, and parses reasoning and tool calls, here or
with the engine's own parsers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import cast

from nemo_gym.errors import ContextOverflowError
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from nemo_gym.token_metadata import TokenIds
from sglang_model.chat_request import hides_special_tokens
from sglang_model.config import SERVER_TOOL_FORMAT, SGLangModelConfig
from sglang_model.generate_turn import GeneratedTurn, call_generate, completion_of, parse_report
from sglang_model.generation_parser import ParsedGeneration, parse_generation, visible_text
from sglang_model.reasoning_split import THINK, thinking_is_open
from sglang_model.renderers import Renderers
from sglang_model.rendering import Renderer, check_vocabulary
from sglang_model.sampling_params import engine_fields, sampling_params, unhonoured_fields
from sglang_model.server_parsers import ServerParsers

PROMPT_TAIL = 16
"""Ids of the prompt's end that are decoded to see whether the template opened a thinking block."""

TEXT_ON_THE_LOOP = 4_096
"""Characters of an answer up to which it is parsed on the event loop. A sampler that is stuck opens tool calls until
its budget ends, and each of those characters takes 1.3 µs, a hundred times as long as others."""

MAX_WARNINGS = 100
"""Names that are warned about: callers choose some of them."""

SUFFIX_TAIL = 4
"""Ids of the generation's end among which an end token is looked for when none ended it."""


class GenerateTransport:
    """Remembers only which unsupported parameters it has warned about, and the engine's parser names."""

    def __init__(self, config: SGLangModelConfig, renderers: Renderers) -> None:
        self._config = config
        self._renderers = renderers
        self._parsers = ServerParsers(config.name)
        self._warned: set[str] = set()
        self._log = logging.getLogger(config.name)

    async def completion(
        self, body: Mapping[str, object], client: NeMoGymAsyncOpenAI, renderer: Renderer
    ) -> dict[str, object]:
        """One turn. Raises ContextOverflowError when the prompt does not fit, RequestError, UpstreamError."""
        prompt = cast("TokenIds", body["input_ids"])
        context_length = cast("int", self._config.context_length)
        if len(prompt) >= context_length:
            raise ContextOverflowError(
                f"{self._config.name}: the prompt has {len(prompt)} tokens and context_length is {context_length}"
            )
        params = sampling_params(body, prompt_length=len(prompt), context_length=context_length)
        self._warn_of(unhonoured_fields(body))
        turn = await call_generate(client, prompt, params, self._config.name, engine_fields(body))
        generated = turn.sampled.generation_token_ids.tolist()
        check_vocabulary(generated, renderer.vocabulary_size, "the engine sampled")
        parsed = await self._parsed(turn, generated, body, client, renderer)
        completion = completion_of(turn, parsed, model=self._config.model)
        if parsed.report:
            choice = cast("list[dict[str, object]]", completion["choices"])[0]
            choice["sglang"] = {"tool_call_report": parse_report(parsed)}
        return completion

    async def _parsed(
        self,
        turn: GeneratedTurn,
        generated: list[int],
        body: Mapping[str, object],
        client: NeMoGymAsyncOpenAI,
        renderer: Renderer,
    ) -> ParsedGeneration:
        if hides_special_tokens(body):
            generated = await _without_special(generated, renderer)
        text = await renderer.decode(generated)
        if not (body.get("no_stop_trim") and body.get("skip_special_tokens") is False):
            matched = None if body.get("no_stop_trim") else turn.finish.matched
            text = visible_text(text, await self._end_markers(turn, renderer), matched)
        tail = await renderer.decode(turn.sampled.prompt_token_ids.last(PROMPT_TAIL))
        thinking_open = thinking_is_open(tail)
        if self._config.sglang_tool_format == SERVER_TOOL_FORMAT:
            return await self._parsers.parse(
                client,
                text,
                thinking_open=thinking_open,
                tools=cast("list[object] | None", body.get("tools")),
                tool_choice=body.get("tool_choice"),
                separate_reasoning=self._config.uses_reasoning_parser,
            )
        parse = partial(
            parse_generation,
            text,
            format_name=self._config.sglang_tool_format,
            tools=cast("list[object] | None", body.get("tools")),
            tool_choice=body.get("tool_choice") if body.get("tools") else "none",
            parallel_tool_calls=body.get("parallel_tool_calls") is not False,
            thinking_open=thinking_open,
            separate_reasoning=self._config.uses_reasoning_parser,
            finished=turn.finish.kind != "length",
        )
        return parse() if len(text) <= TEXT_ON_THE_LOOP else await asyncio.to_thread(parse)

    async def _end_markers(self, turn: GeneratedTurn, renderer: Renderer) -> list[str]:
        """The texts that end turns, with those at this turn's end: the budget may run out just behind one."""
        if isinstance(turn.finish.matched, int):
            ends = {turn.finish.matched}
        else:
            ends = set(await renderer.special(turn.sampled.generation_token_ids.last(SUFFIX_TAIL)))
        own = [await renderer.decode([token_id]) for token_id in sorted(ends)]
        return [*self._renderers.markers(renderer), *own]

    def _warn_of(self, names: list[str]) -> None:
        """Once per name: a rollout sends the same parameters thousands of times."""
        new = [name for name in names if name not in self._warned]
        if new and len(self._warned) < MAX_WARNINGS:
            self._warned.update(new)
            self._log.warning("/generate cannot honour %s; ignored from here on", ", ".join(new))


async def _without_special(token_ids: list[int], renderer: Renderer) -> list[int]:
    """The ids that are text. The tags of thinking are read from it, so they stay even where they are special tokens."""
    hidden = set(await renderer.special(token_ids))
    for token_id in sorted(hidden):
        if await renderer.decode([token_id]) in (THINK.opening, THINK.closing):
            hidden.remove(token_id)
    if not hidden:
        return token_ids
    return [token_id for token_id in token_ids if token_id not in hidden]
