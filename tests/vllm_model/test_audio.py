"""The audio side channel, from metadata into the messages that reach the engine."""

from __future__ import annotations

import base64
import json

import pytest

from nemo_gym.errors import RequestError
from tests.support.model_servers import agent, make_vllm
from tests.support.scripted_engine import ScriptedEngine, completion
from vllm_model.audio import audio_file_to_data_uri, move_audio_into_messages

URI = "data:audio/wav;base64,QUJD"
PART = {"type": "audio_url", "audio_url": {"url": URI}}


def moved(
    messages: list[dict[str, object]], metadata: dict[str, object], audio_root: str | None = None
) -> dict[str, object]:
    return move_audio_into_messages({"messages": messages, "metadata": metadata}, audio_root)


async def test_audio_reaches_the_engine_before_the_text_and_its_key_leaves_the_metadata():
    engine = ScriptedEngine([completion()])
    body = {"messages": [{"role": "user", "content": "hear"}], "metadata": {"audio_data": URI}}
    async with agent(make_vllm(engine, return_token_id_information=False)) as client:
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    sent = engine.bodies()[0]
    assert sent["messages"] == [{"role": "user", "content": [PART, {"type": "text", "text": "hear"}]}]
    assert "metadata" not in sent


@pytest.mark.parametrize("metadata", [None, {}, {"other": "1"}, {"audio_data": ""}, {"audio_path": None}])
def test_without_audio_the_body_is_untouched(metadata):
    body = {"messages": [{"role": "user", "content": "x"}], "metadata": metadata}
    assert move_audio_into_messages(body, None) is body


def test_other_metadata_stays():
    assert moved([{"role": "user", "content": "x"}], {"audio_data": URI, "k": "v"})["metadata"] == {"k": "v"}


def test_parts_of_the_user_message_stay_behind_the_audio():
    text = {"type": "text", "text": "x"}
    assert moved([{"role": "user", "content": [text]}], {"audio_data": URI})["messages"][0]["content"] == [
        PART,
        text,
    ]


def test_null_content_is_replaced():
    assert moved([{"role": "user", "content": None}], {"audio_data": URI})["messages"][0]["content"] == [PART]


def test_the_most_recent_user_message_gets_the_audio():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    result = moved(messages, {"audio_data": URI})["messages"]
    assert result[0] == messages[0]
    assert result[1]["content"][0] == PART
    assert result[2] == messages[2]
    assert messages[1]["content"] == "b"


def test_without_a_user_message_one_is_made():
    result = moved([{"role": "system", "content": "s"}], {"audio_data": URI})["messages"]
    assert result == [{"role": "system", "content": "s"}, {"role": "user", "content": [PART]}]


@pytest.mark.parametrize(
    ("suffix", "subtype"),
    [
        ("wav", "wav"),
        ("flac", "flac"),
        ("mp3", "mpeg"),
        ("m4a", "mp4"),
        ("ogg", "ogg"),
        ("opus", "opus"),
        ("WAV", "wav"),
    ],
)
def test_a_file_becomes_a_data_uri_of_its_kind(tmp_path, suffix, subtype):
    path = tmp_path / f"clip.{suffix}"
    path.write_bytes(b"ABC")
    assert audio_file_to_data_uri(str(path), None) == f"data:audio/{subtype};base64,QUJD"


def test_a_relative_path_starts_from_the_root(tmp_path):
    (tmp_path / "clip.wav").write_bytes(b"ABC")
    url = moved([{"role": "user", "content": "x"}], {"audio_path": "clip.wav"}, str(tmp_path))
    assert url["messages"][0]["content"][0] == PART


def test_a_list_of_paths_gives_one_part_each_in_order(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.wav").write_bytes(name.encode())
    paths = [str(tmp_path / "b.wav"), str(tmp_path / "a.wav")]
    content = moved([{"role": "user", "content": "x"}], {"audio_paths": paths})["messages"][0]["content"]
    payloads = [base64.b64decode(part["audio_url"]["url"].split(",")[1]) for part in content[:2]]
    assert payloads == [b"b", b"a"]


def test_a_relative_path_without_root_names_the_setting():
    with pytest.raises(ValueError, match="audio_root"):
        audio_file_to_data_uri("clip.wav", None)


def test_a_missing_file_is_both_a_request_error_and_a_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.wav") as caught:
        audio_file_to_data_uri(str(tmp_path / "gone.wav"), None)
    assert isinstance(caught.value, RequestError)
    assert str(tmp_path) not in str(caught.value)


def test_an_unknown_extension_lists_the_supported_ones(tmp_path):
    with pytest.raises(ValueError, match=r"\.txt.*\.wav, \.flac"):
        audio_file_to_data_uri(str(tmp_path / "clip.txt"), None)


def test_paths_must_be_a_list():
    with pytest.raises(ValueError, match="audio_paths must be a list of paths, got str"):
        moved([{"role": "user", "content": "x"}], {"audio_paths": "a.wav"})


def test_two_ways_at_once_are_refused_with_both_names():
    with pytest.raises(ValueError, match="audio_data, audio_path together"):
        moved([{"role": "user", "content": "x"}], {"audio_data": URI, "audio_path": "a.wav"})


async def test_a_bad_path_over_http_is_a_400_that_names_the_field(tmp_path):
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "metadata": {"audio_path": str(tmp_path / "gone.wav")},
    }
    async with agent(make_vllm(return_token_id_information=False)) as client:
        response = await client.post("/v1/chat/completions", content=json.dumps(body))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "metadata.audio_path"


@pytest.mark.parametrize("name", ["../outside.wav", "sub/../../outside.wav"])
def test_a_relative_path_cannot_leave_the_root(tmp_path, name):
    (tmp_path / "outside.wav").write_bytes(b"ABC")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    with pytest.raises(RequestError, match="leads out of audio_root"):
        audio_file_to_data_uri(name, str(root))


def test_a_path_with_a_null_character_is_a_request_error():
    with pytest.raises(RequestError, match="no file name"):
        audio_file_to_data_uri("/x\x00b.wav", None)
