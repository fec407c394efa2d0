from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from nemo_gym.process_tuning import tune_process
tune_process()
bytearray(b"x") * 5_000_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    bytearray(b"x") * 5_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def share_of_pages_asked_for(**environment: str) -> float:
    ran = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, check=True
    )
    return int(ran.stdout) / (50 * 5_000_000 / resource.getpagesize())


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_the_memory_of_a_large_buffer_is_used_again() -> None:
    assert share_of_pages_asked_for() < 0.1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_what_the_environment_says_of_memory_stays() -> None:
    assert share_of_pages_asked_for(MALLOC_TRIM_THRESHOLD_="131072", MALLOC_MMAP_THRESHOLD_="131072") > 0.8
