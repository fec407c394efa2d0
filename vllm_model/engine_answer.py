"""The outline of an engine's chat answer: what must be there before any field of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

from pydantic import BaseModel, ValidationError

from nemo_gym.errors import RequestError, UpstreamContractError
from nemo_gym.token_metadata import TOKEN_FIELDS, LogProbs, TokenIds
from vllm_model.chat_body import Body, Message

Model = TypeVar("Model", bound=BaseModel)


def choices_of(completion: Mapping[str, object], server: str) -> list[Body]:
    """The choices, at least one, each with a message. Raises UpstreamContractError."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices:
        came = f"{len(choices)} choices" if isinstance(choices, list) else type(choices).__name__
        raise UpstreamContractError(
            f"{server}: expected the engine's answer to have a list of choices, got {came}"
        )
    for index, choice in enumerate(choices):
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            raise UpstreamContractError(f"{server}: choices[{index}] of the engine's answer has no message")
    return choices


def check_usage(completion: Mapping[str, object], server: str) -> None:
    """`usage`, where the engine reports it, must count. Raises UpstreamContractError."""
    usage = completion.get("usage")
    if usage is None:
        return
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    counts = [usage.get(name) for name in names] if isinstance(usage, Mapping) else [None]
    if not all(type(count) is int and count >= 0 for count in counts):
        raise UpstreamContractError(
            f"{server}: expected the engine's usage to have {', '.join(names)} as integers of at least 0"
        )


def message_of(choice: Body) -> Message:
    """The message of a choice that `choices_of` let pass."""
    return cast("Message", choice["message"])


def read_token_ids(message: Message, server: str) -> None:
    """Read the ids that the engine put on the message itself, if any: until then they are text that nobody
    has looked at.

    Raises UpstreamContractError for what is no list of ids or log probabilities.
    """
    for name in TOKEN_FIELDS:
        carried = message.get(name)
        try:
            if isinstance(carried, TokenIds | LogProbs):
                carried.read(name)
        except ValueError as error:
            raise UpstreamContractError(
                f"{server}: the engine's token ids cannot be used: {error}"
            ) from error


def validated(model: type[Model], answer: Mapping[str, object], server: str) -> Model:
    """The answer as `model`. Raises UpstreamContractError that names the fields at fault, never their
    values.
    """
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in found]
        raise UpstreamContractError(
            f"{server}: the engine's answer is no {model.__name__}: {'; '.join(problems[:5])}"
        ) from error


@contextmanager
def read_as_engine_answer(server: str) -> Iterator[None]:
    """Around a conversion of the engine's answer: what it refuses is the engine's fault, never the
    caller's.

    The converter also reads what callers send, so its error is a RequestError. Raises UpstreamContractError
    instead.
    """
    try:
        yield
    except RequestError as error:
        raise UpstreamContractError(f"{server}: the engine's answer is no turn: {error.message}") from error
