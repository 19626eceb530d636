"""paceline.launch: ranks for a function, from a program; in a process of its own, as a user would."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import paceline

PYTHON = str(Path(sys.executable))


def run_python(command, text, **kwargs):
    script = command.script(text, name="program.py")
    return command.run(script, program=PYTHON, **kwargs)


def test_rank_0s_value_comes_back(command):
    ended = run_python(
        command,
        "import paceline, torch\n"
        "(torch.randn(500, 500) @ torch.randn(500, 500)).sum()  # OpenMP's threads exist before the fork\n"
        "base = 10\n"
        "def work(x):\n"
        "    import torch.distributed as dist\n"
        "    dist.init_process_group('gloo')\n"
        "    total = torch.tensor([x + dist.get_rank()]); dist.all_reduce(total)\n"
        "    (torch.randn(500, 500) @ torch.randn(500, 500)).sum()\n"
        "    dist.destroy_process_group()\n"
        "    return base + total.item(), torch.zeros(1_000_000)  # larger than a pipe's buffer\n"
        "print(paceline.launch(work, 1, nproc_per_node=3)[0])\n"
        "print(paceline.launch(lambda: 'again', nproc_per_node=2))\n",
    )
    assert ended.status == 0, ended.err
    assert ended.out == "16\nagain\n"
    plan = json.loads((command.folder / ended.run_dir / "plan.json").read_text())
    assert plan["threads"]["value"] == 1
    assert "OpenMP pool a fork does not inherit" in plan["threads"]["reason"]
    assert plan["software"]["paceline"] == paceline.__version__


def test_a_failure_raises_with_the_finding(command):
    ended = run_python(
        command,
        "import os, paceline\n"
        "def work():\n"
        "    if os.environ['RANK'] == '1': raise ValueError('bad label')\n"
        "try:\n    paceline.launch(work, nproc_per_node=2)\n"
        "except paceline.PacelineError as error:\n    print(error.finding.name, '|', error.finding.what)\n"
        "try:\n    paceline.launch(work, nproc_per_node=0)\n"
        "except paceline.PacelineError as error:\n    print(error.finding.name)\n",
    )
    assert (
        ended.out
        == "script-error-on-one-rank | rank 1 raised ValueError: bad label\noption-invalid\n"
    ), ended.err


def test_a_value_that_cannot_be_pickled_is_named(command):
    ended = run_python(
        command,
        "import paceline\ntry:\n    paceline.launch(lambda: (n for n in range(3)), nproc_per_node=1)\n"
        "except paceline.PacelineError as error:\n    print(error.finding.what)\n",
    )
    assert "cannot pickle 'generator' object" in ended.out


def test_ctrl_c_ends_the_ranks_and_reaches_the_caller(command):
    script = command.script(
        "import paceline, time\n"
        "def work():\n    open('up', 'w').write('here\\n'); time.sleep(600)\n"
        "try:\n    paceline.launch(work, nproc_per_node=2)\n"
        "except KeyboardInterrupt:\n    print('interrupted')\n",
        name="program.py",
    )
    running = command.start(script, program=PYTHON)
    command.wait_for(command.folder / "up")
    time.sleep(0.5)
    running.signal(signal.SIGINT)
    ended = running.wait()
    assert ended.out == "interrupted\n", ended.err
    assert not command.survivors()


def test_nothing_outlives_a_killed_caller(command):
    script = command.script(
        "import paceline, time\n"
        "def work():\n    open('up', 'w').write('here\\n'); time.sleep(600)\n"
        "paceline.launch(work, nproc_per_node=2)\n",
        name="program.py",
    )
    running = command.start(script, program=PYTHON)
    command.wait_for(command.folder / "up")
    running.signal(signal.SIGKILL)
    running.process.wait()
    assert command.survivors(within_s=10) == []


def test_a_caller_that_is_told_to_end_lets_the_ranks_save(command):
    script = command.script(
        "import paceline, signal, sys, time\n"
        "def work():\n"
        "    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))\n"
        "    open('up', 'w').write('here\\n'); time.sleep(600)\n"
        "try:\n    paceline.launch(lambda: sys.exit(75), nproc_per_node=1)\n"
        "except paceline.PacelineError as error:\n    print(error.finding.name, error.exit_status, flush=True)\n"
        "paceline.launch(work, nproc_per_node=2)\n",
        name="program.py",
    )
    running = command.start(script, program=PYTHON)
    command.wait_for(command.folder / "up")
    time.sleep(0.5)  # for the other rank's handler
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.status == 75, ended.err
    assert ended.out == "run-unfinished 75\n"
    assert "resume: paceline.launch(work, ..., run_dir='paceline-runs/" in ended.err
    assert not command.survivors()
