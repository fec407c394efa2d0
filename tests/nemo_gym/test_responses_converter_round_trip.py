"""Items -> chat -> items: text, reasoning, calls and ids stay with their turn."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.reasoning import wrap_reasoning_in_think_tags
from nemo_gym.responses_converter import ResponsesConverter

CONVERTER = ResponsesConverter(return_token_id_information=True)
Message = dict[str, object]

# No `<`: text that itself looks like a think tag cannot be told from one in a chat message.
TEXT = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=8)
IDS = st.lists(st.integers(0, 2**18), max_size=4)


@st.composite
def calls(draw: st.DrawFn) -> list[Message]:
    count = draw(st.integers(0, 2))
    return [
        {"id": f"call_{index}", "type": "function", "function": {"name": draw(TEXT), "arguments": draw(TEXT)}}
        for index in range(count)
    ]


@st.composite
def assistant_turns(draw: st.DrawFn) -> Message:
    thoughts = draw(st.lists(TEXT.filter(bool), max_size=2))
    turn: Message = {
        "role": "assistant",
        "content": (wrap_reasoning_in_think_tags(thoughts) + draw(TEXT)) or None,
    }
    if made := draw(calls()):
        turn["tool_calls"] = made
    if draw(st.booleans()):
        generated = draw(IDS)
        turn["prompt_token_ids"] = draw(IDS)
        turn["generation_token_ids"] = generated
        turn["generation_log_probs"] = [-0.5 * index for index in range(len(generated))]
    return turn


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Turns without ids are followed by somebody else: nothing but ids or another speaker marks a turn's
    end.
    """
    conversation: list[Message] = [{"role": "user", "content": draw(TEXT)}]
    for turn in draw(st.lists(assistant_turns(), max_size=4)):
        conversation.append(turn)
        answers = [
            {"role": "tool", "tool_call_id": f"call_{index}", "content": draw(TEXT)}
            for index in range(len(list(turn.get("tool_calls", ()))))  # type: ignore[call-overload]
        ]
        conversation.extend(answers)
        if not answers and ("prompt_token_ids" not in turn or draw(st.booleans())):
            role = draw(st.sampled_from(["user", "system", "developer"]))
            conversation.append({"role": role, "content": draw(TEXT)})
    return conversation


def chat_of(items: Sequence[object]) -> list[object]:
    params = NeMoGymResponseCreateParamsNonStreaming.model_validate({"input": list(items)})
    chat = CONVERTER.responses_to_chat_completion_create_params(params)
    dumped: list[object] = chat.model_dump(exclude_unset=True)["messages"]
    return dumped


def without_ids_of_items(items: Sequence[BaseModel]) -> list[Message]:
    """What the items say, without the ids that are drawn anew for every item."""
    return [
        {name: value for name, value in item.model_dump(exclude_unset=True).items() if name != "id"}
        for item in items
    ]


@given(conversations())
def test_a_conversation_survives_as_items_and_back(conversation: list[Message]) -> None:
    items = CONVERTER.chat_messages_to_responses_items(conversation)
    assert chat_of(items) == conversation
    again = CONVERTER.chat_messages_to_responses_items(chat_of(items))  # type: ignore[arg-type]
    assert without_ids_of_items(again) == without_ids_of_items(items)


@given(conversations())
def test_a_conversation_survives_the_wire_between_agent_and_server(conversation: list[Message]) -> None:
    """An agent gets the items as JSON, with every default written out, and sends them back."""
    items = CONVERTER.chat_messages_to_responses_items(conversation)
    assert chat_of([item.model_dump(mode="json") for item in items]) == conversation
