"""SGLang's sentences about length (contract of 0.5.12, 0.5.13 and 0.5.23: the texts are the same in all three)."""

from __future__ import annotations

import re

SGLANG_PATTERNS = (
    re.compile(r"The input \(\d+ tokens\) is longer than the model's context length \(\d+ tokens\)"),
    re.compile(r"Input length \(\d+ tokens\) exceeds the maximum allowed length \(\d+ tokens\)"),
    re.compile(
        r"Requested token count exceeds the model's maximum context length of (?P<limit>\d+) tokens\. You requested a "
        r"total of \d+ tokens: (?P<prompt>\d+) tokens from the input messages"
    ),
    re.compile(
        r"max_completion_tokens is too large: \d+\. ?This model supports at most (?P<budget>\d+) completion tokens"
    ),
    re.compile(r"Request prompt exceeds the KV memory budget: input_len=\d+"),
    re.compile(r"Multimodal prompt is too long after expanding multimodal tokens"),
)
"""In this order: three wordings of "the prompt does not fit" must not be taken for the two of "too many new tokens".

The scheduler keeps six tokens of the window for itself, so a prompt of context-6 .. context-1 tokens is refused with
the second sentence, not the first.
"""
