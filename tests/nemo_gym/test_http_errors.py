"""What becomes of an engine's refusal: its own words, bounded, without what it repeats of the request."""

from __future__ import annotations

import httpx
import orjson
import pytest

from nemo_gym.http_errors import MAX_MESSAGE_CHARS, engine_message, status_error

# As captured from SGLang 0.5.13, shortened.
ECHOED_BODY = orjson.dumps(
    {
        "object": "error",
        "message": "1 validation error:\n  {'type': 'dataclass_type', 'loc': ('body',), "
        "'msg': 'Input should be a dictionary', 'input': b'{\"text\": \"a private prompt\"}'}",
        "type": "Bad Request",
        "param": None,
        "code": 400,
    }
)
HTML_PAGE = (
    b"<!DOCTYPE html><html><head><style>p{}</style><title>502 Bad Gateway</title></head>"
    b"<body><h1>502 Bad Gateway</h1><!-- x --><hr>nginx</body></html>"
)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"object":"error","message":"The request queue is full.","code":503}',
            "The request queue is full.",
        ),
        (b'{"error":{"message":"input_ids cannot be empty."}}', "input_ids cannot be empty."),
        (b'{"error":"Unauthorized"}', "Unauthorized"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b"Internal Server Error", "Internal Server Error"),
        (b'"SGLang is running"', "SGLang is running"),
        (b"", "(empty body)"),
        (b"  \n ", "(empty body)"),
        (b'{"unknown":"shape"}', '{"unknown":"shape"}'),
        (b"[]", "[]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (
            b'{"detail":[{"loc":["body","n"],"msg":"too small","type":"x","input":"a private prompt"}]}',
            "body.n: too small",
        ),
        (HTML_PAGE, "502 Bad Gateway 502 Bad Gateway nginx"),
    ],
)
def test_message_of_every_known_shape_is_found(body: bytes, message: str) -> None:
    assert engine_message(body) == message


@pytest.mark.parametrize("key", ["input", "messages", "prompt", "text", "content"])
@pytest.mark.parametrize(
    "echo",
    [
        """{{'{key}': [{{'role': 'user', 'x': 'a private prompt'}}]}}""",
        """{{'{key}' : 'a private prompt'}}""",
        """{{'{key}': b'a private prompt'}}""",
        """{{'{key}': ('a private prompt',)}}""",
        """{{"{key}":{{"x":"a private prompt"}}}}""",
        """{{"{key}": "a private prompt"}}""",
        """'{{"{key}": ["a private prompt"]}}'""",
        """"{{\\"{key}\\": \\"a private prompt\\"}}\"""",
    ],
)
def test_a_part_of_the_request_that_the_engine_repeats_is_cut_off(key: str, echo: str) -> None:
    body = {"message": f"The template failed on {echo.format(key=key)} and more", "code": 400}
    message = engine_message(orjson.dumps(body))
    assert message.startswith("The template failed on ")
    assert message.endswith(": (cut)")
    assert "private" not in message


@pytest.mark.parametrize(
    "words",
    [
        "the 'messages' field is required",
        "loc: ('body', 'messages', 0, 'content'): Field required",
        "'prompt': expected a text or token ids",
        "'content': null is not allowed",
    ],
)
def test_a_key_that_no_value_follows_is_not_cut(words: str) -> None:
    assert engine_message(orjson.dumps({"message": words})) == words


def test_prompt_that_the_engine_repeats_is_cut_off() -> None:
    message = engine_message(ECHOED_BODY)
    assert "Input should be a dictionary" in message
    assert "private" not in message


@pytest.mark.parametrize(
    "body", [b"word " * 100_000, b'{"message":"' + b"word " * 100_000 + b'"}', b"<" * 3_000_000]
)
def test_message_is_bounded(body: bytes) -> None:
    assert len(engine_message(body)) <= MAX_MESSAGE_CHARS


def test_deeply_nested_body_is_no_error() -> None:
    assert len(engine_message(b'{"error":' * 1000 + b'"deep"' + b"}" * 1000)) <= MAX_MESSAGE_CHARS


def test_secret_that_the_engine_repeats_is_blotted_out() -> None:
    assert engine_message(b'{"error":"bad key sk-123"}', secret="sk-123") == "bad key ***"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirect_points_at_base_url_without_repeating_credentials(status: int) -> None:
    response = httpx.Response(
        status,
        headers={"location": "http://user:password@elsewhere:1/v1?token=1"},
        request=httpx.Request("POST", "http://engine/generate"),
    )
    error = status_error(response, where="policy: POST /generate at engine:80")
    assert (error.status, error.status_code) == (status, 500)
    assert "http://elsewhere:1/v1;" in error.message
    assert "base_url" in error.message
    assert not any(word in error.message for word in ("password", "token"))


def test_redirect_to_nowhere_is_still_explained() -> None:
    response = httpx.Response(304, request=httpx.Request("GET", "http://engine/"))
    assert "base_url" in status_error(response, where="x").message
