"""Guides of jobs: their commands run on a cluster of their own, one after the other, as a newcomer types them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import IN_SLURM, blocks, run, surroundings
from slurm.cluster import start, stop

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


@pytest.mark.parametrize(("guide", "least"), [("slurm", 6), ("submitit", 2)])
@pytest.mark.slurm
@pytest.mark.timeout(300)
def test_every_command_of_the_guide(guide, least, tmp_path, tmp_path_factory):
    where = tmp_path_factory.mktemp("guide")  # shorter than the test's own
    cluster = start(where)  # where the first job is job 1, as the guide has it
    folder = tmp_path / "project"
    folder.mkdir()
    environ = {
        **surroundings(),
        **{name: cluster.environ[name] for name in ("SLURM_CONF",)},
        "OMP_NUM_THREADS": "1",
    }
    ran = 0
    try:
        for block in blocks((GUIDES / f"{guide}.md").read_text(), IN_SLURM):
            if block.file:
                (folder / block.file).write_text(block.text)
            if block.status is not None:
                status, output = run(block, folder, environ)
                assert status == block.status, f"line {block.line} ended with {status}:\n{output}"
                ran += 1
    finally:
        stop(where)
    assert ran >= least
