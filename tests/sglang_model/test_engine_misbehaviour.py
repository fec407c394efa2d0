"""Each word of the vocabulary in which the engine is told to do wrong: that it does it, and nothing else."""

from __future__ import annotations

import json
import math

import httpx
import pytest
from pydantic import ValidationError

from sglang_model.testing import Abort, Misbehaviour, Rule
from tests.support.engine_client import EngineClient, engine_client

REPLY = "one two three"


async def told(client: EngineClient, **wrong: object) -> tuple[dict[str, object], dict[str, object]]:
    """The choice of a chat answer and a `/generate` item, both under the misbehaviour."""
    client.engine.misbehaviours[:] = [Misbehaviour(**wrong)]
    chat = json.loads((await client.chat("plain")).content)
    item = json.loads((await client.generate("plain", return_prompt_token_ids=True)).content)
    return chat["choices"][0], item


async def right(client: EngineClient) -> tuple[dict[str, object], dict[str, object]]:
    client.engine.misbehaviours.clear()
    chat = (await client.chat("plain")).json()
    item = (await client.generate("plain", return_prompt_token_ids=True)).json()
    return chat["choices"][0], item


def plain_engine(**settings: object):
    return engine_client(rules=(Rule(reply=REPLY),), **settings)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 502, 503, 504])
async def test_any_status_with_a_body_is_answered_without_sampling(status: int) -> None:
    wrong = Misbehaviour(status=status, body={"error": "no"}, retry_after=2)
    async with plain_engine(misbehave=(wrong,)) as client:
        response = await client.chat("plain")
        assert client.engine.samples == []
    assert (response.status_code, response.json()) == (status, {"error": "no"})
    assert response.headers["retry-after"] == "2.0"


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<html>busy</html>", "text/html; charset=utf-8"),
        ("busy", "text/plain; charset=utf-8"),
        ([], "application/json"),
        (None, None),
    ],
)
async def test_the_body_says_what_it_is(body: object, content_type: str | None) -> None:
    async with plain_engine(misbehave=(Misbehaviour(status=200, body=body),)) as client:
        response = await client.generate("plain")
    assert response.headers.get("content-type") == content_type
    assert response.status_code == 200


async def test_the_first_n_requests_fail_and_the_rest_are_normal() -> None:
    async with plain_engine(misbehave=(Misbehaviour(status=503, times=2),)) as client:
        statuses = [(await client.generate("plain")).status_code for _ in range(4)]
    assert statuses == [503, 503, 200, 200]


async def test_a_path_limits_a_misbehaviour_to_it() -> None:
    async with plain_engine(misbehave=(Misbehaviour(status=503, path="^/health"),)) as client:
        health = await client.http.get("/health")
        generation = await client.generate("plain")
    assert (health.status_code, generation.status_code) == (503, 200)


async def test_a_rule_misbehaves_for_its_own_prompts_only() -> None:
    rules = (Rule(when="bad", misbehave=Misbehaviour(status=500, body="x", times=1)), Rule(reply=REPLY))
    async with engine_client(rules=rules) as client:
        good = await client.chat("good")
        bad = await client.chat("bad")
        after = await client.chat("bad")
    assert (good.status_code, bad.status_code, after.status_code) == (200, 500, 200)


async def test_a_rules_misbehaviour_can_be_limited_to_one_endpoint() -> None:
    wrong = Misbehaviour(status=500, path="generate")
    async with engine_client(rules=(Rule(reply=REPLY, misbehave=wrong),)) as client:
        assert (await client.chat("x")).status_code == 200
        assert (await client.generate("x")).status_code == 500


@pytest.mark.parametrize("after", [0, 2])
async def test_a_plain_abort_is_a_200_with_what_was_sampled(after: int) -> None:
    async with plain_engine() as client:
        choice, item = await told(client, abort=Abort(), after_tokens=after)
        ids = client.engine.tokenizer.encode(REPLY)
    reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    assert item["output_ids"] == ids[:after]
    assert item["meta_info"]["finish_reason"] == reason
    assert choice["finish_reason"] == "abort"
    assert choice["matched_stop"] is None
    assert len(choice["meta_info"]["output_token_logprobs"]) == after


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
async def test_an_abort_in_the_queue_reports_no_prompt(version: str) -> None:
    async with plain_engine(version=version) as client:
        choice, item = await told(client, abort=Abort())
        usage = (await client.chat("plain")).json()["usage"]
    assert item["meta_info"]["finish_reason"] == {"type": "abort", "message": "Abort in waiting queue"}
    assert "prompt_tokens" not in item["meta_info"]
    assert item["meta_info"]["output_token_logprobs"] == []
    assert ("prompt_token_ids" in choice) == (version == "0.5.23")
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (0, 0)


@pytest.mark.parametrize(("version", "others"), [("0.5.13", 200), ("0.5.23", 429)])
async def test_the_status_of_an_abort_becomes_the_http_status(version: str, others: int) -> None:
    async with plain_engine(version=version) as client:
        for status in (500, 503):
            wrong = Misbehaviour(abort=Abort(message="gone", status_code=status), after_tokens=1)
            client.engine.misbehaviours[:] = [wrong]
            for response in (await client.chat("plain"), await client.generate("plain")):
                assert response.status_code == status
                assert response.json() == {
                    "object": "error",
                    "message": "gone",
                    "type": str(status),
                    "param": None,
                    "code": status,
                }
        client.engine.misbehaviours[:] = [Misbehaviour(abort=Abort(message="slow", status_code=429))]
        assert (await client.chat("plain")).status_code == others


async def test_an_abort_with_400_has_the_body_of_each_endpoints_refusal() -> None:
    async with plain_engine() as client:
        client.engine.misbehaviours[:] = [Misbehaviour(abort=Abort(message="bad", status_code=400))]
        chat, native = await client.chat("plain"), await client.generate("plain")
    assert (chat.status_code, chat.json()["type"]) == (400, "BadRequestError")
    assert (native.status_code, native.json()) == (400, {"error": {"message": "bad"}})


async def test_a_phantom_has_an_entry_and_no_token() -> None:
    async with plain_engine() as client:
        choice, item = await told(client, phantom=True)
    assert (item["output_ids"], item["text"]) == ([], "")
    for meta in (choice["meta_info"], item["meta_info"]):
        assert meta["completion_tokens"] == 0
        assert len(meta["output_token_logprobs"]) == 1


@pytest.mark.parametrize("entries", [-2, -1, 1, 2])
async def test_logprob_entries_are_too_many_or_too_few(entries: int) -> None:
    async with plain_engine() as client:
        choice, item = await told(client, logprob_entries=entries)
    for meta in (choice["meta_info"], item["meta_info"]):
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] + entries
    assert len(item["output_ids"]) == item["meta_info"]["completion_tokens"]


@pytest.mark.parametrize("value", [3.0, True, None, "12", -1])
async def test_the_last_id_is_reported_as_something_else_everywhere(value: object) -> None:
    async with plain_engine(version="0.5.23") as client:
        choice, item = await told(client, sampled_id=value)
        both = (await client.chat("plain", return_token_ids=True)).json()["choices"][0]
        truth = client.engine.samples[-1].token_ids[-1]
    for ids in (item["output_ids"], both["response_token_ids"]):
        assert ids[-1] is value or ids[-1] == value
        assert type(ids[-1]) is type(value)
    assert type(choice["meta_info"]["output_token_logprobs"][-1][1]) is type(value)
    assert truth == client.engine.tokenizer.eos_token_id


@pytest.mark.parametrize("value", [None, "x", 1, True])
async def test_the_last_logprob_is_reported_as_something_else(value: object) -> None:
    async with plain_engine() as client:
        choice, item = await told(client, logprob=value)
    for meta in (choice["meta_info"], item["meta_info"]):
        assert meta["output_token_logprobs"][-1][0] == value
        assert isinstance(meta["output_token_logprobs"][0][0], float)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
async def test_a_logprob_that_is_no_number_is_written_as_python_writes_it(value: float) -> None:
    async with plain_engine() as client:
        client.engine.misbehaviours[:] = [Misbehaviour(logprob=value)]
        text = (await client.generate("plain")).text
    assert {math.inf: "[Infinity,", -math.inf: "[-Infinity,"}.get(value, "[NaN,") in text


async def test_a_wrong_echo_differs_in_the_last_prompt_id_only() -> None:
    async with plain_engine() as client:
        good = await right(client)
        bad = await told(client, wrong_echo=True)
    for before, after in zip(good, bad, strict=True):
        assert after["prompt_token_ids"][:-1] == before["prompt_token_ids"][:-1]
        assert after["prompt_token_ids"][-1] == before["prompt_token_ids"][-1] + 1


async def test_paths_are_deleted_and_replaced() -> None:
    async with plain_engine() as client:
        wrong = {
            "delete": (
                "choices.*.meta_info.prompt_tokens",
                "meta_info.prompt_tokens",
                "nowhere.at.all",
                "choices.x.y",
            ),
            "replace": {"choices.0.finish_reason": "odd", "meta_info.weight_version": 5, "output_ids.0": "x"},
        }
        choice, item = await told(client, **wrong)
    assert "prompt_tokens" not in choice["meta_info"]
    assert "prompt_tokens" not in item["meta_info"]
    assert choice["finish_reason"] == "odd"
    assert (item["meta_info"]["weight_version"], item["output_ids"][0]) == (5, "x")


async def test_elements_of_a_list_are_deleted_and_replaced() -> None:
    async with plain_engine() as client:
        _, item = await told(client, delete=("output_ids.0",), replace={"prompt_token_ids.*": 7})
        _, emptied = await told(client, delete=("output_ids.*",))
    assert len(item["output_ids"]) == item["meta_info"]["completion_tokens"] - 1
    assert set(item["prompt_token_ids"]) == {7}
    assert emptied["output_ids"] == []


async def test_an_object_is_wrapped_in_a_list() -> None:
    async with plain_engine(misbehave=(Misbehaviour(as_list=True),)) as client:
        body = (await client.chat("plain")).json()
    assert isinstance(body, list)
    assert body[0]["object"] == "chat.completion"


async def test_what_is_not_mentioned_stays_right() -> None:
    async with plain_engine() as client:
        good, _ = await right(client)
        bad, _ = await told(client, sampled_id="x")
    good["meta_info"]["output_token_logprobs"][-1][1] = "x"
    for choice in (good, bad):
        for key in (
            "id",
            "e2e_latency",
            "response_sent_to_client_ts",
            "cached_tokens",
            "cached_tokens_details",
        ):
            del choice["meta_info"][key]
    assert bad == good


async def test_a_truncated_body_is_complete_for_http_and_not_for_json() -> None:
    async with plain_engine(misbehave=(Misbehaviour(truncate_at=25),)) as client:
        response = await client.generate("plain")
    assert (response.status_code, len(response.content)) == (200, 25)
    assert response.headers["content-length"] == "25"
    with pytest.raises(ValueError, match="Unterminated"):
        response.json()


@pytest.mark.parametrize("cut_at", [0, 10])
async def test_a_cut_connection_is_a_protocol_error_in_process(cut_at: int) -> None:
    async with plain_engine(misbehave=(Misbehaviour(cut_at=cut_at),)) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=f"after {cut_at} bytes"):
            await client.generate("plain")


async def test_a_negative_prompt_id_takes_the_connection_down() -> None:
    async with plain_engine() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.generate(input_ids=[-5])
        with pytest.raises(httpx.RemoteProtocolError):
            await client.chat("x", input_ids=[1, -1])
        assert client.engine.samples == []


async def test_an_id_beyond_the_vocabulary_is_not_noticed() -> None:
    async with plain_engine() as client:
        response = await client.generate(input_ids=[10**9])
    assert response.status_code == 200


def test_a_word_that_is_not_in_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValidationError, match="statsu"):
        Misbehaviour(statsu=500)


async def test_a_misbehaviour_of_an_endpoint_that_generates_nothing_edits_its_answer() -> None:
    wrong = Misbehaviour(path="/server_info", replace={"allow_auto_truncate": True}, delete=("version",))
    async with plain_engine(misbehave=(wrong,)) as client:
        info = (await client.http.get("/server_info")).json()
    assert info["allow_auto_truncate"] is True
    assert "version" not in info
