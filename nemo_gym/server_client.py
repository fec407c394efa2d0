"""Calls from one server to another of the same configuration, by name.

Knows how a name becomes host and port. Must not know what the servers do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, Self, TypeAlias, cast

import httpx
import orjson
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel

from nemo_gym.config_suggestions import did_you_mean
from nemo_gym.config_types import DEFAULT_HOST
from nemo_gym.errors import ConfigError, RequestError
from nemo_gym.global_config import global_config_from_environment
from nemo_gym.http_pool import HTTPPool
from nemo_gym.http_retry import classify

ServerStatus: TypeAlias = Literal["success", "connection_error", "timeout", "unknown_error"]

POLL_TIMEOUT = 5.0
"""Seconds a server that is up may take to answer `GET /`, whatever it answers."""


class HeadServer(Protocol):
    """Where NeMo Gym's head server listens."""

    host: str
    port: int


class ServerClient:
    """Reaches the servers named in `global_config_dict`; repetition is bounded as in HTTPPool.

    NeMo Gym asks its head server for the configuration; here it comes from the environment, and
    `head_server_config` is only carried along.
    """

    # Class attributes, so that a mock made from this class has them.
    head_server_config: HeadServer | None = None
    global_config_dict: Mapping[str, object] = {}

    def __init__(
        self,
        *,
        global_config_dict: Mapping[str, object] | DictConfig,
        head_server_config: HeadServer | None = None,
        http_pool: HTTPPool | None = None,
    ) -> None:
        self.head_server_config = head_server_config
        self.global_config_dict = cast("Mapping[str, object]", global_config_dict)
        self.http_pool = HTTPPool() if http_pool is None else http_pool

    @classmethod
    def load_from_global_config(cls, head_server_config: HeadServer | None = None) -> Self:
        """Build the client of a process that was started with the configuration in its environment."""
        return cls(head_server_config=head_server_config, global_config_dict=global_config_from_environment())

    async def get(
        self,
        server_name: str,
        url_path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        return await self.request(
            server_name, url_path, "GET", params=params, headers=headers, cookies=cookies
        )

    async def post(
        self,
        server_name: str,
        url_path: str,
        *,
        json: object = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        return await self.request(
            server_name, url_path, "POST", json=json, params=params, headers=headers, cookies=cookies
        )

    async def request(
        self,
        server_name: str,
        url_path: str,
        method: str,
        *,
        json: object = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cookies: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Call `url_path` of the named server and return its answer, whatever the status.

        `cookies` are sent with this call only and nothing is kept of those that come back: an episode hands
        its own on. A pydantic `json` is sent without the fields that were never set.
        """
        url = httpx.URL(self._base_url(server_name) + url_path)
        if params:
            url = url.copy_merge_params(dict(params))
        sent = {key.lower(): value for key, value in (headers or {}).items()}
        content = None if json is None else _encode(json)
        if content is not None:
            sent.setdefault("content-type", "application/json")
        if cookies:
            sent["cookie"] = "; ".join(f"{key}={value}" for key, value in cookies.items())
        return await self.http_pool.send(method, str(url), name=server_name, content=content, headers=sent)

    def poll_for_status(self, server_name: str, *, timeout: float = POLL_TIMEOUT) -> ServerStatus:
        """Say whether the named server answers at all; blocks, for use outside an event loop."""
        try:
            httpx.get(self._base_url(server_name), timeout=timeout, trust_env=False)
        except httpx.TimeoutException:
            return "timeout"
        except httpx.TransportError as error:
            return "connection_error" if classify(error).transient else "unknown_error"
        return "success"

    async def aclose(self) -> None:
        await self.http_pool.aclose()

    def _base_url(self, server_name: str) -> str:
        host, port = _address_of(self.global_config_dict, server_name)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _address_of(config: Mapping[str, object], server_name: str) -> tuple[str, int]:
    """Return host and port of a server. Its settings lie two levels below its name, the head server's right
    there."""
    try:
        block = config.get(server_name)
        if not isinstance(block, Mapping):
            raise _unknown_server(config, server_name)
        for _ in range(2):
            if "port" not in block:
                block = _first_mapping(block)
        host, port = str(block.get("host", DEFAULT_HOST)), str(block.get("port"))
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"`host` or `port` of {server_name} cannot be resolved", param=server_name
        ) from error
    if not port.isdecimal():
        raise ConfigError(
            f"{server_name} has no `port` in the configuration, and cannot be called", param=server_name
        )
    return host, int(port)


def _first_mapping(block: Mapping[str, object]) -> Mapping[str, object]:
    return next((value for value in block.values() if isinstance(value, Mapping)), {})


def _unknown_server(config: Mapping[str, object], server_name: str) -> ConfigError:
    known = [str(key) for key in config if isinstance(config.get(key), Mapping)]
    return ConfigError(
        f"no server is named {server_name}{did_you_mean(server_name, known)}; the configuration has: "
        f"{', '.join(known) or 'none'}",
        param=server_name,
    )


def _encode(json: object) -> bytes:
    if isinstance(json, BaseModel):
        return json.model_dump_json(exclude_unset=True).encode()
    try:
        return orjson.dumps(json)
    except TypeError as error:
        raise RequestError(f"The request body cannot be written as JSON: {error}") from error
