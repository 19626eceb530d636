"""The CIFAR-10 example on two nodes: the commands of its guide, and a job that is queued again and continues."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pages import IN_SLURM, blocks

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "cifar10.md"
pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def test_the_job_of_the_guide(site):
    (site.folder / "examples").symlink_to(ROOT / "examples")
    typed = [block.text for block in blocks(GUIDE.read_text(), IN_SLURM) if block.status == 0]
    assert len(typed) == 1
    command = re.search(r"^\$ (paceline submit .*)$", typed[0], re.MULTILINE)[1]
    ended = site.bash(command, timeout=250)
    assert ended.status == 0, ended
    epochs = re.findall(r"^epoch \d: .* of 200$", ended.out, re.MULTILINE)
    assert len(epochs) == 2, ended
    assert "2 ranks" in ended.out
    files = sorted(path.name for path in (site.folder / "data" / "synthetic-1000").iterdir())
    assert len(files) == 7, "both nodes have prepared the data, and left no part of a file"
