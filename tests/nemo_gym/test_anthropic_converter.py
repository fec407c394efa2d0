from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.anthropic_converter import anthropic_request_to_responses, responses_to_anthropic_response
from nemo_gym.anthropic_types import AnthropicMessage, AnthropicRequest
from nemo_gym.errors import RequestError, UpstreamContractError
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.request_body import validate_object
from tests.support.model_server import client_for, response_object, scripted_model
from tests.support.model_servers import agent, make_vllm

Json = dict[str, object]

USER: Json = {"role": "user", "content": "hi"}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL: Json = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bern"}}
RESULT: Json = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
TEXT: Json = {"type": "text", "text": "I look it up"}
THOUGHT: Json = {"type": "thinking", "thinking": "rain or sun?", "signature": "sig"}
URL_IMAGE: Json = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
IMAGE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def converted(**fields: object) -> NeMoGymResponseCreateParamsNonStreaming:
    request = validate_object({"messages": [USER], "max_tokens": 5} | fields, AnthropicRequest)
    return anthropic_request_to_responses(request)


def said_by(role: str, *blocks: Json) -> Json:
    return {"role": role, "content": list(blocks)}


def items_of(*messages: Json) -> list[Json]:
    """The input items as they would go over the wire."""
    dumped = converted(messages=list(messages)).model_dump(mode="json", exclude_unset=True)
    items = dumped["input"]
    assert isinstance(items, list)
    return items


def refused(**fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        converted(**fields)
    assert caught.value.status_code == 400
    return caught.value


def answered(*output: Json, **fields: object) -> AnthropicMessage:
    response = NeMoGymResponse.model_validate(response_object(output=list(output), **fields))
    return responses_to_anthropic_response(response, model="asked-for")


def said(text: str) -> Json:
    return {
        "id": "m", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }  # fmt: skip


def called(arguments: str) -> Json:
    return {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": arguments}


def thought(*texts: str) -> Json:
    return {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": text} for text in texts],
    }


def test_parameters_travel_under_their_names() -> None:
    params = converted(
        model="m",
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["END"],
        metadata={"user_id": "u"},
    )
    dumped = params.model_dump(exclude_unset=True)
    del dumped["input"]
    assert dumped == {
        "model": "m",
        "max_output_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["END"],
        "user": "u",
    }


def test_what_is_not_sent_is_not_set() -> None:
    assert set(converted().model_dump(exclude_unset=True)) == {"input", "max_output_tokens"}


def test_max_tokens_of_zero_is_zero() -> None:
    assert converted(max_tokens=0).max_output_tokens == 0


@pytest.mark.parametrize(
    ("system", "instructions"),
    [
        ("be brief", "be brief"),
        ([{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}], "be\nbrief"),
    ],
)
def test_system_becomes_the_instructions(system: object, instructions: str) -> None:
    assert converted(system=system).instructions == instructions


def test_a_conversation_keeps_its_order() -> None:
    items = items_of(
        USER,
        {"role": "assistant", "content": [THOUGHT, TEXT, CALL, {"type": "text", "text": "wait"}]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "and now?"}]},
    )
    assert [(item["type"], item.get("role")) for item in items] == [
        ("message", "user"),
        ("reasoning", None),
        ("message", "assistant"),
        ("function_call", None),
        ("message", "assistant"),
        ("function_call_output", None),
        ("message", "user"),
    ]
    assert items[1]["summary"] == [{"type": "summary_text", "text": "rain or sun?"}]
    assert items[1]["encrypted_content"] == "sig"
    assert items[2]["content"] == "I look it up"
    assert items[3]["call_id"] == "call_1"
    assert orjson.loads(str(items[3]["arguments"])) == {"city": "Bern"}
    assert items[5]["output"] == "rain"
    assert items[6]["content"] == "and now?"


def test_neighbouring_texts_and_images_are_one_message() -> None:
    [item] = items_of({"role": "user", "content": [TEXT, IMAGE]})
    assert item["content"] == [
        {"type": "input_text", "text": "I look it up"},
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
    ]
    [item] = items_of({"role": "assistant", "content": [TEXT, TEXT]})
    assert item["content"] == [{"type": "output_text", "text": "I look it up"}] * 2


def test_an_assistant_turn_without_content_is_still_a_turn() -> None:
    items = items_of(USER, {"role": "assistant", "content": []}, USER)
    assert [item["content"] for item in items] == ["hi", "", "hi"]


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (None, ""),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        (
            [
                {"type": "text", "text": "a"},
                {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
            ],
            [
                {"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "http://x/y.png", "detail": "auto"},
            ],
        ),
    ],
)
def test_a_tool_result_becomes_text_or_parts(content: object, output: object) -> None:
    [item] = items_of({"role": "user", "content": [RESULT | {"content": content}]})
    assert item["output"] == output


def test_tools_and_their_choice_are_translated() -> None:
    tool = {
        "name": "weather",
        "description": "d",
        "input_schema": SCHEMA,
        "cache_control": {"type": "ephemeral"},
    }
    params = converted(tools=[tool, {"name": "bare", "input_schema": SCHEMA}])
    assert params.model_dump(exclude_unset=True)["tools"] == [
        {"type": "function", "name": "weather", "parameters": SCHEMA, "description": "d"},
        {"type": "function", "name": "bare", "parameters": SCHEMA},
    ]


@pytest.mark.parametrize(
    ("choice", "tool_choice", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "weather"}, {"type": "function", "name": "weather"}, True),
    ],
)
def test_each_tool_choice_has_its_counterpart(choice: Json, tool_choice: object, parallel: bool) -> None:
    params = converted(tool_choice=choice)
    assert params.tool_choice == tool_choice
    assert params.parallel_tool_calls is parallel


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": [said_by("user", {"type": "hologram"})]}, "messages.0.content.0", "hologram"),
        ({"messages": [said_by("user", RESULT | {"content": [{"type": "audio"}]})]},
         "messages.0.content.0.content.0", "audio"),
        ({"messages": [said_by("user", CALL)]}, "messages.0.content.0", "tool_use"),
        ({"messages": [USER, said_by("assistant", RESULT)]}, "messages.1.content.0", "tool_result"),
        ({"messages": [said_by("user", IMAGE | {"source": {"type": "base64"}})]},
         "messages.0.content.0.source", "media_type and data"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role", "'user' or 'assistant'"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": [said_by("user", CALL | {"input": "{}"})]}, "messages.0.content.0.input", "a string"),
        ({"tools": [{"type": "web_search_20250305", "name": "search"}]}, "tools.0.type", "'custom'"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "required"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"stop_words": ["x"]}, "stop_words", "not a field"),
        ({"stream": True}, "stream", "streaming is not supported"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused_by_name(fields: Json, param: str, said: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert said in str(error)


def test_an_answer_is_an_anthropic_message_under_the_name_asked_for() -> None:
    usage = {
        "input_tokens": 3, "output_tokens": 2, "total_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    message = answered(
        thought("hm", "well"), said("sure"), called('{"city": "Bern"}'), said("done"), usage=usage
    )
    assert message == {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "asked-for",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "thinking", "thinking": "well", "signature": ""},
            {"type": "text", "text": "sure"},
            {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Bern"}},
            {"type": "text", "text": "done"},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }


def test_usage_that_the_engine_did_not_report_is_not_invented() -> None:
    assert answered(said("x"))["usage"] is None


@pytest.mark.parametrize(
    ("incomplete", "stop_reason"),
    [
        (None, "end_turn"),
        ({"reason": "max_output_tokens"}, "max_tokens"),
        ({"reason": "content_filter"}, "refusal"),
    ],
)
def test_the_stop_reason_says_why_the_turn_ended(incomplete: object, stop_reason: str) -> None:
    assert answered(said("x"), incomplete_details=incomplete)["stop_reason"] == stop_reason


def test_a_turn_cut_by_length_inside_tool_calls_stopped_for_its_length() -> None:
    message = answered(called("{}"), incomplete_details={"reason": "max_output_tokens"})
    assert message["stop_reason"] == "max_tokens"


def test_a_refusal_is_text() -> None:
    refusal = said("") | {"content": [{"type": "refusal", "refusal": "no"}]}
    assert answered(refusal)["content"] == [{"type": "text", "text": "no"}]


def test_reasoning_without_a_summary_is_read_from_its_content() -> None:
    item = thought() | {"content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "sig"}
    assert answered(item)["content"] == [{"type": "thinking", "thinking": "hm", "signature": "sig"}]


def test_an_output_item_without_a_form_is_an_error_and_not_dropped() -> None:
    item = {"type": "mcp_list_tools", "id": "x", "server_label": "s", "tools": []}
    with pytest.raises(UpstreamContractError, match="mcp_list_tools"):
        answered(item)


@given(
    st.one_of(st.text(), st.sampled_from(['{"a": 1', "[1]", "null", '"x"', '{"city": "Bern"}', '{"a": NaN}']))
)
def test_arguments_survive_the_way_out_and_back(arguments: str) -> None:
    block = answered(called(arguments))["content"][0]
    [item] = items_of({"role": "assistant", "content": [dict(block)]})
    try:
        meant: object = orjson.loads(arguments or "{}")
    except orjson.JSONDecodeError:
        meant = None
    if isinstance(meant, dict):
        assert orjson.loads(str(item["arguments"])) == meant
    else:
        assert item["arguments"] == arguments


def deep(levels: int = 600) -> str:
    return '{"a": ' + "[" * levels + "]" * levels + "}"


def test_arguments_too_deep_to_be_written_stay_text() -> None:
    assert answered(called(deep()))["content"][0]["input"] == {"__raw_arguments__": deep()}


def test_a_call_too_deep_to_be_written_is_refused_by_name() -> None:
    error = refused(messages=[USER, said_by("assistant", CALL | {"input": orjson.loads(deep())})])
    assert error.param == "messages.1.content.0.input"
    assert "nesting depth" in str(error)


@pytest.mark.parametrize(
    ("messages", "param", "said"),
    [
        ([USER, said_by("assistant", TEXT, CALL), said_by("user", TEXT, RESULT | {"content": [IMAGE]})],
         "messages.2.content.1", "content part input_image"),
        ([said_by("assistant", THOUGHT | {"thinking": ""})], "messages", "at least one item"),
    ],
)  # fmt: skip
async def test_what_the_conversion_to_chat_refuses_is_named_as_the_caller_sent_it(
    messages: list[Json], param: str, said: str
) -> None:
    async with agent(make_vllm(return_token_id_information=False)) as client:
        response = await client.post("/v1/messages", json={"messages": messages, "max_tokens": 5})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"{param}: ")
    assert said in error["message"]


async def test_an_error_about_another_field_keeps_its_name() -> None:
    model = scripted_model().raising(RequestError("top_k: too small", param="top_k"))
    async with client_for(model.setup_webserver()) as client:
        response = await client.post("/v1/messages", json={"messages": [USER], "max_tokens": 5})
    assert response.json()["error"]["param"] == "top_k"


async def test_the_route_speaks_the_dialect_and_its_errors_are_openai_objects() -> None:
    model = scripted_model()
    async with client_for(model.setup_webserver()) as client:
        good = await client.post(
            "/v1/messages", json={"messages": [USER], "model": "claude", "max_tokens": 5}
        )
        bad = await client.post("/v1/messages", json={"messages": [USER], "stream": True})
    assert good.json()["model"] == "claude"
    assert good.json()["content"] == [{"type": "text", "text": "hello"}]
    assert bad.status_code == 400
    assert bad.json()["error"]["param"] == "stream"
    assert len(model._bodies) == 1
