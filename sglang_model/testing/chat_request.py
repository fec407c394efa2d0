"""The body of `/v1/chat/completions` as SGLang reads it: known fields typed, others dropped."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, PrivateAttr, field_validator, model_validator

from sglang_model.testing.sampling import SamplingParams
from sglang_model.testing.versions import WireVersion

_ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "user")
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]
_OPENAI_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


class _Lenient(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")


class CalledFunction(_Lenient):
    name: str | None = None
    arguments: str | dict[str, JsonValue] | None = None


class MessageToolCall(_Lenient):
    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(_Lenient):
    """A message of the history. What is not named here never reaches the template."""

    role: str
    content: str | list[dict[str, JsonValue]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MessageToolCall] | None = None

    @field_validator("role", mode="before")
    @classmethod
    def _known_role(cls, value: object) -> object:
        role = value.lower() if isinstance(value, str) else None
        if role not in _ROLES:
            allowed = ", ".join(repr(role) for role in _ROLES[:-1])
            raise ValueError(f"'role' must be one of {allowed} (case-insensitive).")
        return role

    @model_validator(mode="after")
    def _user_says_something(self) -> Message:
        if self.role == "user" and self.content is None:
            raise ValueError("a user message needs `content`")
        return self


class OfferedFunction(_Lenient):
    name: str
    description: str | None = None
    parameters: JsonValue = None
    strict: bool | None = None


class Tool(_Lenient):
    type: str = "function"
    function: OfferedFunction
    defer_loading: bool | None = None


class NamedFunction(_Lenient):
    name: str | None = None


class ToolChoice(_Lenient):
    function: NamedFunction
    type: Literal["function"] = "function"


class ResponseFormat(_Lenient):
    type: str
    json_schema: dict[str, JsonValue] | None = None


class ChatRequest(_Lenient):
    """Field names and types are SGLang 0.5.23's; `read` first drops what an older version does not know."""

    messages: list[Message]
    model: str = "default"
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, float] | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int = 1
    response_format: ResponseFormat | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    stream: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int = 0
    repetition_penalty: float | None = None
    regex: str | None = None
    ebnf: str | None = None
    no_stop_trim: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | Literal["auto", "required", "none"] = "auto"
    continue_final_message: bool = False
    separate_reasoning: bool = True
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    return_prompt_token_ids: bool = False
    return_meta_info: bool = False
    return_token_ids: bool = False
    return_input_ids_in_sglext: bool = False
    return_output_ids_in_sglext: bool = False
    return_hidden_states: bool = False
    lora_path: str | list[str | None] | None = None
    input_ids: list[int] | None = None
    rid: str | list[str] | None = None
    _raw_tools: list[dict[str, JsonValue]] = PrivateAttr(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if data.get("tool_choice") is None:
            data["tool_choice"] = "none" if data.get("tools") is None else "auto"
        if data.get("reasoning_effort") == "none":
            kwargs = data.get("chat_template_kwargs")
            off = {"thinking": False, "enable_thinking": False}
            data["chat_template_kwargs"] = off | (kwargs if isinstance(kwargs, dict) else {})
        return data

    @classmethod
    def read(cls, body: object, version: WireVersion) -> ChatRequest:
        """Validates what `version` knows of `body`, and keeps the tools as sent, whose key order may count."""
        if isinstance(body, dict):
            body = {key: value for key, value in body.items() if key not in version.unknown_fields}
        request = cls.model_validate(body)
        if isinstance(body, dict):
            request._raw_tools = body.get("tools") or []
        return request

    @property
    def thinking(self) -> object:
        return (self.chat_template_kwargs or {}).get("enable_thinking")

    @property
    def uses_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def adapter(self) -> str | None:
        """The LoRA adapter that `base:adapter` or `lora_path` names."""
        _, _, adapter = self.model.partition(":")
        path = self.lora_path[0] if isinstance(self.lora_path, list) and self.lora_path else self.lora_path
        return adapter or (path if isinstance(path, str) else None)

    def template_messages(self) -> list[dict[str, object]]:
        return [message.model_dump() for message in self.messages]

    def offered_tools(self) -> list[dict[str, object]]:
        """The tools that are rendered: all of them, or the one that tool_choice names."""
        chosen = self.tool_choice.function.name if isinstance(self.tool_choice, ToolChoice) else None
        pairs = zip(self.tools or [], self._raw_tools, strict=True)
        return [dict(raw) for tool, raw in pairs if chosen is None or tool.function.name == chosen]

    def sampling_params(self, generation_config: dict[str, float]) -> SamplingParams:
        """Unset fields come from the model's generation_config, which `/generate` does not look at."""

        def chosen(name: str) -> float:
            value: float | None = getattr(self, name)
            return generation_config.get(name, _OPENAI_DEFAULTS[name]) if value is None else value

        schema = self.response_format.type if self.response_format is not None else ""
        return SamplingParams(
            max_new_tokens=self.max_completion_tokens or self.max_tokens,
            stop=_texts(self.stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            stop_regex=_texts(self.stop_regex),
            temperature=chosen("temperature"),
            top_p=chosen("top_p"),
            top_k=int(chosen("top_k")),
            min_p=chosen("min_p"),
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            repetition_penalty=chosen("repetition_penalty"),
            min_new_tokens=self.min_tokens,
            n=self.n,
            json_schema=schema if schema in ("json_schema", "json_object") else None,
            regex=self.regex,
            ebnf=self.ebnf,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens and not self.uses_tools,
            no_stop_trim=self.no_stop_trim,
            logit_bias=self.logit_bias,
            sampling_seed=self.seed,
        )


def _texts(value: str | list[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
