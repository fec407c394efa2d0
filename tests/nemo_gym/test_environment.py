from __future__ import annotations

from pathlib import Path

import pytest

from nemo_gym.environment import refuse_shared_environment
from nemo_gym.errors import ConfigError
from tests.support.launches import write


def install(site: Path, name: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.4.0\n"
    write(site / f"{name.replace('-', '_')}-0.4.0.dist-info/METADATA", metadata)


def test_the_real_nemo_gym_beside_ours_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "nemo-gym")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"nemo-gym 0\.4\.0 is installed.*virtual environment of its own"):
        refuse_shared_environment()


def test_our_own_distribution_is_not_mistaken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "nemo-gym-sglang")
    monkeypatch.syspath_prepend(tmp_path)
    refuse_shared_environment()
    install(tmp_path, "nemo-gym")
    with pytest.raises(ConfigError):
        refuse_shared_environment()
