"""The README: its first commands make a project, its diff works on both sides, its figure of speed has its entry.

tests/docs/test_docs.py runs the commands.
"""

import re
from pathlib import Path

from pages import Block, blocks, run

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAM = """
import paceline, torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(640, 4), torch.zeros(640, dtype=torch.long))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
{loop}
assert cross_entropy(model(data[:][0]), data[:][1]) < 0.3
"""


def test_the_script_trains_before_and_after_the_diff(tmp_path):
    (diff,) = [block for block in blocks(TEXT) if block.language == "diff"]
    assert len(diff.sides[0].splitlines()) == 5
    for loop in diff.sides:
        status, output = run(Block("python", PROGRAM.format(loop=loop), 1, 0), tmp_path)
        assert status == 0, output


def test_a_reader_meets_first_what_they_can_use_first():
    typed = [block.commands[0] for block in blocks(TEXT) if block.language == "bash"]
    assert typed[0].startswith("paceline new ")
    assert TEXT.index("```diff") < TEXT.index("## Which part is for you") < TEXT.index("```python")
    (figure,) = re.findall(r"\d+ µs .*?\.\n", TEXT, re.S)
    assert "docs/log.md#" in figure and "no slower" not in TEXT
