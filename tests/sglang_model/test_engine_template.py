from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_model.testing import Rule
from sglang_model.testing.tokenizer import builtin_tokenizer
from tests.support.engine_client import CALL, WEATHER, engine_client

ASKED = {"role": "user", "content": "weather?"}
THOUGHT = {
    "role": "assistant",
    "content": "I look.",
    "reasoning_content": "a tool helps",
    "tool_calls": [
        {
            "id": "c",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'},
        }
    ],
}
TOLD = {"role": "tool", "tool_call_id": "c", "content": "sunny"}


async def rendered(messages: list[dict[str, object]], version: str = "0.5.13", **fields: object) -> str:
    async with engine_client(version=version) as client:
        response = await client.http.post("/tokenize", json={"messages": messages, **fields})
        assert response.status_code == 200, response.text
        return client.engine.tokenizer.decode(response.json()["tokens"])


async def test_a_conversation_is_rendered_as_chatml_with_a_generation_prompt() -> None:
    text = await rendered([{"role": "system", "content": "be brief"}, ASKED])
    assert text == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nweather?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_thinking_is_kept_while_the_question_is_open() -> None:
    text = await rendered([ASKED, THOUGHT, TOLD])
    assert "<think>\na tool helps\n</think>\n\nI look.\n" + CALL in text
    assert "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n" in text


async def test_thinking_is_dropped_from_turns_before_the_last_question() -> None:
    text = await rendered([ASKED, THOUGHT, TOLD, {"role": "assistant", "content": "Sunny."}, ASKED])
    assert "a tool helps" not in text
    assert "<|im_start|>assistant\nI look.\n" + CALL in text


async def test_tool_answers_in_a_row_share_one_user_turn() -> None:
    text = await rendered([ASKED, THOUGHT, TOLD, TOLD])
    answer = "\n<tool_response>\nsunny\n</tool_response>"
    assert "<|im_start|>user" + answer + answer + "<|im_end|>\n" in text


async def test_thinking_switched_off_closes_the_thought_in_the_prompt() -> None:
    text = await rendered([ASKED], chat_template_kwargs={"enable_thinking": False})
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("version", ["0.5.12", "0.5.13"])
async def test_the_older_versions_reorder_a_tool_and_add_strict(version: str) -> None:
    text = await rendered([ASKED], version, tools=[WEATHER])
    assert (
        '{"type": "function", "function": {"description": "Get the weather of a city", "name": "get_weather", '
        '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}, "strict": false}, '
        '"defer_loading": null}'
    ) in text


async def test_0_5_23_keeps_the_clients_key_order_and_adds_no_strict() -> None:
    text = await rendered([ASKED], "0.5.23", tools=[WEATHER])
    assert '"function": {"name": "get_weather", "description": ' in text
    assert "strict" not in text


async def test_a_named_tool_choice_renders_that_tool_alone() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    choice = {"type": "function", "function": {"name": "other"}}
    text = await rendered([ASKED], tools=[WEATHER, other], tool_choice=choice)
    assert "get_weather" not in text
    assert '"name": "other"' in text


async def test_tool_choice_none_renders_no_tools() -> None:
    assert "<tools>" not in await rendered([ASKED], tools=[WEATHER], tool_choice="none")


async def test_a_trailing_assistant_message_becomes_the_users() -> None:
    text = await rendered([ASKED, {"role": "assistant", "content": "Sure,"}])
    assert text.endswith("<|im_start|>user\nSure,<|im_end|>\n<|im_start|>assistant\n")


async def test_a_continued_final_message_is_appended_after_the_generation_prompt() -> None:
    text = await rendered([ASKED, {"role": "assistant", "content": "Sure,"}], continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nSure,")


async def test_only_0_5_23_listens_to_add_generation_prompt_on_tokenize() -> None:
    messages = [ASKED, {"role": "assistant", "content": "Sure,"}]
    old = await rendered(messages, "0.5.13", add_generation_prompt=False)
    new = await rendered(messages, "0.5.23", add_generation_prompt=False)
    assert old.endswith("<|im_start|>assistant\n")
    assert new.endswith("<|im_start|>assistant\nSure,<|im_end|>\n")


async def test_text_parts_are_joined_with_a_space_and_other_parts_are_lost() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url"}, {"type": "text", "text": "two"}]
    assert "user\none two<|im_end|>" in await rendered([{"role": "user", "content": parts}])


async def test_a_template_file_is_used_instead_and_its_complaint_is_a_400(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(
        "{% if tools %}{{ raise_exception('no tools here') }}{% endif %}[{{ messages[0].content }}]"
    )
    async with engine_client(chat_template_path=file) as client:
        plain = await client.http.post("/tokenize", json={"messages": [ASKED]})
        refused = await client.chat("weather?", tools=[WEATHER])
    assert client.engine.tokenizer.decode(plain.json()["tokens"]) == "[weather?]"
    assert refused.status_code == 400
    assert refused.json()["message"] == "no tools here"


async def test_a_template_that_wants_bare_functions_gets_them(tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(
        "{% for tool in tools %}{% if tool.function %}{{ raise_exception('wrapped') }}{% endif %}"
        "{{ tool.name }}{% endfor %}"
    )
    async with engine_client(chat_template_path=file) as client:
        response = await client.http.post("/tokenize", json={"messages": [ASKED], "tools": [WEATHER]})
    assert client.engine.tokenizer.decode(response.json()["tokens"]) == "get_weather"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.5.13", "unexpected character, expected a string key: line 1 column 2 (char 1)"),
        ("0.5.23", "Assistant tool call function.arguments must be valid JSON."),
    ],
)
async def test_history_arguments_that_are_not_json_are_refused(version: str, message: str) -> None:
    broken = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{no"}}]}
    async with engine_client(version=version) as client:
        response = await client.chat([ASKED, broken, TOLD])
    assert response.status_code == 400
    assert response.json() == {
        "object": "error",
        "message": message,
        "type": "BadRequest",
        "param": None,
        "code": 400,
    }


@pytest.mark.parametrize("kept_in", ["chat_template.jinja", "tokenizer_config.json", None])
async def test_a_tokenizer_folder_brings_its_template(tmp_path: Path, kept_in: str | None) -> None:
    builtin_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    template = "[{{ messages[0].content }}]"
    if kept_in is not None:
        text = template if kept_in.endswith("jinja") else json.dumps({"chat_template": template})
        (tmp_path / kept_in).write_text(text)
    async with engine_client(tokenizer_folder=tmp_path) as client:
        response = await client.http.post("/tokenize", json={"messages": [ASKED]})
        text = client.engine.tokenizer.decode(response.json()["tokens"])
    builtin = "<|im_start|>user\nweather?<|im_end|>\n<|im_start|>assistant\n"
    assert text == (builtin if kept_in is None else "[weather?]")


async def test_arguments_that_are_objects_already_are_rendered_as_they_are() -> None:
    call = {"function": {"name": "f", "arguments": {"b": 1, "a": "é"}}}
    text = await rendered([ASKED, {"role": "assistant", "tool_calls": [call]}, TOLD])
    assert '{"name": "f", "arguments": {"b": 1, "a": "é"}}' in text


async def test_thinking_inside_the_content_is_treated_as_thinking() -> None:
    said = {"role": "assistant", "content": "<think>\na\n</think>\n\nb"}
    text = await rendered([ASKED, said, ASKED])
    assert "<|im_start|>assistant\nb<|im_end|>" in text


async def test_an_end_of_document_id_ends_a_reply_and_further_ids_can_be_named() -> None:
    tokenizer = builtin_tokenizer()
    document, word = tokenizer.encode("<|endoftext|>")[0], tokenizer.encode(" two")[0]
    rules = (Rule(when="^a", ids=(300, document, 301)), Rule(reply="one two three"))
    async with engine_client(rules=rules, eos_token_ids=(word,)) as client:
        first = (await client.generate("a")).json()
        second = (await client.generate("b")).json()
    assert first["output_ids"] == [300, document]
    assert second["output_ids"][-1] == word


async def test_a_continued_final_message_is_encoded_apart_which_leaves_a_seam() -> None:
    tokenizer = builtin_tokenizer()
    messages = [ASKED, {"role": "assistant", "content": "\n\nSure,"}]
    body = {"messages": messages, "continue_final_message": True}
    async with engine_client() as client:
        tokens = (await client.http.post("/tokenize", json=body)).json()["tokens"]
        prompt = (await client.http.post("/tokenize", json={"messages": [ASKED]})).json()["tokens"]
    assert tokens == prompt + tokenizer.encode("\n\nSure,")
    assert tokens != tokenizer.encode(tokenizer.decode(tokens))
