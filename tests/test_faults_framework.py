"""Faults of the frame around the engine that users have met: what is installed, shown, sent on and changed.

What else guards against them is in docs/verification.md.
"""

from __future__ import annotations

import copy
import gzip
import json
import tomllib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from nemo_gym.errors import ConfigError
from sglang_model.renderer import load_renderer
from sglang_model.testing import Rule
from sglang_model.testing.tokenizer_folder import write_tokenizer_folder
from tests.support.local_tokenizer import engine_with, make_server, served_by
from tests.support.model_servers import agent, make_sglang, make_vllm
from tests.support.real_server import serving
from tests.support.scripted_engine import ScriptedEngine, completion
from tests.support.socket_servers import Connection, socket_server
from tests.support.turns import assistant, user

CHAT = "/v1/chat/completions"
KEY = "sk-the-engines-key"
ROOT = Path(__file__).resolve().parents[1]


def test_nothing_heavy_is_needed_to_serve():
    """W66, W59: Ray took 25 s and 15 processes, and transformers was needed for chat too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {name.partition(">")[0].partition("=")[0].lower() for name in project["dependencies"]}
    assert not names & {"ray", "torch", "vllm", "sglang", "transformers", "nemo-gym"}


@pytest.mark.parametrize("transport", ["chat", "generate"])
async def test_no_path_of_a_server_shows_its_configuration_or_its_key(transport):
    """W65: the head server gave everybody the whole configuration."""
    server = make_server(engine_with(Rule(reply="x")), transport, api_key=KEY, base_url="http://engine/v1")
    app = server.setup_webserver()
    shown = {"/", "/health", "/metrics", "/openapi.json", "/docs", "/redoc"}
    shown |= {"/global_config_dict_yaml", "/config", "/server_info", "/server_instances"}
    shown |= {path for route in app.routes if (path := getattr(route, "path", None)) and "{" not in path}
    async with agent(server) as client:
        await client.post(CHAT, json={"messages": [user("a")]})
        for path in sorted(shown):
            text = (await client.get(path)).text
            assert KEY not in text, path
            assert "base_url" not in text, path


async def test_the_engines_own_headers_do_not_reach_the_agent():
    """miles#1828, #851: a second Server, a Content-Length of the compressed body."""
    answer = gzip.compress(json.dumps(completion("hi " * 200)).encode())

    async def zipped(connection: Connection) -> None:
        await connection.read_request()
        await connection.answer(
            answer,
            headers=("Content-Encoding: gzip", "Server: engine", "Date: yesterday", "X-Request-Id: engines"),
        )

    async with socket_server(zipped) as engine:
        server = make_sglang(
            None,
            real_sockets=True,
            base_url=engine.url,
            return_token_id_information=False,
            uses_reasoning_parser=False,
        )
        async with serving(server.setup_webserver()) as port, httpx.AsyncClient() as client:
            response = await client.post(f"http://127.0.0.1:{port}{CHAT}", json={"messages": [user("a")]})
        await server.on_shutdown()
    assert response.json()["choices"][0]["message"]["content"] == "hi " * 200
    assert response.headers.get_list("content-length") == [str(len(response.content))]
    for name in ("server", "date", "x-request-id", "content-type"):
        assert len(response.headers.get_list(name)) <= 1
    assert "engine" not in response.headers.get("server", "")
    assert "content-encoding" not in response.headers


@pytest.mark.parametrize("calls", [[], None])
async def test_a_history_goes_out_without_an_empty_list_of_calls(calls):
    """W51, Gym#2583: Llama 3.1's template raises on it, and OpenAI refuses it."""
    engine = ScriptedEngine([completion()])
    messages = [user("a"), assistant("b", tool_calls=calls), user("c")]
    async with agent(make_vllm(engine, return_token_id_information=False)) as client:
        assert (await client.post(CHAT, json={"messages": messages})).status_code == 200
    assert engine.bodies()[0]["messages"] == [user("a"), assistant("b"), user("c")]


@pytest.mark.parametrize("make", [make_vllm, make_sglang])
def test_preparing_a_request_changes_nothing_of_the_callers(make):
    """W80: roles were renamed in the caller's own messages."""
    server = make(
        replace_developer_role_with_system=True,
        chat_template_kwargs={"a": {"b": 1}},
        extra_body={"top_k": 3},
    )
    body = {
        "messages": [
            {"role": "developer", "content": "d"},
            user([{"type": "text", "text": "a"}]),
            assistant("<think>t</think>b", tool_calls=[], prompt_token_ids=[1]),
            assistant([{"type": "refusal", "refusal": "No."}]),
        ],
        "metadata": {"chat_template_kwargs": '{"a": 2}'},
        "tool_choice": "auto",
        "top_logprobs": None,
    }
    before, config = copy.deepcopy(body), copy.deepcopy(server.config.model_dump())
    request = SimpleNamespace(session={"session_id": "x"})
    prepared = server._preprocess_chat_completion_create_params(request, body)
    assert prepared["messages"][0]["role"] == "system"
    assert body == before
    assert server.config.model_dump() == config


@pytest.mark.parametrize("settings", [{}, {"trust_remote_code": True}], ids=["default", "trusted"])
def test_code_of_a_tokenizers_repository_is_not_run_unless_the_configuration_says_so(
    tmp_path, settings, monkeypatch
):
    """W67."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = write_tokenizer_folder(tmp_path / "model")
    marker = tmp_path / "it ran"
    (folder / "own.py").write_text(
        f"import pathlib\npathlib.Path({str(marker)!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast as Own\n"
    )
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
    path.write_text(json.dumps(config))
    with suppress(ConfigError):
        load_renderer(str(folder), **settings)
    assert marker.exists() is bool(settings)


async def test_two_turns_in_one_second_have_ids_of_their_own():
    """W33: every overflow was called `chtcmpl-123`."""
    engine = engine_with(Rule(reply="x"), context_length=16)
    async with served_by(engine, context_length=16) as client:
        body = {"messages": [user("word " * 30)]}
        answers = [(await client.post(CHAT, json=body)).json() for _ in range(2)]
    assert [answer["choices"][0]["finish_reason"] for answer in answers] == ["length", "length"]
    assert answers[0]["id"] != answers[1]["id"]
    assert all(answer["choices"][0]["message"]["prompt_token_ids"] for answer in answers)
