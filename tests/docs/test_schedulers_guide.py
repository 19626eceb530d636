"""The blocks of docs/guides/other-schedulers.md that need Open MPI and MPICH, in order."""

import re
import shutil
from pathlib import Path

import pytest

from pages import blocks, run, surroundings

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "other-schedulers.md"
WITH_MPIRUN = re.compile(r"<!-- run with mpirun(?:, exit (\d+))? -->")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(
    not (shutil.which("mpirun.openmpi") and shutil.which("mpiexec.mpich")),
    reason="openmpi-bin and mpich are not installed",
)
def test_its_lines_of_mpirun_run(tmp_path):
    marked = 0
    for block in blocks(GUIDE.read_text(encoding="utf-8"), WITH_MPIRUN):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if block.status is not None:
            marked += 1
            status, output = run(block, tmp_path, {**surroundings(), **AS_ROOT})
            assert status == block.status, f"line {block.line} ended with {status}:\n{output}"
    assert marked >= 3
