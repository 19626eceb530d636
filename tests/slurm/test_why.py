"""A job of plain `srun python` hangs: `paceline why JOBID` looks at its nodes by a step of its own."""

from __future__ import annotations

import pytest

from printed_json import read_json

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(90)]

HANGS = """
import os, time
import torch, torch.distributed as dist
rank = int(os.environ["SLURM_PROCID"])
os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
dist.init_process_group("gloo")
if rank == 1:
    open("up", "w").write(os.environ["SLURM_JOB_ID"] + "\\n")
    time.sleep(600)
dist.barrier()
"""


def test_a_job_that_hangs_is_looked_at_on_its_nodes(site):
    (site.folder / "train.py").write_text(HANGS)
    job = site.start_srun("python", "train.py", env={"PORT": "29871"})
    number = site.wait_for(site.folder / "up").strip()
    ended = site.run("paceline", "why", "--json", number)
    assert ended.status == 0, ended.err
    (run,) = read_json("why", ended.out)["runs"]
    assert {each["job"] for each in run["ranks"]} == {number}
    assert run["finding"]["name"] == "rank-stuck-in-code"
    assert "rank 1" in run["finding"]["what"] and "train.py:9" in run["finding"]["what"]
    assert job.process.poll() is None
    job.signal(2)
    job.signal(2)
