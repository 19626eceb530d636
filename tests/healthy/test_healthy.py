"""Right programs at default settings: they end as they should, nothing is found in them, and no process is left.

Each program is one pattern of training, or of something else that people start on several ranks. Its docstring says
which, and where it was adapted from a public one by name. None of their code is copied.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PARTS = Path(__file__).parent / "parts"  # modules that several programs import
CODE = re.compile(r"\b[A-Z]{3}\d{3}\b [a-z-]+: |\[[A-Z]{3}\d{3} [a-z-]+\]")
# What differs from 2 ranks, status 0 and no arguments.
RANKS = {"one_rank": 1, "three_ranks_uneven": 3, "pipeline_three_stages": 3}
STATUS = {"exit_status_75_to_resume": 75}
FINDINGS = {"exit_status_75_to_resume": ["run-unfinished"]}  # no fault: how to resume
ARGUMENTS = {"argparse_options": ("--epochs", "2", "--lr", "0.05"), "hydra_chdir": ("lr=0.05",)}

pytestmark = [pytest.mark.healthy, pytest.mark.timeout(150)]


@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_healthy_program_is_left_alone(command, name):
    program = command.script((PROGRAMS / f"{name}.py").read_text(), f"{name}.py")
    for part in PARTS.glob("*.py"):
        command.script(part.read_text(), part.name)
    ended = command.run(
        *("--nproc-per-node", RANKS.get(name, 2), "--run-dir", "paceline-run"),
        *(program, *ARGUMENTS.get(name, ())),
        env={"HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert ended.status == STATUS.get(name, 0), ended.err
    expected = FINDINGS.get(name, [])
    assert "its log shows" not in ended.err
    assert len(CODE.findall(ended.err)) == len(expected), ended.err
    assert findings(command.folder / "paceline-run") == expected, ended.err


def findings(folder: Path) -> list[str]:
    """Return the names of the findings in the last event of a run."""
    last = json.loads((folder / "events.jsonl").read_text().splitlines()[-1])
    return [finding["name"] for finding in last.get("findings", ())]
