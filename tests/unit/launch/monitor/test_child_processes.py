"""Child processes of a rank as /proc shows them: what is collected, and how it is put into words."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from paceline.launch.monitor import child_processes
from paceline.launch.monitor.child_processes import ChildProcess, describe_all
from paceline.machine import processes

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


@contextmanager
def _child(code: str) -> Iterator[int]:
    """A child process that runs a line of Python; ended and waited for at the end."""
    pid = os.fork()
    if pid == 0:
        exec(code)
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _seen(pid: int, *, state: str) -> ChildProcess:
    """Look until the child is in a state; fails by the test's time limit."""
    while True:
        child = child_processes.look(pid)
        assert child is not None
        if child.state == state:
            return child
        time.sleep(0.01)


@linux_only
def test_a_sleeping_child_is_seen_with_its_parent_and_does_not_run_between_two_looks() -> None:
    with _child("import time; time.sleep(1000)") as pid:
        child = _seen(pid, state="S")
        assert pid in child_processes.children_of(os.getpid())
        assert pid in child_processes._children_by_parent(os.getpid())
        assert (child.parent, child.threads, child.in_futex) == (os.getpid(), 1, False)
        assert 0 <= child.age_s < 30
        again = _seen(pid, state="S")
        assert (again.switches, again.cpu_s) == (child.switches, child.cpu_s)


@linux_only
def test_a_child_that_waits_for_a_semaphore_is_in_a_futex() -> None:
    code = "import multiprocessing as m; s = m.get_context('fork').Semaphore(0); s.acquire()"
    with _child(code) as pid:
        while not _seen(pid, state="S").in_futex:  # it may sleep elsewhere while it imports
            time.sleep(0.01)
        child = _seen(pid, state="S")
        assert "waits for a lock" in child.describe()


@linux_only
def test_a_killed_child_that_nobody_has_waited_for_is_seen_with_the_signal() -> None:
    with _child("import os; os.kill(os.getpid(), 9)") as pid:
        child = _seen(pid, state="Z")
        assert child.has_ended
        assert child.ended_by == signal.SIGKILL
        assert child.describe().endswith("was killed by SIGKILL")


@linux_only
def test_a_child_that_ended_is_seen_with_its_exit_code() -> None:
    with _child("import os; os._exit(7)") as pid:
        assert _seen(pid, state="Z").describe().endswith("has ended with exit code 7")


@linux_only
def test_a_stopped_child_is_stopped() -> None:
    with _child("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)") as pid:
        assert _seen(pid, state="T") and processes.is_stopped(pid)


def test_a_process_that_does_not_exist_is_none() -> None:
    assert child_processes.look(2**22 + 1) is None
    assert child_processes.collect(2**22 + 1) == ()


@pytest.mark.parametrize(
    ("child", "text"),
    [
        (
            ChildProcess(7, name="pt_data_worker", state="S", wait="futex_do_wait", age_s=33.4),
            "DataLoader worker 7 waits for a lock (futex_do_wait), 33 s old, 0.0 s of CPU",
        ),
        (
            ChildProcess(
                7, name="python", state="S", wait="hrtimer_nanosleep", age_s=3, cpu_s=1.25
            ),
            "child process 7 (python) sleeps (hrtimer_nanosleep), 3 s old, 1.2 s of CPU",
        ),
        (
            ChildProcess(
                7, name="pt_data_worker", state="D", wait="rpc_wait_bit_killable", age_s=9
            ),
            "DataLoader worker 7 waits for NFS (rpc_wait_bit_killable), and cannot be killed meanwhile, "
            "9 s old, 0.0 s of CPU",
        ),
        (
            ChildProcess(7, state="R", age_s=9, cpu_s=9),
            "child process 7 computes, 9 s old, 9.0 s of CPU",
        ),
        (
            ChildProcess(7, name="pt_data_worker", state="Z", ended_by=9),
            "DataLoader worker 7 was killed by SIGKILL",
        ),
        (
            ChildProcess(7, name="python", state="Z", ended_by=34),
            "child process 7 (python) was killed by SIGRTMIN",
        ),
        (
            ChildProcess(7, name="python", state="Z", ended_by=40),
            "child process 7 (python) was killed by signal 40",
        ),
    ],
)
def test_a_child_is_described(child: ChildProcess, text: str) -> None:
    assert child.describe() == text


def test_what_a_child_has_used_since_an_earlier_look_is_told() -> None:
    before = ChildProcess(7, name="pt_data_worker", state="R", age_s=10, cpu_s=4)
    assert ChildProcess(7, name="pt_data_worker", state="R", age_s=14, cpu_s=6.5).describe(
        before
    ) == ("DataLoader worker 7 computes, 14 s old, 2.5 s of CPU in 4 s")
    locked = {"state": "S", "wait": "futex_do_wait", "age_s": 14, "cpu_s": 4.1}
    before = ChildProcess(7, age_s=10, cpu_s=4, switches=1)
    assert ChildProcess(7, **locked, switches=1).doing(before).startswith("waits for a lock")
    ran = ChildProcess(7, **locked, switches=81).doing(before)
    assert ran == "has run 80 times, 14 s old, 0.1 s of CPU in 4 s"


def test_children_that_do_the_same_are_told_in_one_line() -> None:
    workers = [
        ChildProcess(n, name="pt_data_worker", state="S", wait="pipe_read") for n in range(1, 7)
    ]
    lines = describe_all(
        [*workers, ChildProcess(9, name="git", state="S", wait="do_wait", age_s=2)]
    )
    assert lines == (
        "6 DataLoader workers (pids 1, 2, 3, 4, ...), of which each waits for a pipe (pipe_read)",
        "child process 9 (git) waits for a child process (do_wait), 2 s old, 0.0 s of CPU",
    )


def test_many_kinds_of_children_are_four_lines_and_a_number() -> None:
    lines = describe_all([ChildProcess(n, name=f"tool{n}", state="R") for n in range(7)])
    assert len(lines) == 5
    assert lines[-1] == "and 3 other kinds of child processes"
