"""Running an application under uvicorn: its options, the log, the number of open files, the exit code."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import logging.config
import resource
import sys
from typing import Any, Final, NoReturn

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nemo_gym.errors import ConfigError
from nemo_gym.workers import AppImport

CONFIG_ERROR_EXIT_CODE: Final = 2
STARTUP_FAILURE: Final = 3  # uvicorn's exit code for it
OPEN_FILES: Final = 65535

# NeMo Gym's client keeps an idle connection for 15 s: the server must not be the first to close it.
KEEP_ALIVE_SECONDS: Final = 30
# NeMo Gym kills a server one second after it asked it to stop.
GRACEFUL_SHUTDOWN_SECONDS: Final = 0.5
# A worker imports and builds its server before it answers: a tokenizer takes its time.
WORKER_HEALTHCHECK_SECONDS: Final = 30


class CancelledAtShutdownFilter(logging.Filter):
    """Drops uvicorn's traceback for each request that was cancelled because the server stops."""

    def filter(self, record: logging.LogRecord) -> bool:
        exc_type = record.exc_info[0] if record.exc_info else None
        return exc_type is None or not issubclass(exc_type, asyncio.CancelledError)


def log_config(server_name: str) -> dict[str, Any]:
    """Return the logging configuration of a server process: one format on stderr, with its name."""
    name = server_name.replace("%", "%%")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": f"%(asctime)s %(levelname)s ({name}) %(name)s: %(message)s"}},
        "filters": {"cancelled": {"()": CancelledAtShutdownFilter}},
        "handlers": {
            "stderr": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["cancelled"]},
        },
        "root": {"level": "INFO", "handlers": ["stderr"]},
        "loggers": {
            # httpx logs every request at INFO.
            "httpx": {"level": "WARNING"},
        },
    }


def configure_logging(server_name: str) -> None:
    """Set up logging of this process; also before uvicorn, so that a failing start is readable."""
    logging.config.dictConfig(log_config(server_name))


def log_config_error(server_name: str, error: ConfigError) -> None:
    """Say in one line what is wrong with the configuration; a traceback would say less."""
    logging.getLogger(server_name).error("configuration error: %s", " ".join(str(error).split()))


def exit_for_config_error(server_name: str, error: ConfigError) -> NoReturn:
    """End the process with one readable line."""
    log_config_error(server_name, error)
    sys.exit(CONFIG_ERROR_EXIT_CODE)


def raise_open_files_limit(target: int = OPEN_FILES) -> None:
    """Raise the soft limit of open files towards `target`: every request in flight holds two sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = target if hard == resource.RLIM_INFINITY else min(target, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            logging.getLogger(__name__).warning(
                "the limit of open files stays at %d, wanted %d: %s; raise it with ulimit -n",
                soft,
                wanted,
                error,
            )


def uvicorn_options(*, host: str, port: int, server_name: str, access_log: bool) -> dict[str, Any]:
    """Return uvicorn's options that do not depend on the number of workers."""
    return {
        "host": host,
        "port": port,
        "http": "httptools",
        "loop": "auto",
        "access_log": access_log,
        "log_config": log_config(server_name),
        "lifespan": "on",
        "timeout_keep_alive": KEEP_ALIVE_SECONDS,
        "timeout_graceful_shutdown": GRACEFUL_SHUTDOWN_SECONDS,
        "timeout_worker_healthcheck": WORKER_HEALTHCHECK_SECONDS,
    }


class StartupErrorMiddleware:
    """Pure ASGI. A ConfigError raised by the lifespan is one line in the log, not the framework's traceback.

    It is remembered as `app.state.config_error`, so that the process can end with the exit code of its class.
    """

    def __init__(self, app: ASGIApp, *, server_name: str) -> None:
        self.app = app
        self._server_name = server_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        failed: Message | None = None

        async def hold_failure(message: Message) -> None:
            nonlocal failed
            if message["type"] == "lifespan.startup.failed":
                failed = message
            else:
                await send(message)

        try:
            await self.app(scope, receive, hold_failure)
        except ConfigError as error:
            log_config_error(self._server_name, error)
            scope["app"].state.config_error = error
            failed = {"type": "lifespan.startup.failed", "message": ""}
            raise
        finally:
            if failed is not None:
                await send(failed)


def serve(app: FastAPI, options: dict[str, Any]) -> None:
    """Serve `app` in this process until a signal; exits with a code when the start-up failed."""
    server = uvicorn.Server(uvicorn.Config(app, **options))
    # uvicorn ends the process itself when a start-up fails, with a code of its own in each version.
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        server.run()
    if not server.started:
        sys.exit(CONFIG_ERROR_EXIT_CODE if hasattr(app.state, "config_error") else STARTUP_FAILURE)


def serve_with_workers(app: AppImport, num_workers: int, options: dict[str, Any]) -> None:
    """Serve the app that `app` names from `num_workers` processes until a signal."""
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.run(app.import_string, app_dir=app.app_dir, workers=num_workers, **options)


def try_startup(app: FastAPI) -> None:
    """Run `app`'s start-up and shut-down once. Raises what they raise.

    Before workers are started: a worker that cannot start is replaced by one that cannot start either.
    """

    async def enter_and_leave() -> None:
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(enter_and_leave())
