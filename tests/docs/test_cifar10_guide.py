"""docs/guides/cifar10.md: its commands run one after the other, in a folder that has the examples."""

import re
from pathlib import Path

import pytest

from pages import WITH_EXAMPLES, blocks, run, surroundings

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "cifar10.md"
BLOCK_S = 240  # four processes that import torch, on a machine with other work


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_command_of_the_guide(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environ = {**surroundings(), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    printed = []
    for block in blocks(GUIDE.read_text(), WITH_EXAMPLES):
        if block.status is not None:
            status, output = run(block, tmp_path, environ, timeout_s=BLOCK_S)
            assert status == block.status, f"line {block.line} ended with {status}:\n{output}"
            printed.append((block, output))
    assert len(printed) == 9
    for block, output in printed[1:3]:  # one process, then two ranks
        accuracy = re.findall(r"^epoch 6: .* accuracy ([\d.]+) % of 200$", output, re.MULTILINE)
        assert float(accuracy[0]) > 50, f"line {block.line}:\n{output}"
    resumed = next(output for block, output in printed if "checkpoint list" in block.text)
    assert "saved by 2 ranks" in resumed
    assert "00002-step-96" in resumed
