"""Replies that an agent must see alike on both transports: the parsers of SGLang 0.5.13 and 0.5.23 read them so.

docs/verification.md says what they read otherwise.
"""

from __future__ import annotations

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
THOUGHT = "<think>\nhm\n</think>\n\n"
REPLIES = {
    "text": "Hello.",
    "text that ends in newlines": "Hello.\n\n",
    "text that begins with blanks": "\n\n  Hello.",
    "nothing": "",
    "a call": CALL,
    "a call behind text": f"Sure. {CALL}",
    "two calls": f"Both.\n{CALL}\n{CALL.replace('Rome', 'Oslo')}",
    "a call without arguments": '<tool_call>\n{"name": "get_weather"}\n</tool_call>',
    "a call, arguments first": '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "get_weather"}\n</tool_call>',
    "a call with a tag in an argument": CALL.replace("Rome", "a}</tool_call>b"),
    "control tokens": "see <|im_start|> and <|endoftext|",
}
