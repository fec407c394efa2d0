"""The audio side channel: audio named in `metadata` becomes an audio_url part of the last user message.

Gym's rows are JSON, and their messages carry no audio; the metadata does. Keys: `audio_data` (a data URI),
`audio_path` (one file), `audio_paths` (several). Exactly one may be used.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from nemo_gym.errors import RequestError

Message = dict[str, object]

AUDIO_KEYS = ("audio_data", "audio_path", "audio_paths")
MIME_SUBTYPES = {
    ".wav": "wav",
    ".flac": "flac",
    ".mp3": "mpeg",
    ".m4a": "mp4",
    ".ogg": "ogg",
    ".opus": "opus",
}


class AudioFileNotFoundError(RequestError, FileNotFoundError):
    """Also a FileNotFoundError, as in Gym."""

    def __str__(self) -> str:
        return self.message


def move_audio_into_messages(body: dict[str, object], audio_root: str | None) -> dict[str, object]:
    """A body whose audio metadata has become message parts; the same body when there is none.

    The consumed keys leave `metadata`, and an emptied `metadata` leaves the body. Raises RequestError.
    """
    metadata = body.get("metadata")
    if not isinstance(metadata, Mapping):
        return body
    present = [key for key in AUDIO_KEYS if metadata.get(key)]
    if len(present) > 1:
        raise RequestError(
            f"metadata may name audio in one way only, got {', '.join(present)} together",
            param=f"metadata.{present[1]}",
        )
    if not present:
        return body
    urls = _audio_urls(present[0], metadata[present[0]], audio_root)
    rest = {key: value for key, value in metadata.items() if key not in AUDIO_KEYS}
    moved = {key: value for key, value in body.items() if key != "metadata"}
    if rest:
        moved["metadata"] = rest
    messages = moved.get("messages")
    moved["messages"] = _with_audio(messages if isinstance(messages, list) else [], urls)
    return moved


def audio_file_to_data_uri(audio_path: str, audio_root: str | None) -> str:
    """The file as a data URI. Raises RequestError for a path that cannot be resolved, read or typed."""
    path = Path(audio_path)
    if not path.is_absolute():
        if audio_root is None:
            raise RequestError(
                "a relative metadata.audio_path needs the server setting audio_root",
                param="metadata.audio_path",
            )
        path = (Path(audio_root) / path).resolve()
        if not path.is_relative_to(Path(audio_root).resolve()):
            raise RequestError("metadata.audio_path leads out of audio_root", param="metadata.audio_path")
    subtype = MIME_SUBTYPES.get(path.suffix.lower())
    if subtype is None:
        raise RequestError(
            f"unsupported audio file extension {path.suffix!r}; supported: {', '.join(MIME_SUBTYPES)}",
            param="metadata.audio_path",
        )
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else "the name is no file name"
        raise AudioFileNotFoundError(
            f"the audio file {path.name!r} cannot be read: {reason}", param="metadata.audio_path"
        ) from error
    return f"data:audio/{subtype};base64,{base64.b64encode(content).decode('ascii')}"


def _audio_urls(key: str, value: object, audio_root: str | None) -> list[str]:
    if key == "audio_data":
        return [str(value)]
    if key == "audio_path":
        return [audio_file_to_data_uri(str(value), audio_root)]
    if not isinstance(value, list):
        raise RequestError(
            f"metadata.audio_paths must be a list of paths, got {type(value).__name__}",
            param="metadata.audio_paths",
        )
    return [audio_file_to_data_uri(str(path), audio_root) for path in value]


def _with_audio(messages: list[Message], urls: list[str]) -> list[Message]:
    """Audio parts stand before the content of the last user message, which is made when there is none."""
    parts: list[object] = [{"type": "audio_url", "audio_url": {"url": url}} for url in urls]
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].get("role") != "user":
            continue
        content = messages[index].get("content")
        if isinstance(content, str):
            parts.append({"type": "text", "text": content})
        elif isinstance(content, list):
            parts.extend(content)
        return [*messages[:index], {**messages[index], "content": parts}, *messages[index + 1 :]]
    return [*messages, {"role": "user", "content": parts}]
