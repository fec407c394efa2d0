# ruff: noqa: RUF001, S106 (tokens as real models have them)
"""Chat templates of our own writing, one per family of real ones, each with the quirk that its family is
known for.

For tests that must run everywhere: short, and true to how the family ends turns, orders roles, writes tool
calls and treats old reasoning. `facts` are what an oracle and a tokenizer need to know of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sglang_model.testing.template_facts import TemplateFacts


@dataclass(frozen=True)
class TemplateFamily:
    """A template, the special tokens of its tokenizer, and how it ends turns.

    `rstrip` are tokens that take the blank space behind them along, as Phi-3's do.
    """

    name: str
    template: str
    facts: TemplateFacts
    rstrip: tuple[str, ...] = ()


_CHATML_SYSTEM = """
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
{{- 'Functions:' }}{% for tool in tools %}{{- '\\n' + (tool | tojson) }}{% endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}"""

_THINKING = (
    _CHATML_SYSTEM
    + """
{%- set mark = namespace(last_user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set mark.last_user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}
{%- set text = m.content or '' %}
{%- set thought = m.reasoning_content or '' %}
{%- if '</think>' in text %}
{%- set thought = text.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set text = text.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > mark.last_user and (thought or loop.last) %}
{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
{%- endif %}
{{- text }}
{%- for call in m.tool_calls or [] %}
{%- if text or not loop.first %}{{- '\\n' }}{% endif %}
{{- '<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
{{- '\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""
)

_BARE_CHATML = """
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- if not loop.last or add_generation_prompt %}{{- '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

_HEADERS = """
{{- bos_token }}
{%- for m in messages %}
{%- set role = 'ipython' if m.role == 'tool' else m.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
{%- if loop.first and tools %}{{- 'Tools: ' + (tools | tojson) + '\\n\\n' }}{% endif %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length > 1 %}{{- raise_exception('Only one call at a time.') }}{% endif %}
{{- '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- (m.tool_calls[0].function.arguments | tojson) + '}' }}
{{- '<|eom_id|>' if code_interpreter else '<|eot_id|>' }}
{%- elif m.role == 'tool' %}
{{- (m.content | tojson) + '<|eot_id|>' }}
{%- else %}
{{- (m.content | trim) + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

_INST = """
{{- bos_token }}
{%- set first = namespace(system='', turn=0) %}
{%- if messages[0].role == 'system' %}{% set first.system = messages[0].content + '\\n\\n' %}{% endif %}
{%- set rest = messages[1:] if first.system else messages %}
{%- for m in rest %}
{%- if m.role in ('user', 'assistant') and not m.tool_calls %}
{%- if (m.role == 'user') != (first.turn % 2 == 0) %}
{{- raise_exception('Roles must alternate between user and assistant.') }}
{%- endif %}
{%- set first.turn = first.turn + 1 %}
{%- endif %}
{%- endfor %}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{%- for m in rest %}
{%- if m.role == 'user' %}
{%- if tools and m == users[-1] %}
{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST]' + (first.system if loop.last else '') + m.content + '[/INST]' }}
{%- elif m.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('A call id has nine characters.') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + (', ' if not loop.last else ']') }}
{%- endfor %}
{{- eos_token }}
{%- elif m.role == 'assistant' %}
{{- m.content + eos_token }}
{%- elif m.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}
{{- raise_exception('There is no such role: ' + m.role) }}
{%- endif %}
{%- endfor %}"""

_TURNS = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('A system role is not supported.') }}{% endif %}
{%- set due = 'user' if loop.index0 % 2 == 0 else 'assistant' %}
{%- if m.role != due %}{{- raise_exception('Roles must alternate.') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- (m.content | trim) + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}"""

_ROLE_STOPS = """
{{- '[gMASK]<sop>' }}
{%- if tools %}{{- '<|system|>\\n# Tools\\n' + (tools | tojson) }}{% endif %}
{%- set mark = namespace(last_user=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set mark.last_user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|assistant|>\\n' }}
{%- if m.reasoning_content and loop.index0 > mark.last_user %}
{{- '<think>' + m.reasoning_content + '</think>\\n' }}
{%- endif %}
{{- m.content | trim }}
{%- for call in m.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}
{{- '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' }}
{{- (value if value is string else value | tojson) + '</arg_value>' }}
{%- endfor %}
{{- '\\n</tool_call>' }}
{%- endfor %}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- elif m.role in ('user', 'system') %}
{{- '<|' + m.role + '|>\\n' + m.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}"""

_BARS = """
{{- bos_token }}
{%- for m in messages if m.role == 'system' %}{{- m.content }}{% endfor %}
{%- if tools %}{{- '\\n\\n' + (tools | tojson) }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{{- '<｜User｜>' + m.content }}
{%- elif m.role == 'assistant' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<｜Assistant｜>' }}{% endif %}
{%- if m.content is none %}
{{- '<｜tool▁calls▁begin｜>' }}
{%- for call in m.tool_calls %}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' }}
{{- call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}
{%- endfor %}
{{- '<｜tool▁calls▁end｜>' + eos_token }}
{%- else %}
{{- m.content.split('</think>')[-1] + eos_token }}
{%- endif %}
{%- elif m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<｜tool▁outputs▁begin｜>' }}{% endif %}
{{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<｜tool▁outputs▁end｜>' }}{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}
{{- '<｜Assistant｜><think>\\n' }}
{%- endif %}"""

_CHANNELS = """
{{- '<|start|>system<|message|>You are a model.<|end|>' }}
{%- set start = 1 if messages[0].role in ('system', 'developer') else 0 %}
{%- if start or tools %}
{{- '<|start|>developer<|message|>' + (messages[0].content if start else '') }}
{%- if tools %}{{- '# Tools\\n' + (tools | tojson) }}{% endif %}
{{- '<|end|>' }}
{%- endif %}
{%- set last = namespace(tool='') %}
{%- for m in messages[start:] %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- set last.tool = m.tool_calls[0].function.name %}
{%- if m.content %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant to=functions.' + last.tool + '<|channel|>commentary json<|message|>' }}
{{- (m.tool_calls[0].function.arguments | tojson) + '<|call|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- elif m.role == 'tool' %}
{{- '<|start|>functions.' + last.tool + ' to=assistant<|channel|>commentary<|message|>' }}
{{- (m.content | tojson) + '<|end|>' }}
{%- elif m.role == 'user' %}
{{- '<|start|>user<|message|>' + m.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"""

_EXTRA_IDS = """
{{- '<extra_id_0>System\\n' }}
{%- for m in messages if m.role == 'system' %}{{- m.content.strip() + '\\n' }}{% endfor %}
{%- for tool in tools or [] %}{{- '<tool> ' + (tool | tojson) + ' </tool>\\n' }}{% endfor %}
{{- '\\n' }}
{%- for m in messages if m.role != 'system' %}
{{- '<extra_id_1>' + m.role | capitalize + '\\n' + m.content.strip() }}
{%- for call in m.tool_calls or [] %}
{{- '<toolcall> ' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) }}
{{- ' </toolcall>' }}
{%- endfor %}
{{- '\\n' }}
{%- endfor %}
{{- '<extra_id_1>Assistant\\n' }}"""

_RSTRIP = """
{%- for m in messages %}
{%- if m.role in ('system', 'user', 'assistant', 'tool') %}
{{- '<|' + m.role + '|>\\n' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<|tool_call|>' + (call.function.arguments | tojson) + '<|/tool_call|>' }}
{%- endfor %}
{{- '<|end|>\\n' }}
{%- endif %}
{%- endfor %}
{{- '<|assistant|>\\n' if add_generation_prompt else eos_token }}"""

_ACTIONS = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' + (m.content | trim) + '\\nAction: ```json\\n[' }}
{%- for call in m.tool_calls %}
{{- '{"tool_name": "' + call.function.name + '", "parameters": ' + (call.function.arguments | tojson) + '}' }}
{{- ',\\n' if not loop.last else '' }}
{%- endfor %}
{{- ']```\\n' }}
{%- elif m.role == 'tool' %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\\n' + m.content + '</results><|END_OF_TURN_TOKEN|>' }}
{%- else %}
{%- set names = {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'} %}
{{- '<|START_OF_TURN_TOKEN|><|' + names[m.role] + '_TOKEN|>' + (m.content | trim) + '<|END_OF_TURN_TOKEN|>' }}
{%- endif %}
{%- endfor %}
{%- if tools %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Answer with a list of actions.<|END_OF_TURN_TOKEN|>' }}
{%- endif %}
{%- if add_generation_prompt %}{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

_PARTS = """
{%- for m in messages %}
{{- m.role | capitalize + ': ' }}
{%- for part in m.content if part is mapping %}{{- part.text }}{% endfor %}
{{- '<end_of_utterance>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'Assistant:' }}{% endif %}"""

_NO_END = """
{%- for m in messages %}
{{- '### ' + m.role | capitalize + ':\\n' + m.content + '\\n\\n' }}
{%- if m.role == 'assistant' and loop.last %}{{- eos_token }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '### Assistant:\\n' }}{% endif %}"""


def _facts(
    specials: str,
    stops: str,
    text_end: str,
    call_end: str,
    foreign: str,
    text_stop: str | None = None,
    **variables: str,
) -> TemplateFacts:
    return TemplateFacts(
        tuple(specials.split()), tuple(stops.split()), text_end, call_end, foreign, variables, text_stop
    )


_CHATML_TOKENS = "<|im_start|> <|im_end|> <|endoftext|> <think> </think> <tool_call> </tool_call>"
_COHERE_TOKENS = (
    "<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|>"
)
_INST_TOKENS = (
    "<s> </s> <unk> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS]"
)
_EOS_BARS = "<｜end▁of▁sentence｜>"
_BAR_NAMES = (
    "begin▁of▁sentence end▁of▁sentence User Assistant tool▁calls▁begin tool▁calls▁end tool▁call▁begin "
    "tool▁call▁end tool▁sep tool▁outputs▁begin tool▁outputs▁end tool▁output▁begin tool▁output▁end"
)

FAMILIES: tuple[TemplateFamily, ...] = (
    TemplateFamily(
        "chatml-thinking",
        _THINKING,
        _facts(_CHATML_TOKENS, "<|im_end|> <|endoftext|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>"),
    ),
    TemplateFamily(
        "chatml-bare",
        _BARE_CHATML,
        _facts(_CHATML_TOKENS, "<|im_end|> <|endoftext|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>"),
    ),
    TemplateFamily(
        "header-ids",
        _HEADERS,
        _facts(
            "<|begin_of_text|> <|end_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> <|eom_id|>",
            "<|eot_id|> <|eom_id|> <|end_of_text|>",
            "<|eot_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            bos_token="<|begin_of_text|>",
        ),
    ),
    TemplateFamily(
        "inst",
        _INST,
        _facts(
            f"{_INST_TOKENS} [/TOOL_RESULTS]",
            "</s>",
            "</s>",
            "</s>",
            "<unk>",
            bos_token="<s>",
            eos_token="</s>",
        ),
    ),
    TemplateFamily(
        "turns",
        _TURNS,
        _facts(
            "<bos> <eos> <start_of_turn> <end_of_turn>",
            "<end_of_turn> <eos>",
            "<end_of_turn>",
            "<end_of_turn>",
            "<eos>",
            bos_token="<bos>",
        ),
    ),
    TemplateFamily(
        "role-stops",
        _ROLE_STOPS,
        _facts(
            "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> "
            "<tool_call> </tool_call>",
            "<|endoftext|> <|user|> <|observation|>",
            "<|user|>",
            "<|observation|>",
            "<|endoftext|>",
        ),
    ),
    TemplateFamily(
        "bars",
        _BARS,
        _facts(
            " ".join([*(f"<｜{name}｜>" for name in _BAR_NAMES.split()), "<think> </think> <|EOT|>"]),
            f"{_EOS_BARS} <|EOT|>",
            _EOS_BARS,
            _EOS_BARS,
            "<|EOT|>",
            bos_token="<｜begin▁of▁sentence｜>",
            eos_token=_EOS_BARS,
        ),
    ),
    TemplateFamily(
        "channels",
        _CHANNELS,
        _facts(
            "<|start|> <|end|> <|message|> <|channel|> <|return|> <|call|> <|endoftext|>",
            "<|return|> <|call|> <|endoftext|>",
            "<|end|>",
            "<|call|>",
            "<|endoftext|>",
            "<|return|>",
        ),
    ),
    TemplateFamily(
        "extra-ids",
        _EXTRA_IDS,
        _facts("<extra_id_0> <extra_id_1> </s>", "<extra_id_1> </s>", "<extra_id_1>", "<extra_id_1>", "</s>"),
    ),
    TemplateFamily(
        "rstrip",
        _RSTRIP,
        _facts(
            "<|system|> <|user|> <|assistant|> <|tool|> <|end|> <|endoftext|> <|tool_call|> <|/tool_call|>",
            "<|end|> <|endoftext|>",
            "<|end|>",
            "<|end|>",
            "<|endoftext|>",
            eos_token="<|endoftext|>",
        ),
        rstrip=("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
    ),
    TemplateFamily(
        "actions",
        _ACTIONS,
        _facts(
            f"{_COHERE_TOKENS} <BOS_TOKEN> <EOS_TOKEN>",
            "<|END_OF_TURN_TOKEN|> <EOS_TOKEN>",
            "<|END_OF_TURN_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
            "<EOS_TOKEN>",
            bos_token="<BOS_TOKEN>",
        ),
    ),
    TemplateFamily(
        "parts",
        _PARTS,
        _facts(
            "<end_of_utterance> <eos>",
            "<end_of_utterance> <eos>",
            "<end_of_utterance>",
            "<end_of_utterance>",
            "<eos>",
        ),
    ),
    TemplateFamily("no-end", _NO_END, _facts("<s> </s>", "</s>", "</s>", "</s>", "</s>", eos_token="</s>")),
)
"""Thirteen families: ChatML with and without thinking, Llama 3, Mistral, Gemma, GLM, DeepSeek, gpt-oss,
Nemotron, Phi-3, Command R+, Idefics, and a format of plain text without ends."""


_BY_NAME = {family.name: family for family in FAMILIES}


def family(name: str) -> TemplateFamily:
    """The family of that name; raises KeyError if there is none."""
    return _BY_NAME[name]
