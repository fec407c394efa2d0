"""The settings that every server block shares, and how one block refers to another.

This room knows the shape of a block and nothing about files, overrides or processes. Every class refuses keys
that it does not know: a misspelt setting that starts with its default is a training run with wrong settings.
NeMo Gym 0.4.0 itself writes exactly two keys into a block, `host` and `port`, and both are fields here, so a
block that Gym completed is accepted as it stands.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

ServerType: TypeAlias = Literal["responses_api_models", "resources_servers", "responses_api_agents"]
SERVER_TYPES: tuple[ServerType, ...] = get_args(ServerType)

Domain: TypeAlias = Literal[
    "math",
    "coding",
    "agent",
    "knowledge",
    "instruction_following",
    "long_context",
    "safety",
    "games",
    "translation",
    "e2e",
    "rlhf",
    "other",
]

DEFAULT_HOST = "127.0.0.1"


class StrictConfig(BaseModel):
    """Refuses unknown keys. docs/configuration.md is made of the docstrings under the fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ModelServerRef(StrictConfig):
    """Names a model server of the same configuration."""

    type: Literal["responses_api_models"]
    """Kind of the server that is meant."""

    name: str
    """Its top-level key in the configuration."""


class ResourcesServerRef(StrictConfig):
    """Names a resources server of the same configuration."""

    type: Literal["resources_servers"]
    """Kind of the server that is meant."""

    name: str
    """Its top-level key in the configuration."""


class AgentServerRef(StrictConfig):
    """Names an agent server of the same configuration."""

    type: Literal["responses_api_agents"]
    """Kind of the server that is meant."""

    name: str
    """Its top-level key in the configuration."""


ServerRef: TypeAlias = Annotated[
    ModelServerRef | ResourcesServerRef | AgentServerRef, Field(discriminator="type")
]

_SERVER_REF: TypeAdapter[ModelServerRef | ResourcesServerRef | AgentServerRef] = TypeAdapter(ServerRef)


def server_ref(value: object) -> ModelServerRef | ResourcesServerRef | AgentServerRef | None:
    """Read a value as a server reference, or answer None: a reference is known by its shape, as in Gym."""
    try:
        return _SERVER_REF.validate_python(value)
    except ValidationError:
        return None


class BaseServerConfig(StrictConfig):
    """Where a server listens."""

    host: str = DEFAULT_HOST
    """Address to listen on. The launcher fills in `default_host` when a block leaves it out."""

    port: int = Field(ge=1, le=65535)
    """Port to listen on. The launcher picks a free one between `port_range_low` and `port_range_high` when a
    block leaves it out."""

    num_workers: int | None = Field(default=None, ge=1)
    """Worker processes behind the one port. Unset means one."""


class BaseRunServerConfig(BaseServerConfig):
    """A server that can be started."""

    entrypoint: str
    """Python file to start, relative to the directory of the implementation; `app.py` for the servers of this
    project."""

    domain: Domain | None = None
    """What a resources server trains. Model servers accept it and do nothing with it."""


class BaseRunServerInstanceConfig(BaseRunServerConfig):
    """One server of a running configuration. `name` is unique because it is a top-level key."""

    name: str
    """The top-level key of the block. Set while loading, never written into the block by hand."""
