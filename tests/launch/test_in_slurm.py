"""What ``paceline run`` does with Slurm's variables, without a Slurm: in a step on two nodes, in a job script."""

from __future__ import annotations

import time

import pytest

import commits
from paceline.cli.translate import translate
from starting import BIN

JOB = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "127.0.0.1,localhost",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_CPUS_PER_NODE": "1(x2)",
}
SAYS = (
    "import os, torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    "print('rank', dist.get_rank(), 'of', dist.get_world_size())\ndist.destroy_process_group()\n"
)


def step(node, *, tasks="1(x2)", task=None):
    return {
        **JOB,
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": JOB["SLURM_JOB_NODELIST"],
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_NODEID": str(node),
        "SLURM_PROCID": str(node if task is None else task),
    }


def both(command, *args, **kwargs):
    started = [command.start(*args, env=step(node), **kwargs) for node in range(2)]
    return [each.wait() for each in started]


def test_two_tasks_of_a_step_are_two_nodes_and_speak_with_one_voice(command):
    command.script(SAYS)
    head, other = both(command, "--nproc-per-node", 2, "train.py")
    assert (head.status, other.status) == (0, 0)
    assert "rank 0 of 4" in head.out
    assert "2 nodes x 2 ranks · Slurm step 12.0: 127.0.0.1,localhost, head 127.0.0.1" in head.err
    assert "roll call: 2 nodes alike" in head.err
    assert "done: 4 ranks" in head.err
    assert other.err == ""


@pytest.mark.ci
@pytest.mark.parametrize(
    "typed",
    [
        "srun fabric run --num-nodes=2 train.py",
        "srun torchrun --nnodes 2 --node-rank 0 --master-addr elsewhere train.py",
    ],
)
def test_a_translated_line_of_srun_is_one_run_of_all_nodes(command, typed):
    command.script(SAYS)
    line = f'PATH="{BIN}:$PATH"; srun() {{ "$@"; }}; {translate([typed]).line}'
    head, other = both(command, "-c", line, program="/bin/bash")
    assert (head.status, other.status) == (0, 0), head.err
    assert "rank 0 of 2" in head.out


def test_nodes_with_different_numbers_of_ranks(command):
    command.script(SAYS)
    started = [
        command.start("--nproc-per-node", 2 - node, "train.py", env=step(node)) for node in range(2)
    ]
    head, other = (each.wait() for each in started)
    assert (head.status, other.status) == (0, 0)
    assert "rank 0 of 3" in head.out


def test_a_failure_on_the_other_node_is_told_once(command):
    command.script(
        SAYS
        + "import time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad label')\ntime.sleep(60)\n"
    )
    head, other = both(command, "train.py")
    assert (head.status, other.status) == (1, 1)
    assert "ValueError: bad label" in head.block
    assert "── paceline" not in other.err
    assert "resume" not in head.block


def test_of_several_launchers_on_a_node_the_first_refuses_aloud(command):
    command.script(SAYS)
    started = [
        command.start("train.py", env=step(task // 2, tasks="2(x2)", task=task))
        for task in range(4)
    ]
    first, *rest = (each.wait() for each in started)
    assert first.status == 2
    assert "double-launch" in first.err
    assert "waiting" not in first.err
    assert [(each.status, each.err) for each in rest] == [(2, "")] * 3


@pytest.mark.parametrize(
    "args", [(), ("--nnodes", 2, "--node-rank", 0, "--master-addr", "127.0.0.1")]
)
def test_a_job_of_two_nodes_without_srun_is_refused_at_once(command, args):
    command.script(SAYS)
    ended = command.run(*args, "train.py", env=JOB)
    assert ended.status == 2
    assert "missing-srun" in ended.err
    assert (
        "fix: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=1 paceline run train.py"
        in ended.err
    )
    assert "waiting" not in ended.err


@pytest.mark.parametrize("args", [("--nnodes", 1), ("--no-slurm",)])
def test_unless_one_node_is_meant(command, args):
    command.script("print('here')")
    ended = command.run(*args, "train.py", env=JOB)
    assert (ended.status, ended.out) == (0, "here\n")
    assert "Slurm job 12" in ended.err


def test_a_save_that_does_not_fit_into_the_grace_is_said_at_the_start(command):
    commits.commit(command.folder / "runs" / "x" / "checkpoints", 10, seconds=60.0)
    command.script("import time\ntime.sleep(60)")
    started = command.start("--run-dir", "runs/x", "train.py")
    said, begun = "", time.monotonic()
    for line in started.process.stderr:
        said += line
        if "more: paceline explain RUN016" in line or time.monotonic() - begun > 20:
            break
    started.signal(15)
    started.wait()
    assert "a checkpoint took 60 s, and ranks have 30 s to end" in said
    assert "fix: --grace-s 120" in said
