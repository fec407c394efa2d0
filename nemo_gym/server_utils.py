"""The base of every server: its fields, its application's middleware, and running it.

Knows HTTP and configuration; knows nothing of models, engines or tokens. The names are NeMo Gym's, so that a
server written against NeMo Gym is a server here.
"""

from __future__ import annotations

import os
import sys
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import Self

from fastapi import FastAPI
from omegaconf import DictConfig
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from nemo_gym.config_types import BaseRunServerInstanceConfig
from nemo_gym.environment import refuse_shared_environment
from nemo_gym.error_responses import install_error_handling
from nemo_gym.errors import ConfigError
from nemo_gym.global_config import (
    NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME,
    global_config_from_environment,
    load_server_config,
)
from nemo_gym.json_response import json_response
from nemo_gym.metrics import METRICS_CONTENT_TYPE, Metrics, MetricsMiddleware
from nemo_gym.process_tuning import tune_process
from nemo_gym.server_client import ServerClient
from nemo_gym.sessions import (
    SESSION_ID_KEY,
    SessionMiddleware,
    launch_session_secret,
    new_session_secret,
    share_session_secret,
)
from nemo_gym.webserver import (
    StartupErrorMiddleware,
    configure_logging,
    exit_for_config_error,
    raise_open_files_limit,
    serve,
    serve_with_workers,
    try_startup,
    uvicorn_options,
)
from nemo_gym.workers import (
    announce_workers,
    app_import,
    get_nemo_gym_fastapi_num_workers,
    is_nemo_gym_fastapi_entrypoint,
    is_nemo_gym_fastapi_worker,
)

__all__ = [
    "SESSION_ID_KEY",
    "BaseRunServerInstanceConfig",
    "BaseServer",
    "ServerClient",
    "SimpleServer",
    "get_nemo_gym_fastapi_num_workers",
    "is_nemo_gym_fastapi_entrypoint",
    "is_nemo_gym_fastapi_worker",
]


class BaseServer(BaseModel):
    """A server that `ServerClient` can reach by its name."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    config: BaseRunServerInstanceConfig
    server_client: ServerClient


class SimpleServer(BaseServer):
    """A server with one FastAPI application.

    Every `setup_*` method adds one thing to an application once, however often it is called:
    `setup_webserver` of a subclass calls those it wants, and `run_webserver` adds the rest.
    """

    @cached_property
    def metrics(self) -> Metrics:
        """What this server counts about itself."""
        # Not a private attribute: pydantic takes 2 µs to find one, and a request asks for this a dozen times.
        return Metrics(worker=f"pid-{os.getpid()}" if is_nemo_gym_fastapi_worker() else "main")

    @abstractmethod
    def setup_webserver(self) -> FastAPI:
        """Return the application with all its routes."""

    async def on_startup(self) -> None:
        """Open what the server needs while it runs. A ConfigError here ends the process, readably."""

    async def on_shutdown(self) -> None:
        """Close what `on_startup` opened."""

    def get_session_middleware_key(self) -> str:
        """Return the name of the session cookie."""
        return f"{type(self).__name__}___{self.config.name}"

    def get_session_secret(self) -> str:
        """Return the secret of the session cookie: the launch's, else one that only this process knows."""
        return launch_session_secret() or new_session_secret()

    def setup_session_middleware(self, app: FastAPI) -> None:
        """Give every request a session id in `request.session[SESSION_ID_KEY]`."""
        if _first_time(app, "session"):
            app.add_middleware(
                SessionMiddleware,
                cookie_name=self.get_session_middleware_key(),
                secret=self.get_session_secret(),
            )

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Turn every exception into an OpenAI error object. To be called after other middleware."""
        if _first_time(app, "errors"):
            install_error_handling(app, self.config.name)

    def setup_metrics(self, app: FastAPI) -> None:
        """Count every request, and answer GET /metrics."""
        if _first_time(app, "metrics"):
            app.add_middleware(MetricsMiddleware, metrics=self.metrics)
            app.add_route("/metrics", self._answer_metrics, methods=["GET"])

    def setup_liveness(self, app: FastAPI) -> None:
        """Answer GET /, by which NeMo Gym sees that a server is up."""
        if _first_time(app, "liveness"):
            app.add_route("/", _answer_ok, methods=["GET"])

    def setup_lifespan(self, app: FastAPI) -> None:
        """Run `on_startup` and `on_shutdown` around the application's life, inside what it already does."""
        if not _first_time(app, "lifespan"):
            return
        outer = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(application: FastAPI) -> AsyncIterator[object]:
            async with outer(application) as state:
                try:
                    await self.on_startup()
                    tune_process()
                    yield state
                finally:
                    await self.on_shutdown()
                    await self.server_client.aclose()

        app.router.lifespan_context = lifespan  # type: ignore[assignment]  # handed on as it came
        app.add_middleware(StartupErrorMiddleware, server_name=self.config.name)

    def setup_standard(self, app: FastAPI) -> None:
        """Add everything every server has."""
        self.setup_liveness(app)
        self.setup_lifespan(app)
        self.setup_session_middleware(app)
        self.setup_exception_middleware(app)
        self.setup_metrics(app)

    async def _answer_metrics(self, _request: Request) -> Response:
        return Response(self.metrics.exposition(), headers={"content-type": METRICS_CONTENT_TYPE})

    @classmethod
    def run_webserver(cls) -> FastAPI | None:
        """Serve until a signal. In a worker return the application, with `dry_run` return None, at once.

        The configuration is the one in the environment. One that cannot be used ends the process with exit
        code 2 and one line in the log.
        """
        name = os.environ.get(NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME) or cls.__name__
        configure_logging(name)
        try:
            refuse_shared_environment()
            return cls._run(global_config_from_environment())
        except ConfigError as error:
            exit_for_config_error(name, error)

    @classmethod
    def _run(cls, global_config: DictConfig) -> FastAPI | None:
        server = cls.from_global_config(global_config)
        if global_config.get("dry_run"):
            return None
        raise_open_files_limit()
        app = server.setup_webserver()
        server.setup_standard(app)
        if is_nemo_gym_fastapi_worker():
            return app
        config = server.config
        options = uvicorn_options(
            host=config.host,
            port=config.port,
            server_name=config.name,
            access_log=bool(global_config.get("uvicorn_logging_show_200_ok")),
        )
        if config.num_workers is None or config.num_workers <= 1:
            serve(app, options)
            return app
        try_startup(app)
        entrypoint = Path(str(sys.modules["__main__"].__file__))
        share_session_secret(server.get_session_secret())
        announce_workers(entrypoint, config.num_workers)
        serve_with_workers(app_import(entrypoint), config.num_workers, options)
        return app

    @classmethod
    def from_global_config(cls, global_config: DictConfig) -> Self:
        """Build the server that NEMO_GYM_CONFIG_PATH names in `global_config`. Raises ConfigError."""
        name = os.environ.get(NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME)
        if not name:
            raise ConfigError(f"{NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME} is not set: it names the server to run")
        config_class = cls.model_fields["config"].annotation
        if not isinstance(config_class, type) or not issubclass(config_class, BaseRunServerInstanceConfig):
            raise ConfigError(
                f"{cls.__name__}.config must be annotated with a BaseRunServerInstanceConfig class"
            )
        config = load_server_config(config_class, global_config, name)
        client = ServerClient(global_config_dict=global_config)
        try:
            return cls(config=config, server_client=client)
        except ValidationError as error:
            raise _config_error_inside(error) from error


def _config_error_inside(error: ValidationError) -> ConfigError:
    """Return the ConfigError that pydantic wrapped because it is a ValueError, else one with its report."""
    for details in error.errors(include_input=False, include_url=False):
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            return cause
    report = "; ".join(
        f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False)
    )
    return ConfigError(f"{error.title}: {report}")


def _first_time(app: FastAPI, part: str) -> bool:
    """Say whether `part` is not yet installed in `app`, and note that it is from now on."""
    installed: set[str] = getattr(app.state, "nemo_gym_parts", set())
    if part in installed:
        return False
    app.state.nemo_gym_parts = installed | {part}
    return True


async def _answer_ok(_request: Request) -> Response:
    return json_response({"status": "ok"})
