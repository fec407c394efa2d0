"""The demo's agent: a tool-using rollout over the Responses API, as NeMo Gym's simple agent runs one.

It keeps the cookies of the last answer and sends every output item back as it came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import httpx
import orjson

from sglang_model.token_accounting import TurnTokens

Item = dict[str, object]

MAX_TURNS = 6

QUESTION = "How warm is it in Paris and in Oslo? Look both up, then tell me where I need a coat."

TEMPERATURE_TOOL: Item = {
    "type": "function",
    "name": "get_temperature",
    "description": "Temperature of a city in degrees Celsius",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
TEMPERATURES = {"Paris": 21, "Oslo": 9}


@dataclass(frozen=True)
class Turn:
    """One answer of the model server."""

    output: list[Item]
    status: str
    tokens: TurnTokens
    history: str
    kept_tokens: int

    @property
    def calls(self) -> list[Item]:
        return [item for item in self.output if item["type"] == "function_call"]

    @property
    def text(self) -> str:
        contents = [cast("list[Item]", item["content"]) for item in self.output if item["type"] == "message"]
        return "".join(str(part.get("text", "")) for content in contents for part in content)


@dataclass
class Rollout:
    turns: list[Turn] = field(default_factory=list)


async def run_rollout(base_url: str) -> Rollout:
    """Run the conversation until an answer calls no tool. Raises httpx.HTTPStatusError and ValueError."""
    rollout = Rollout()
    items: list[Item] = [{"role": "user", "content": QUESTION}]
    async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
        while len(rollout.turns) < MAX_TURNS:
            response = await client.post("/v1/responses", json={"input": items, "tools": [TEMPERATURE_TOOL]})
            response.raise_for_status()
            turn = _turn_of(response.json())
            rollout.turns.append(turn)
            if not turn.calls:
                return rollout
            items += [*turn.output, *map(_call_tool, turn.calls)]
    return rollout


def _turn_of(answer: Item) -> Turn:
    output = cast("list[Item]", answer["output"])
    said = cast("Item", answer["sglang"])
    return Turn(
        output=output,
        status=str(answer["status"]),
        tokens=TurnTokens.of_output_item(output[-1]),
        history=str(said["history"]),
        kept_tokens=cast("int", said["kept_tokens"]),
    )


def _call_tool(call: Item) -> Item:
    city = orjson.loads(str(call["arguments"]))["city"]
    temperature = TEMPERATURES.get(city)
    output = (
        {"city": city, "celsius": temperature} if temperature is not None else {"error": f"no city {city}"}
    )
    return {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": orjson.dumps(output).decode(),
    }
