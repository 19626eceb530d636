"""Processes that ranks leave in the background: they stay after a success, as under torchrun, not after a failure."""

from __future__ import annotations

import os
import signal
import time

import pytest

# A child prints until it is told that the launcher has ended, then once more; argv[1] says how it is started.
PARENT = """
import multiprocessing, os, subprocess, sys, time
rank, how = os.environ["RANK"], sys.argv[1]

def work():
    while not os.path.exists("launcher-has-ended"):
        print("still here", flush=True)
        time.sleep(0.02)
    print(f"after the end {rank}", flush=True)
    open(f"done-{rank}", "w").write(f"{os.getpid()}\\n")

def fork(leader):
    if os.fork() == 0:
        if leader:
            os.setsid()
            if os.fork():
                os._exit(0)
        work()
        os._exit(0)

if how == "work":
    work()
    sys.exit()
if how in ("fork", "daemon"):
    fork(how == "daemon")
elif how == "subprocess":
    subprocess.Popen([sys.executable, sys.argv[0], "work"])
else:
    multiprocessing.get_context("fork").Process(target=work).start()
open(f"up-{rank}", "w").write("here\\n")
if "fail" in sys.argv and rank == "1":
    time.sleep(0.5)
    raise ValueError("bad label")
if how == "multiprocessing":
    os._exit(0)  # Python would wait for the child
"""

HOW = ["fork", "daemon", "subprocess", "multiprocessing"]


@pytest.mark.parametrize("how", HOW)
def test_background_children_of_ranks_that_succeeded_stay_and_may_print(command, how):
    command.script(PARENT)
    with open(command.folder / "console", "wb") as console:
        running = command.start("--nproc-per-node", "2", "train.py", how, stdout=console)
        running.process.wait(timeout=50)
    assert running.process.returncode == 0
    time.sleep(0.3)  # whatever were to end them has had its time
    command.script("", name="launcher-has-ended")
    for rank in range(2):
        command.wait_for(command.folder / f"done-{rank}")
    assert command.survivors(within_s=5) == []  # whoever copied their output ends with them
    assert "after the end 0\n" in (command.folder / "console").read_text()
    logs = {
        path.name: path.read_text() for path in command.folder.glob("paceline-runs/*/logs/rank-*")
    }
    assert [f"after the end {rank}\n" in logs[f"rank-00{rank}.out"] for rank in range(2)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("how", HOW[:3])
def test_background_children_end_with_a_run_that_failed(command, how):
    command.script(PARENT)
    ended = command.run("--nproc-per-node", "2", "train.py", how, "fail")
    assert ended.status == 1
    assert "ValueError: bad label" in ended.block
    assert command.survivors() == []


@pytest.mark.parametrize("how", ["fork", "subprocess"])
def test_background_children_end_when_the_fork_server_is_killed(command, how):
    command.script(PARENT + "\ntime.sleep(600)\n")
    running = command.start("--nproc-per-node", "2", "train.py", how)
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    os.kill(fork_server(running.process.pid), signal.SIGKILL)
    ended = running.wait()
    assert ended.status == 1
    assert "agent-died" in ended.block
    assert command.survivors(within_s=2) == []


def fork_server(launcher):
    import psutil

    return next(
        child.pid
        for child in psutil.Process(launcher).children()
        if child.name() == "paceline-warm"
    )
