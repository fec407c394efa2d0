"""What the model says in the live tests, above all in ten turns whose tokens no tokenizer would choose.

    python -m tests.live.policy TOKENIZER > tests/live/rules.json

writes the script for the engine's side (docs/verification.md). The last message of turn n carries the words "step n:",
and the script looks for the latest of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.sglang_model.transport_differences import ALIKE, CALL, DIFFERENT, OSLO

IM_END, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"


@dataclass(frozen=True)
class Step:
    """One turn: what the agent sends (a text for each tool call that is open, then a user's words), what is sampled."""

    says: str
    results: tuple[str, ...] = ()
    user: str | None = None
    end: str = IM_END
    max_tokens: int = 200
    delay: float = 0.0


def call(city: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


STEPS = (
    Step(
        user="step 1: What is the weather in Turin?",
        says="<think>\nI need the tool.\n</think>\n\n" + call("Turin"),
    ),
    Step(
        results=("step 2: sunny, 21 degrees",),
        says="<think>\nSunny, so no umbrella.\n</think>\n\nIt is sunny in Turin, 21 degrees.",
    ),
    Step(
        user="step 3: And in Nantes and Lyon?",
        says="<think>\nTwo cities, two calls.\n</think>\n\nBoth at once.\n"
        + call("Nantes")
        + "\n"
        + call("Lyon"),
    ),
    Step(
        results=("rain", "step 4: fog"),
        says="<think>\nRain and fog.\n</think>\n\nRain in Nantes, fog in Lyon.",
        end=END_OF_TEXT,
    ),
    Step(
        user="step 5: Tell me a story of the rain.",
        says="<think>\nA story.\n</think>\n\nOnce upon a time 🌦 there was a cloud over the sea.",
        max_tokens=19,
    ),
    Step(
        user="step 6: Stop. What is the weather in Zürich?",
        says="<think>\nAnother call.\n</think>\n\n"
        '<tool_call>\n{"arguments":{"city":"Z\\u00fcrich"},"name":"get_weather"}\n</tool_call>',
    ),
    Step(
        results=('step 7: {"sky": "clear <b>&amp;</b>", "wind": null}',),
        says="<think>\nThis is a very long thought about the wind.\n</think>\n\nClear.",
        max_tokens=9,
    ),
    Step(
        user="step 8: Go on.",
        says="<think>\nSlowly.\n</think>\n\nIt is clear in Zürich.",
        delay=0.1,
    ),
    Step(
        user="step 9: Check Turin once more.",
        says="<think>\nOnce more.\n</think>\n\n" + call("Turin"),
    ),
    Step(
        results=("step 10: still sunny",),
        says="<think>\nDone.\n</think>\n\nStill sunny in Turin.",
    ),
)

ROME = '<think>\nx\n</think>\n\n<tool_call>\n{"name":"get_weather","arguments":{"city":"Rome"}}\n</tool_call>'
OTHER_RULES: tuple[dict[str, object], ...] = (
    {"when": "call twice", "reply": f"Both.\n{CALL}\n{OSLO}"},
    {"when": "weather in Rome(?!.*tool_response)", "reply": ROME},
    {"when": "say hello", "reply": "<think>\nshort\n</think>\n\nHello there!"},
    {
        "when": "fail none",
        "reply": "partial answer here",
        "abort_at": 2,
        "abort": {"message": None, "status_code": None},
    },
    {"when": "hold me", "reply": "held", "hold": 20},
)
"""What the other live tests ask for, one turn each."""


def asking_for(name: str) -> str:
    """What to ask for one of the replies of tests/sglang_model/transport_differences.py."""
    return f"give the reply '{name}'"


def reply_rules() -> list[dict[str, object]]:
    replies = {**ALIKE, **{name: difference.reply for name, difference in DIFFERENT.items()}}
    return [{"when": asking_for(name), "reply": reply.text} for name, reply in replies.items()]


def pieces(text: str) -> list[str]:
    """The text in bits of at most three letters, special tokens whole: encoded one by one they are not canonical."""
    return re.findall(r"</?\w+>|<\|\w+\|>|[^<]{1,3}|<", text)


def rules(encode: Callable[[str], Sequence[int]]) -> list[dict[str, object]]:
    """The script, the latest step first: the first rule that matches is the one that is followed."""
    made: list[dict[str, object]] = []
    for number, step in reversed(list(enumerate(STEPS, start=1))):
        ids = [token_id for piece in [*pieces(step.says), step.end] for token_id in encode(piece)]
        rule: dict[str, object] = {
            "when": f"step {number}:",
            "text": step.says + step.end,
            "ids": ids,
            "eos": False,
        }
        made.append({**rule, "delay": step.delay} if step.delay else rule)
    return [*made, *reply_rules(), *OTHER_RULES]


def main(tokenizer: str) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    made = rules(lambda text: loaded.encode(text, add_special_tokens=False))
    written = [json.dumps(rule, ensure_ascii=False) for rule in made]
    sys.stdout.write("[\n" + ",\n".join(written) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
