"""Each example, and a project that ``paceline new`` has written, is submitted to two nodes and keeps its promise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples_list import EXAMPLES
from slurm.conftest import Submitted

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]
TRAINING_S = 240


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_on_two_nodes(site, name):
    example = EXAMPLES[name]
    example.skip_without_package()
    job = site.submit("--nodes", 2, example.path)
    assert job.wait(TRAINING_S)["JobState"] == "COMPLETED", job.out
    assert "2 nodes" in job.out
    example.check(job.out)


def test_a_written_project_is_submitted_with_its_profile(site):
    written = site.run("paceline", "new", "mine", "--from", "ddp")
    assert written.status == 0, written.err
    submitted = site.bash(
        "cd mine && paceline submit --json --profile cluster --nodes 2 train.py", timeout=45
    )
    assert submitted.status == 0, submitted.err
    answer = json.loads(submitted.out)
    job = Submitted(site, answer["job_id"], site.folder / "mine" / Path(answer["run_dir"]))
    assert job.wait(TRAINING_S)["JobState"] == "COMPLETED", job.out
    EXAMPLES["digits_ddp"].check(job.out)
