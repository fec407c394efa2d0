"""Refuses an environment in which two distributions bring a package called `nemo_gym`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from nemo_gym.errors import ConfigError

OTHER_DISTRIBUTION: Final = "nemo-gym"


def refuse_shared_environment() -> None:
    """ConfigError when NVIDIA's nemo-gym is installed here too.

    Both install into the directory `nemo_gym`, so the later one has overwritten files of the earlier one, and
    what is imported is a mixture that fails in odd places. In a Gym run the two have environments of their
    own and meet over HTTP.
    """
    try:
        version = distribution(OTHER_DISTRIBUTION).version
    except PackageNotFoundError:
        return
    raise ConfigError(
        f"{OTHER_DISTRIBUTION} {version} is installed in the Python environment of nemo-gym-sglang. Both "
        "bring a package named nemo_gym and overwrite each other's files. Give this server a virtual "
        "environment of its own; Gym's agents reach it over HTTP from theirs"
    )
