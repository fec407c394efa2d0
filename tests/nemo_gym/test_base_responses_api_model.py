from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import weakref
from pathlib import Path
from unittest.mock import MagicMock

import httpx
import orjson
import pytest
from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from nemo_gym.base_responses_api_model import BaseResponsesAPIModelConfig, SimpleResponsesAPIModel
from nemo_gym.errors import UpstreamContractError
from nemo_gym.openai_utils import (
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.response_headers import add_response_header
from nemo_gym.server_utils import ServerClient
from tests.support.model_server import (
    CHAT_BODY,
    CHAT_COMPLETION,
    ScriptedModel,
    client_for,
    config_for,
    post_chat,
    response_object,
    scripted_model,
)
from tests.support.real_server import serving


class WithoutRequest(SimpleResponsesAPIModel):
    """NeMo Gym's other kind of handler: the body alone."""

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming
    ) -> NeMoGymChatCompletion:
        return NeMoGymChatCompletion.model_validate(CHAT_COMPLETION | {"model": body.model or "none"})

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        return NeMoGymResponse.model_validate(response_object(model=body.model or "none"))


def without_request() -> WithoutRequest:
    return WithoutRequest(
        config=config_for(), server_client=MagicMock(spec=ServerClient, global_config_dict={})
    )


async def test_handlers_with_and_without_a_request_are_served() -> None:
    for model in (scripted_model(), without_request()):
        async with client_for(model.setup_webserver()) as client:
            chat = await post_chat(client)
            responses = await client.post("/v1/responses", json={"input": "hi"})
            messages = await client.post(
                "/v1/messages", json={"messages": CHAT_BODY["messages"], "model": "x"}
            )
        assert NeMoGymChatCompletion.model_validate(chat.json()).choices[0].message.content == "hello"
        assert NeMoGymResponse.model_validate(responses.json()).output[0].content[0].text == "hello"  # type: ignore[union-attr]
        assert messages.json()["content"] == [{"type": "text", "text": "hello"}]
        assert messages.json()["model"] == "x"


async def test_a_handler_without_annotations_is_known_by_the_name_of_its_parameter() -> None:
    class Untyped(WithoutRequest):
        async def chat_completions(self, request, body):  # type: ignore[no-untyped-def,override]
            return {"path": request.url.path, "messages": len(body.messages)}

    model = Untyped(config=config_for(), server_client=ServerClient(global_config_dict={}))
    async with client_for(model.setup_webserver()) as client:
        assert (await post_chat(client)).json() == {"path": "/v1/chat/completions", "messages": 1}


async def test_handlers_get_validated_bodies() -> None:
    model = scripted_model()
    async with client_for(model.setup_webserver()) as client:
        await post_chat(client)
        await client.post("/v1/responses", json={"input": "hi", "top_k": 5})
        await client.post("/v1/messages", json={"messages": CHAT_BODY["messages"], "max_tokens": 7})
    chat, responses, messages = model._bodies
    assert isinstance(chat, NeMoGymChatCompletionCreateParamsNonStreaming)
    assert isinstance(responses, NeMoGymResponseCreateParamsNonStreaming)
    assert responses.top_k == 5
    assert isinstance(messages, NeMoGymResponseCreateParamsNonStreaming)
    assert messages.max_output_tokens == 7


async def test_a_wrong_field_answers_400_on_every_dialect() -> None:
    async with client_for(scripted_model().setup_webserver()) as client:
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            response = await client.post(path, json={"temprature": 1, "input": "hi", **CHAT_BODY})
            assert response.status_code == 400, path
            assert response.json()["error"]["type"] == "invalid_request_error"


async def test_max_request_bytes_bounds_the_body() -> None:
    async with client_for(scripted_model(max_request_bytes=10).setup_webserver()) as client:
        response = await post_chat(client)
    assert response.status_code == 413
    assert "max_request_bytes of the server is 10" in response.json()["error"]["message"]


def test_a_plain_test_client_sees_error_objects_without_run_webserver() -> None:
    app = scripted_model().raising(UpstreamContractError("11 logprobs")).setup_webserver()
    response = TestClient(app).post("/v1/chat/completions", json=CHAT_BODY)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "upstream_contract"


async def test_every_answer_has_a_request_id_and_one_session_cookie() -> None:
    async with client_for(scripted_model().setup_webserver()) as client:
        for path in ("/", "/health", "/metrics"):
            response = await client.get(path)
            assert len(response.headers["x-request-id"]) == 32
            assert len(response.headers.get_list("set-cookie")) == 1
            assert "ScriptedModel___policy_model=" in response.headers["set-cookie"]


async def test_the_session_is_kept_from_call_to_call() -> None:
    model = scripted_model()
    async with client_for(model.setup_webserver()) as client:
        await post_chat(client)
        await client.post("/v1/responses", json={"input": "hi"})
        await client.post("/v1/messages", json={"messages": CHAT_BODY["messages"]})
    async with client_for(model.setup_webserver()) as client:
        await post_chat(client)
    assert len(set(model._sessions[:3])) == 1
    assert model._sessions[3] != model._sessions[0]


async def test_a_configured_secret_lets_another_server_accept_the_cookie() -> None:
    shared = "a secret of the launch"
    one, other, stranger = (scripted_model(session_secret=secret) for secret in (shared, shared, None))
    async with client_for(one.setup_webserver()) as client:
        await post_chat(client)
        cookies = dict(client.cookies)
    for model in (other, stranger):
        async with client_for(model.setup_webserver(), cookies=cookies) as client:
            await post_chat(client)
    assert other._sessions == one._sessions
    assert stranger._sessions != one._sessions


async def test_the_secret_of_the_launch_is_used_when_none_is_configured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NEMO_GYM_SESSION_SECRET", "shared by the workers")
    one, other = scripted_model(), scripted_model()
    async with client_for(one.setup_webserver()) as client:
        await post_chat(client)
        cookies = dict(client.cookies)
    async with client_for(other.setup_webserver(), cookies=cookies) as client:
        await post_chat(client)
    assert other._sessions == one._sessions


def test_the_secret_is_not_shown() -> None:
    config = config_for(session_secret="a secret of the launch")
    assert "a secret" not in repr(config)


@pytest.mark.parametrize(
    "fields", [{"session_secret": "short"}, {"max_request_bytes": 0}, {"max_request_byte": 1}]
)
def test_settings_that_cannot_be_meant_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        config_for(**fields)


async def test_health_says_ok_and_liveness_does_not_ask_the_engine() -> None:
    class Sick(WithoutRequest):
        async def check_engine(self) -> None:
            raise UpstreamContractError("the engine is of another version")

    well, sick = (
        without_request(),
        Sick(config=config_for(), server_client=ServerClient(global_config_dict={})),
    )
    async with client_for(well.setup_webserver()) as client:
        assert (await client.get("/health")).json() == {"status": "ok"}
    async with client_for(sick.setup_webserver()) as client:
        response = await client.get("/health")
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the engine is of another version"
        assert (await client.get("/")).json() == {"status": "ok"}


async def test_a_handler_can_add_headers_and_answer_with_a_response_of_its_own() -> None:
    async def behave(request: Request) -> Response:
        add_response_header(request, "x-sglang-history", "new")
        return Response(b"{}", status_code=202, media_type="application/json")

    async with client_for(scripted_model().behave(behave).setup_webserver()) as client:
        response = await post_chat(client)
    assert response.status_code == 202
    assert response.headers["x-sglang-history"] == "new"


async def test_a_plugin_may_declare_a_body_of_its_own() -> None:
    class Params(BaseModel):
        prompt: str

    class Plugin(WithoutRequest):
        async def chat_completions(self, body: Params) -> dict[str, str]:  # type: ignore[override]
            return {"echo": body.prompt}

    Plugin.chat_completions.__annotations__["body"] = Params  # a local class cannot be found by its name
    plugin = Plugin(config=config_for(), server_client=ServerClient(global_config_dict={}))
    async with client_for(plugin.setup_webserver()) as client:
        assert (await client.post("/v1/chat/completions", json={"prompt": "hi"})).json() == {"echo": "hi"}
        assert (await client.post("/v1/chat/completions", json={})).json()["error"]["param"] == "prompt"


async def test_an_annotation_that_only_type_checkers_see_means_the_usual_body() -> None:
    class Plugin(WithoutRequest):
        async def chat_completions(self, body: OnlyForTypeCheckers) -> dict[str, str]:  # type: ignore # noqa: F821,PGH003
            return {"body": type(body).__name__}

    plugin = Plugin(config=config_for(), server_client=ServerClient(global_config_dict={}))
    async with client_for(plugin.setup_webserver()) as client:
        assert (await post_chat(client)).json() == {"body": "NeMoGymChatCompletionCreateParamsNonStreaming"}


async def test_a_plugin_may_have_fields_private_state_and_a_post_init() -> None:
    class Plugin(WithoutRequest):
        extra: dict[str, int] = Field(default_factory=dict)
        _state: list[str] = PrivateAttr(default_factory=list)

        def model_post_init(self, context: object) -> None:
            self._post_init()

        def _post_init(self) -> None:
            self._state.append("ready")
            self._undeclared_by_gym = 1

        _undeclared_by_gym: int = 0

    plugin = Plugin(config=config_for(), server_client=ServerClient(global_config_dict={}))
    assert plugin._state == ["ready"]
    plugin.metrics.count("works")


async def test_big_token_lists_are_answered_as_they_are() -> None:
    ids = list(range(50_000))
    message = {
        "role": "assistant", "content": "x", "prompt_token_ids": ids,
        "generation_token_ids": [7], "generation_log_probs": [-0.5],
    }  # fmt: skip
    completion = CHAT_COMPLETION | {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}

    async def behave(_request: Request) -> object:
        return NeMoGymChatCompletion.model_validate(completion)

    async with client_for(scripted_model().behave(behave).setup_webserver()) as client:
        answered = orjson.loads((await post_chat(client)).content)["choices"][0]["message"]
    assert answered["prompt_token_ids"] == ids
    assert answered["generation_log_probs"] == [-0.5]


async def counted(model: ScriptedModel, series: str) -> None:
    """Wait until the server's metrics say `series`, and let it work meanwhile."""
    async with asyncio.timeout(5):
        while series.encode() not in model.metrics.exposition():  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0)


async def test_a_client_that_leaves_cancels_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_for_the_engine(_request: Request) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    model = scripted_model().behave(wait_for_the_engine)
    async with serving(model.setup_webserver()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        body = orjson.dumps(CHAT_BODY)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await asyncio.wait_for(entered.wait(), 5)
        assert not cancelled.is_set()
        writer.close()
        await asyncio.wait_for(cancelled.wait(), 5)
        await counted(model, 'status="499"')
    gc.collect()  # a task whose exception nobody took would complain now
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_leaves_while_sending_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    model = scripted_model()
    async with serving(model.setup_webserver()) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"mess')
        await writer.drain()
        await counted(model, 'nemo_gym_requests_in_progress{worker="main"} 1.0')
        writer.close()
        await counted(model, 'status="499"')
    assert model._bodies == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_stopping_the_server_is_not_taken_for_a_client_that_left() -> None:
    entered = asyncio.Event()
    seen: list[BaseException] = []

    async def wait_for_the_engine(_request: Request) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as exc:
            seen.append(exc)
            raise

    model = scripted_model().behave(wait_for_the_engine)
    async with client_for(model.setup_webserver()) as client:
        call = asyncio.create_task(post_chat(client))
        await entered.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert len(seen) == 1


async def test_a_turn_that_a_stopping_server_gives_up_is_a_503_with_a_reason() -> None:
    entered = asyncio.Event()

    async def wait_for_the_engine(_request: Request) -> None:
        entered.set()
        await asyncio.Event().wait()

    model = scripted_model().behave(wait_for_the_engine)
    async with httpx.AsyncClient() as client:
        async with serving(model.setup_webserver()) as port:
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            call = asyncio.create_task(
                client.post(url, json={"messages": [{"role": "user", "content": "x"}]})
            )
            await entered.wait()
        answer = await call
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "server_stopping"
    assert answer.headers["x-request-id"]


def test_the_config_documents_its_knobs() -> None:
    for name in ("max_request_bytes", "session_secret"):
        assert BaseResponsesAPIModelConfig.model_fields[name].description


def test_no_request_waits_for_a_shape_to_be_built():
    """In a process of its own: other tests have built some of them."""
    program = (
        "import asyncio\n"
        "from pydantic import BaseModel\n"
        "from nemo_gym import openai_utils\n"
        "from tests.support.model_server import scripted_model\n"
        "def unbuilt():\n"
        "    shapes = [one for one in vars(openai_utils).values() if isinstance(one, type)]\n"
        "    return sum(not one.__pydantic_complete__ for one in shapes if issubclass(one, BaseModel))\n"
        "async def start():\n"
        "    app = scripted_model().setup_webserver()\n"
        "    print(unbuilt() > 0)\n"
        "    async with app.router.lifespan_context(app):\n"
        "        print(unbuilt())\n"
        "asyncio.run(start())\n"
    )
    command = [sys.executable, "-c", program]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603
    assert run.stdout.split() == ["True", "0"]


@pytest.mark.parametrize("failure", [None, UpstreamContractError, RuntimeError])
async def test_nothing_of_a_request_is_left_for_the_garbage_collector(failure: type[Exception] | None):
    requests: list[weakref.ref[Request]] = []

    async def behave(request: Request) -> None:
        requests.append(weakref.ref(request))
        await asyncio.sleep(0)
        if failure is not None:
            raise failure("boom")

    app = scripted_model().behave(behave).setup_webserver()
    gc.collect()
    gc.disable()
    logging.disable()  # pytest keeps what is logged
    try:
        async with client_for(app) as client:
            for _ in range(3):
                await post_chat(client)
        await asyncio.sleep(0)
        assert [request() for request in requests] == [None] * 3
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
