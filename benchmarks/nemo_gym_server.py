"""Runs NeMo Gym's own vllm_model alone, in the environment that has nemo-gym: no Ray, no head server, no launcher.

    NEMO_GYM_CONFIG_DICT=... NEMO_GYM_CONFIG_PATH=... HOME_OF_NEMO_GYM/bin/python -P nemo_gym_server.py

Everything but Ray, which a model server starts and never uses, is as in production: its application, its middleware,
its uvicorn settings. Standard library only, and `-P`, so that nothing of this project is imported there.
"""

from __future__ import annotations

import importlib


def main() -> None:
    # By name: type checkers would take this project's own nemo_gym for it.
    utilities = importlib.import_module("nemo_gym.server_utils")
    utilities.initialize_ray = lambda: None  # type: ignore[attr-defined]
    application = importlib.import_module("responses_api_models.vllm_model.app")
    application.VLLMModel.run_webserver()


if __name__ == "__main__":
    main()
