"""Calls to an inference engine that speaks the OpenAI API, and SGLang's own endpoints beside it.

Knows URLs, headers, JSON and what an answer must be at the least: one JSON object. Must not know what is
inside it, nor what a token is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import httpx
import msgspec
import orjson

from nemo_gym import json_ids
from nemo_gym.errors import (
    ConfigError,
    RequestError,
    UpstreamContractError,
)
from nemo_gym.http_errors import describe, status_error
from nemo_gym.http_pool import HTTPPool
from nemo_gym.loop_time import give_way
from nemo_gym.token_ids import TokenIds

JSONObject: TypeAlias = dict[str, object]

HEALTH_TIMEOUT = 25.0
"""SGLang 0.5.13 answers /health by generating one token and gives itself 20 s for it."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SECRET_SETTINGS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})


class NeMoGymAsyncOpenAI:
    """A client of one engine; keyword arguments of its methods are the JSON body, results are the decoded
    JSON object.

    Invariants: `base_url` means the same with and without a trailing "/v1" or slashes; `Authorization` is
    always the key's own; neither the key nor a body ever appears in a message. `internal` is kept because
    Gym has it; here every call has bounded repetition. `decode` decodes an answer's JSON, its id arrays
    left out. NaN and infinities in a body are sent as null, as orjson writes them.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        internal: bool = False,
        default_headers: Mapping[str, str] | None = None,
        http_pool: HTTPPool | None = None,
        name: str = "engine",
        decode: Callable[[bytes], object] = orjson.loads,
    ) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.internal = internal
        self.default_headers = dict(default_headers or {})
        self.name = name
        self.root = _root_of(base_url, name)
        self._decode_json = decode
        self._owns_pool = http_pool is None
        self.http_pool = HTTPPool() if http_pool is None else http_pool
        self._headers = _merge_headers(self.default_headers, api_key, name)

    async def aclose(self) -> None:
        """Close the connections, if they are this client's own and not a shared pool's."""
        if self._owns_pool:
            await self.http_pool.aclose()

    async def create_models(self) -> JSONObject:
        return await self._call("GET", "/v1/models")

    async def create_chat_completion(self, **body: object) -> JSONObject:
        return await self._call("POST", "/v1/chat/completions", body)

    async def create_completion(self, **body: object) -> JSONObject:
        return await self._call("POST", "/v1/completions", body)

    async def create_response(self, **body: object) -> JSONObject:
        return await self._call("POST", "/v1/responses", body)

    async def create_tokenize(self, **body: object) -> JSONObject:
        """`tokens`, where it is a flat list, is a TokenIds that nobody has read yet: a prompt can have 100,000."""
        return await self._call("POST", "/tokenize", body, decode=decode_tokenized)

    async def create_detokenize(self, **body: object) -> JSONObject:
        return await self._call("POST", "/detokenize", body)

    async def parse_function_call(self, **body: object) -> JSONObject:
        """SGLang's own tool parser, for a text that /generate sampled."""
        return await self._call("POST", "/parse_function_call", body)

    async def separate_reasoning(self, **body: object) -> JSONObject:
        """SGLang's own reasoning parser, for a text that /generate sampled."""
        return await self._call("POST", "/separate_reasoning", body)

    async def create_generate(self, **body: object) -> JSONObject:
        """Generate from one prompt. A list, SGLang's answer to n > 1 or several prompts, breaks the contract
        here."""
        return await self._call("POST", "/generate", body)

    async def get_server_info(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as httpx has it
        max_attempts: int | None = None,
    ) -> JSONObject:
        """Return the engine's settings, without the API keys that SGLang puts there in clear text.

        The path is /server_info since SGLang 0.5.13 and /get_server_info before.
        """
        limit = None if timeout is None else httpx.Timeout(timeout)
        response = await self._send("GET", "/server_info", None, timeout=limit, max_attempts=max_attempts)
        if response.status_code == httpx.codes.NOT_FOUND:
            response = await self._send(
                "GET", "/get_server_info", None, timeout=limit, max_attempts=max_attempts
            )
        info = self._decode(self._check(response))
        return cast("JSONObject", _without_secrets(info))

    async def get_health(self, *, timeout: float = HEALTH_TIMEOUT) -> int:  # noqa: ASYNC109 - as httpx has it
        """Ask once whether the engine can serve and return the success status; raises UpstreamError when it
        cannot."""
        response = await self._send("GET", "/health", None, timeout=httpx.Timeout(timeout), max_attempts=1)
        return self._check(response).status_code

    async def abort_request(self, rid: str) -> None:
        """Make the engine give up the request that was sent with this `rid`; unknown ones are no error.

        SGLang aborts every request whose rid *begins* with the one given, so an empty one would end them all.
        """
        if not rid:
            raise RequestError("`rid` is empty, which would abort every request of the engine", param="rid")
        await self.request_bytes("POST", "/abort_request", orjson.dumps({"rid": rid}))

    async def request_bytes(self, method: str, path: str, content: bytes | None = None) -> bytes:
        """Send an encoded JSON body to `path` under the root and return the raw body of a success.

        The seam for callers that must not turn long id lists into Python objects.
        """
        return self._check(await self._send(method, path, content)).content

    async def _call(
        self,
        method: str,
        path: str,
        body: JSONObject | None = None,
        *,
        decode: Callable[[bytes], object] | None = None,
    ) -> JSONObject:
        content = None if body is None else _encode(body)
        await give_way(len(content or b""))
        response = self._check(await self._send(method, path, content))
        await give_way(len(response.content))
        return self._decode(response, decode)

    async def _send(
        self,
        method: str,
        path: str,
        content: bytes | None,
        *,
        timeout: httpx.Timeout | None = None,  # noqa: ASYNC109 - enforced by the transport
        max_attempts: int | None = None,
    ) -> httpx.Response:
        return await self.http_pool.send(
            method,
            self.root + path,
            name=self.name,
            content=content,
            headers=self._headers,
            timeout=timeout,
            max_attempts=max_attempts,
            secret=self.api_key,
        )

    def _check(self, response: httpx.Response) -> httpx.Response:
        """Return a success, raise UpstreamStatusError for anything else."""
        if response.is_success:
            return response
        raise status_error(response, where=self._where(response), secret=self.api_key)

    def _decode(
        self, response: httpx.Response, decode: Callable[[bytes], object] | None = None
    ) -> JSONObject:
        """Return the JSON object in a success; say what came instead, but never what was in it."""
        content = response.content
        try:
            value = (
                json_ids.loads(content, will_be_read=True, decode=self._decode_json)
                if decode is None
                else decode(content)
            )
        except orjson.JSONDecodeError as error:
            found = (
                f"{len(content)} bytes that are not JSON from byte {error.pos} on"
                if content
                else "an empty body"
            )
        else:
            if isinstance(value, dict):
                return cast("JSONObject", value)
            found = f"a JSON {type(value).__name__}"
        raise UpstreamContractError(
            f"{self._where(response)} answered with status {response.status_code} and {found} "
            f"(Content-Type: {response.headers.get('content-type', 'none')}) where one JSON object was "
            "expected; does `base_url` lead to the engine?"
        )

    def _where(self, response: httpx.Response) -> str:
        return describe(response.request.method, response.request.url, self.name)


def decode_tokenized(raw: bytes) -> object:
    """The JSON of a `/tokenize` answer; a flat list under `tokens` is a TokenIds of its text. Raises
    orjson.JSONDecodeError.
    """
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return orjson.loads(raw)
    value: dict[str, object] = {}
    for name, field in fields.items():
        text = bytes(field)
        ids = TokenIds.of_array(text) if name == "tokens" else None
        value[name] = orjson.loads(text) if ids is None else ids
    return value


def _encode(body: Mapping[str, object]) -> bytes:
    try:
        return json_ids.dumps(body)
    except TypeError as error:  # orjson.JSONEncodeError is one; its words name types, not values
        if isinstance(error.__cause__, ValueError):
            raise RequestError(f"ids of an earlier turn cannot be sent on: {error.__cause__}") from error
        deep = "recursion limit" in str(error).lower()
        reason = "its nesting depth is over 254 levels" if deep else error
        raise RequestError(f"The request body cannot be written as JSON: {reason}") from error


def _merge_headers(default_headers: Mapping[str, str], api_key: str, name: str) -> dict[str, str]:
    """Lay the headers of every call over `default_headers`; without a key no Authorization is invented."""
    if not api_key.isascii() or any(ord(char) < 0x21 or ord(char) == 0x7F for char in api_key):
        raise ConfigError(
            f"{name}: `api_key` has a space, a line break or a character outside ASCII and cannot be sent",
            param="api_key",
        )
    for key, value in default_headers.items():
        if not _HEADER_NAME.fullmatch(key) or not value.isascii() or not value.isprintable():
            raise ConfigError(
                f"{name}: `default_headers` has a name or a value that HTTP cannot carry (printable ASCII in one line)",
                param="default_headers",
            )
    headers = {key.lower(): value for key, value in default_headers.items()}
    # Decompressing 600 kB of ids costs more than sending them plain.
    headers |= {
        "content-type": "application/json",
        "accept": "application/json",
        "accept-encoding": "identity",
    }
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    return headers


def _root_of(base_url: str, name: str) -> str:
    """Return `base_url` without trailing slashes and without a trailing "/v1"."""
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as error:
        raise _bad_base_url(name, "is not a URL") from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise _bad_base_url(name, "is not an http:// or https:// URL with a host")
    if url.userinfo or url.query or url.fragment:
        raise _bad_base_url(name, "has credentials, a query or a fragment; the key belongs in `api_key`")
    return base_url.rstrip("/").removesuffix("/v1").rstrip("/")


def _bad_base_url(name: str, problem: str) -> ConfigError:
    # The value is not repeated: it may hold credentials.
    return ConfigError(
        f"{name}: `base_url` {problem}; expected something like http://host:30000/v1", param="base_url"
    )


def _without_secrets(value: object) -> object:
    """Drop the settings that are keys, wherever SGLang repeats them."""
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items() if key not in _SECRET_SETTINGS}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value
