"""The script of docs/guides/slurm.md: what it logs is the same on any number of ranks, as the guide says."""

import re
from pathlib import Path

import pytest

from pages import IN_SLURM, blocks
from starting import BIN, commands

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "slurm.md"


@pytest.mark.ci
@pytest.mark.timeout(180)
def test_its_curve_does_not_show_the_number_of_ranks(tmp_path, preloaded_for_training):
    script = next(
        block.text for block in blocks(GUIDE.read_text(), IN_SLURM) if block.file == "train.py"
    )
    (tmp_path / "train.py").write_text(script.replace("time.sleep(0.02)", "time.sleep(0)"))
    curves = set()
    with commands(tmp_path, preloaded_for_training) as made:
        for ranks in (1, 2, 4):
            words = (
                "run",
                "--nproc-per-node",
                str(ranks),
                "--run-dir",
                f"runs-{ranks}",
                "train.py",
            )
            ended = made.run(*words, program=str(BIN / "paceline"))
            assert ended.status == 0, ended.err
            curves.add(tuple(re.findall(r"epoch \d+: loss \S+", ended.out)))
    assert len(curves) == 1, curves
    assert len(curves.pop()) == 4
