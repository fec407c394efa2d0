# ruff: noqa: RUF001, S106 (tokens of real models)
"""What is known by hand about public chat templates: their special tokens and how their turns end.

The oracle of the splice report needs this; the algorithm under test gets only what an engine and a
tokenizer tell (special tokens, stop tokens), never the turn ends. Keyed by the beginning of a template's
file name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TemplateFacts:
    """`text_end` and `call_end` are the tokens with which the template ends the two kinds of turns in a
    history.

    `sampled_text_stop` is the stop token a model samples behind text where that is another one (gpt-oss).
    `foreign` is a stop token of the engine that the template does not write at a turn's end.
    """

    specials: tuple[str, ...]
    stops: tuple[str, ...]
    text_end: str
    call_end: str
    foreign: str
    variables: Mapping[str, str] = field(default_factory=dict)
    sampled_text_stop: str | None = None

    @property
    def text_stop(self) -> str:
        return self.sampled_text_stop or self.text_end


def _chatml(*more: str, foreign: str = "<|endoftext|>") -> TemplateFacts:
    specials: tuple[str, ...] = (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
    )
    specials = (*specials, "</tool_response>", "<think>", "</think>", foreign, *more)
    stops = ("<|im_end|>", foreign)
    return TemplateFacts(specials, stops, "<|im_end|>", "<|im_end|>", foreign, {"eos_token": "<|im_end|>"})


def _llama3() -> TemplateFacts:
    specials: tuple[str, ...] = (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    )
    specials = (*specials, "<|eom_id|>", "<|python_tag|>")
    stops = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    variables = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    return TemplateFacts(specials, stops, "<|eot_id|>", "<|eot_id|>", "<|eom_id|>", variables)


def _mistral() -> TemplateFacts:
    names: tuple[str, ...] = (
        "INST",
        "/INST",
        "AVAILABLE_TOOLS",
        "/AVAILABLE_TOOLS",
        "TOOL_CALLS",
        "TOOL_RESULTS",
        "/TOOL_RESULTS",
    )
    names = (
        *names,
        "SYSTEM_PROMPT",
        "/SYSTEM_PROMPT",
        "TOOL_CONTENT",
        "ARGS",
        "CALL_ID",
        "IMG",
        "THINK",
        "/THINK",
    )
    specials: tuple[str, ...] = ("<s>", "</s>", "<unk>", *(f"[{name}]" for name in names))
    return TemplateFacts(
        specials, ("</s>",), "</s>", "</s>", "<unk>", {"bos_token": "<s>", "eos_token": "</s>"}
    )


def _glm() -> TemplateFacts:
    specials: tuple[str, ...] = (
        "<|endoftext|>",
        "[gMASK]",
        "<sop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
    )
    specials = (
        *specials,
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    )
    specials = (*specials, "<think>", "</think>", "<tool_response>", "</tool_response>")
    stops = ("<|endoftext|>", "<|user|>", "<|observation|>")
    return TemplateFacts(specials, stops, "<|user|>", "<|observation|>", "<|endoftext|>")


def _deepseek(*more: str) -> TemplateFacts:
    names: tuple[str, ...] = (
        "begin▁of▁sentence",
        "end▁of▁sentence",
        "User",
        "Assistant",
        "tool▁calls▁begin",
        "tool▁calls▁end",
    )
    names = (*names, "tool▁call▁begin", "tool▁call▁end", "tool▁sep", "tool▁outputs▁begin", "tool▁outputs▁end")
    names = (*names, "tool▁output▁begin", "tool▁output▁end")
    specials = (*(f"<｜{name}｜>" for name in names), "<think>", "</think>", "<|EOT|>", *more)
    end = "<｜end▁of▁sentence｜>"
    variables = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": end}
    return TemplateFacts(specials, (end, "<|EOT|>"), end, end, "<|EOT|>", variables)


def _gpt_oss() -> TemplateFacts:
    names: tuple[str, ...] = (
        "start",
        "end",
        "message",
        "channel",
        "constrain",
        "return",
        "call",
        "endoftext",
        "startoftext",
    )
    specials = tuple(f"<|{name}|>" for name in names)
    stops = ("<|return|>", "<|call|>", "<|endoftext|>")
    variables = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"}
    return TemplateFacts(specials, stops, "<|end|>", "<|call|>", "<|endoftext|>", variables, "<|return|>")


def _cohere() -> TemplateFacts:
    names: tuple[str, ...] = (
        "START_OF_TURN_TOKEN",
        "END_OF_TURN_TOKEN",
        "USER_TOKEN",
        "CHATBOT_TOKEN",
        "SYSTEM_TOKEN",
    )
    names = (*names, "START_THINKING", "END_THINKING", "START_ACTION", "END_ACTION", "START_RESPONSE")
    names = (*names, "END_RESPONSE", "START_TOOL_RESULT", "END_TOOL_RESULT", "START_TEXT", "END_TEXT")
    specials: tuple[str, ...] = ("<BOS_TOKEN>", "<EOS_TOKEN>", *(f"<|{name}|>" for name in names))
    end = "<|END_OF_TURN_TOKEN|>"
    return TemplateFacts(
        specials, (end, "<EOS_TOKEN>"), end, end, "<EOS_TOKEN>", {"bos_token": "<BOS_TOKEN>"}
    )


def _simple(
    specials: str, end: str, foreign: str, call_end: str | None = None, **variables: str
) -> TemplateFacts:
    return TemplateFacts(
        (*specials.split(), end, foreign), (end, foreign), end, call_end or end, foreign, variables
    )


def _kimi() -> TemplateFacts:
    names: tuple[str, ...] = (
        "im_system",
        "im_user",
        "im_assistant",
        "im_middle",
        "tool_calls_section_begin",
        "tool_call_end",
    )
    names = (*names, "tool_calls_section_end", "tool_call_begin", "tool_call_argument_begin")
    return _simple(" ".join(f"<|{name}|>" for name in names), "<|im_end|>", "[EOS]", bos_token="[BOS]")


def _phi3() -> TemplateFacts:
    return _simple("<|system|> <|user|> <|assistant|>", "<|end|>", "<|endoftext|>", eos_token="<|endoftext|>")


def _seed() -> TemplateFacts:
    specials = "<seed:bos> <seed:think> </seed:think> <seed:tool_call> </seed:tool_call>"
    return _simple(specials, "<seed:eos>", "<seed:pad>")


_FACTS: tuple[tuple[str, TemplateFacts], ...] = (
    ("command", _cohere()),
    ("deepseek", _deepseek("｜DSML｜")),
    ("devstral", _mistral()),
    ("gemma", _simple("<bos> <start_of_turn>", "<end_of_turn>", "<eos>", bos_token="<bos>")),
    ("glm", _glm()),
    ("gpt-oss", _gpt_oss()),
    ("granite", _simple("<|start_of_role|> <|end_of_role|>", "<|end_of_text|>", "<|fim_pad|>")),
    ("hermes", _chatml(foreign="<|eot_id|>")),
    ("kimi", _kimi()),
    ("llama", _llama3()),
    (
        "minimax",
        _simple("]~!b[ ]~b] <think> </think> <minimax:tool_call> </minimax:tool_call>", "[e~[", "<fim_pad>"),
    ),
    ("mistral", _mistral()),
    ("nemotron-mini", _simple("<extra_id_0> <extra_id_2>", "<extra_id_1>", "</s>")),
    ("nemotron-nano-v2", _simple("<SPECIAL_10> <SPECIAL_11>", "<SPECIAL_12>", "</s>")),
    ("phi-3", _phi3()),
    ("phi-4", _chatml("<|im_sep|>")),
    ("seed", _seed()),
)


def facts_of(name: str, template: str) -> TemplateFacts | None:
    """The facts for a template by its file name, ChatML's if it writes that; None where nothing is known."""
    known = next((facts for start, facts in _FACTS if name.startswith(start)), None)
    return known or (_chatml() if "<|im_end|>" in template else None)
