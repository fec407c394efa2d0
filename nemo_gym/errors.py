"""What can go wrong, and which HTTP status it has.

    GymError (RuntimeError)                     500
    ├── ConfigError (ValueError)                500  start-up; names the key and the file
    ├── RequestError (ValueError)               400  the caller's input; names the field
    │   └── RequestTooLargeError                413  the body is over `max_request_bytes`
    ├── ServerStoppingError                     503  this server ends; the turn was given up
    └── UpstreamError                           500  the engine's side
        ├── UpstreamStatusError                 its status if 4xx, else 500; the engine's own message
        │   └── ContextOverflowError            400  the prompt does not fit into the context window
        ├── UpstreamUnavailableError            503  after bounded retries; only what can pass with time
        ├── UpstreamContractError               500  answered 200, but the answer cannot be used
        └── GenerationAbortedError              503  finish_reason "abort": never a turn

A failure that a second try cannot mend never has the status 502, 503 or 504: NeMo Gym's HTTP client repeats those
without end. Every class answers as an OpenAI error object through `body()`; one handler turns it into a response.
Messages give numbers and the knob to change; never prompts, token ids or keys.
"""

from __future__ import annotations

from typing import ClassVar, TypedDict


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The error object of the OpenAI API."""

    error: ErrorDetail


class GymError(RuntimeError):
    """Root of the tree. `param` names the field or key at fault, `code` is for programs to read."""

    status_code: int = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def body(self) -> ErrorBody:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ConfigError(GymError, ValueError):
    """The configuration cannot be used. Raised at start-up, before a port is opened."""

    type = "configuration_error"


class RequestError(GymError, ValueError):
    """The caller sent something that cannot be served; `param` is the path of the field."""

    status_code = 400
    type = "invalid_request_error"


class RequestTooLargeError(RequestError):
    status_code = 413
    code = "request_too_large"


class ServerStoppingError(GymError):
    """This server is told to end, and does not wait for its turns any longer. Nothing of them is kept."""

    status_code = 503
    code = "server_stopping"


class UpstreamError(GymError):
    """Something is wrong on the engine's side of the wire."""

    type = "upstream_error"


class UpstreamStatusError(UpstreamError):
    """The engine answered with an error status.

    `status` is the engine's; `response_content` its raw body, also after retries, and `engine_message` the sentence
    in it. A 4xx is relayed under its own status, because it is the caller's to mend; everything else is a 500.
    """

    code = "upstream_status"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        response_content: bytes,
        engine_message: str = "",
        code: str | None = None,
    ) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.response_content = response_content
        self.engine_message = engine_message
        self.status_code = status if 400 <= status < 500 else 500


class ContextOverflowError(UpstreamStatusError):
    """The prompt does not fit into the engine's context window. Nothing was cut and nothing was sampled."""

    type = "invalid_request_error"

    def __init__(self, message: str, *, response_content: bytes = b"") -> None:
        super().__init__(
            message, status=400, response_content=response_content, code="context_length_exceeded"
        )


class UpstreamUnavailableError(UpstreamError):
    """The engine could not be reached, or said that it is busy, for as long as the retries lasted.

    `status` is the last status seen (None when there was no answer at all), `response_content` its body.
    `retry_after` is what the engine asked for, in seconds. `unreachable` is true when no connection could be made or
    kept, so that another replica may serve the request without its being served twice.
    """

    status_code = 503
    code = "upstream_unavailable"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        response_content: bytes = b"",
        retry_after: float | None = None,
        unreachable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.response_content = response_content
        self.retry_after = retry_after
        self.unreachable = unreachable


class UpstreamContractError(UpstreamError):
    """The engine answered 200 with something unusable: missing, misaligned, non-finite, not what was sent."""

    code = "upstream_contract"


class GenerationAbortedError(UpstreamError):
    """The engine gave up the generation (preemption, weight update, shutdown). A partial turn is no turn."""

    status_code = 503
    code = "generation_aborted"
