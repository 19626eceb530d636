"""Ranks that wait for each other in vain: what the last lines say, and what ends the run."""

from __future__ import annotations

import pytest

START = (
    "import datetime, time\nimport torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=TIMEOUT))\n"
    "rank, numbers = dist.get_rank(), torch.ones(3)\n"
)
SLEEPS = "if rank == 1:\n    time.sleep(60)\n"


def hung(command, body, *, timeout_s=600):
    command.script(START.replace("TIMEOUT", str(timeout_s)) + body)
    ended = command.run("--nproc-per-node", 2, "train.py", timeout=50)
    assert ended.status == 1, ended.err
    return ended.block


@pytest.mark.parametrize(
    "wait, call",
    [
        ("dist.all_reduce(numbers)", "all_reduce"),
        ("dist.all_reduce(numbers, async_op=True).wait()", "dist.all_reduce(numbers"),
    ],
)
def test_a_timeout_of_the_script_names_who_waited_how_long_and_where_the_other_was(
    command, wait, call
):
    block = hung(command, SLEEPS + wait + "\n", timeout_s=3)
    assert "rank 0 waited 3 s for rank 1, until the timeout of the process group, in" in block
    assert call in block and "rank 1 was in time.sleep(60) (train.py:6)" in block
    assert "init_process_group(timeout=... above 3 s)" in block
    assert "--hang-timeout" not in block and "not visible" not in block
