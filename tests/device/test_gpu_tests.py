"""The tests for GPUs that need nothing of CUDA's own hold on the emulated accelerator too, as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
os.environ["OMP_NUM_THREADS"] = "1"  # threads that wait for each other spin
import pytest
sys.exit(pytest.main(["-c", sys.argv[1], "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


@pytest.mark.parametrize(
    ("tests", "chosen", "count"),
    [
        pytest.param("test_gpu.py", "checkpoint", 5, marks=pytest.mark.ci),
        pytest.param("test_gpu.py", "not checkpoint", 4, marks=pytest.mark.slow),
        pytest.param("test_faults.py", "", 4, marks=pytest.mark.slow),
        pytest.param("test_cifar_example.py", "", 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(180)
def test_a_test_for_gpus_holds_on_the_emulated_accelerator(on_device, tests, chosen, count):
    words = (ROOT / "pyproject.toml", "-k", chosen, ROOT / "tests" / "gpu" / tests)
    printed = on_device(PROGRAM, *map(str, words))
    assert re.search(rf"^{count} passed", printed, re.M), printed
