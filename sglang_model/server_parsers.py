"""The engine's own parsers for a text that `/generate` sampled: /separate_reasoning and /parse_function_call."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from uuid import uuid4

from nemo_gym.errors import UpstreamContractError, UpstreamStatusError
from nemo_gym.openai_client import NeMoGymAsyncOpenAI
from sglang_model.generation_parser import ParsedGeneration
from sglang_model.reasoning_split import THINK, ReasoningTags
from sglang_model.tool_parsers import ToolCall


class ServerParsers:
    """Asks an engine once which parsers it was started with (GET /server_info, SGLang 0.5.12 to 0.5.23)."""

    def __init__(self, server: str) -> None:
        self._log = logging.getLogger(server)
        self._names: dict[NeMoGymAsyncOpenAI, tuple[str | None, str | None]] = {}

    async def parse(
        self,
        client: NeMoGymAsyncOpenAI,
        text: str,
        *,
        thinking_open: bool,
        tools: Sequence[object] | None,
        tool_choice: object,
        separate_reasoning: bool,
    ) -> ParsedGeneration:
        """What the engine's parsers make of the text. Raises UpstreamError.

        They are not told of a thinking that the prompt opened, so the opening tag is given back to the text. Text in
        which the tool parser finds no call stays as it is: SGLang 0.5.23 drops markup that it cannot read.
        """
        tool_parser, reasoning_parser = await self._parsers_of(client)
        reasoning: str | None = None
        if separate_reasoning and reasoning_parser is not None:
            whole = with_opening_tag(text) if thinking_open else text
            answer = await client.separate_reasoning(text=whole, reasoning_parser=reasoning_parser)
            reasoning, text = _text(answer, "reasoning_text") or None, _text(answer, "text")
        calls: tuple[ToolCall, ...] = ()
        if tools and tool_choice != "none" and tool_parser is not None:
            try:
                answer = await client.parse_function_call(
                    text=text, tools=list(tools), tool_call_parser=tool_parser
                )
            except UpstreamStatusError as error:
                # Some parsers of SGLang raise on what a model wrote; its chat takes such a reply for text.
                if error.status not in (400, 500):
                    raise
                self._log.warning(
                    "the engine's tool parser %s failed on a reply, which stays text", tool_parser
                )
            else:
                calls = _calls(answer)
                text = _text(answer, "normal_text") if calls else text
        return ParsedGeneration(reasoning, text, calls, ())

    async def _parsers_of(self, client: NeMoGymAsyncOpenAI) -> tuple[str | None, str | None]:
        if client not in self._names:
            info = await client.get_server_info()
            tool_parser, reasoning_parser = info.get("tool_call_parser"), info.get("reasoning_parser")
            if not isinstance(tool_parser, str):
                self._log.warning(
                    "the engine has no --tool-call-parser: with sglang_tool_format: server calls stay text"
                )
            self._names[client] = (
                tool_parser if isinstance(tool_parser, str) else None,
                reasoning_parser if isinstance(reasoning_parser, str) else None,
            )
        return self._names[client]


def with_opening_tag(text: str, tags: ReasoningTags = THINK) -> str:
    """The text with the tag that the prompt ended with, unless the model wrote its own."""
    return text if text.lstrip().startswith(tags.opening) else f"{tags.opening}{text}"


def _text(answer: Mapping[str, object], name: str) -> str:
    value = answer.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UpstreamContractError(
            f"expected {name} of the engine's parser to be text, got {type(value).__name__}"
        )
    return value


def _calls(answer: Mapping[str, object]) -> tuple[ToolCall, ...]:
    calls = answer.get("calls") or []
    if not isinstance(calls, list):
        raise UpstreamContractError(
            f"expected calls of the engine's parser to be a list, got {type(calls).__name__}"
        )
    return tuple(_call(call) for call in calls)


def _call(call: object) -> ToolCall:
    name, arguments = (
        (call.get("name"), call.get("parameters")) if isinstance(call, Mapping) else (None, None)
    )
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise UpstreamContractError("expected name and parameters of a parsed call to be text")
    return {
        "id": f"call_{uuid4().hex}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
