"""The README: its first commands make a project, its diff works on both sides, its figure of speed has its entry.

tests/docs/test_docs.py runs the commands.
"""

import re
from pathlib import Path

import pytest

from pages import Block, blocks, run

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BEFORE_THE_LOOP = """
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
import paceline

data = TensorDataset(torch.randn(640, 4), torch.zeros(640, dtype=torch.long))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
"""
AFTER_IT = "assert cross_entropy(model(data[:][0]), data[:][1]) < 0.3\n"


@pytest.mark.parametrize("side", [0, 1], ids=["before", "after"])
def test_the_script_trains_before_and_after_the_diff(side, tmp_path):
    (diff,) = [block for block in blocks(TEXT) if block.language == "diff"]
    assert len(diff.sides[0].splitlines()) == 5
    program = "\n".join((BEFORE_THE_LOOP, diff.sides[side], AFTER_IT))
    status, output = run(Block("python", program, 1, 0), tmp_path)
    assert status == 0, output


def test_a_reader_meets_first_what_they_can_use_first():
    typed = [block.commands[0] for block in blocks(TEXT) if block.language == "bash"]
    assert typed[0].startswith("paceline new ")
    part, *programs = (TEXT.index(mark) for mark in ("## Which part is for you", "```python"))
    assert TEXT.index("```diff") < part < min(programs)


def test_speed_is_one_figure_with_its_entry_in_the_log():
    figures = re.findall(r"\d+ µs .*?\.\n", TEXT, re.S)
    assert len(figures) == 1
    assert "docs/log.md#" in figures[0]
    assert "no slower" not in TEXT
