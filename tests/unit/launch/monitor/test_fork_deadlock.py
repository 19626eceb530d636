"""A worker that is deadlocked in its fork is told apart from workers that wait, load or have ended."""

from __future__ import annotations

import stat
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline import counters
from paceline.launch.monitor import child_processes, child_stacks, fork_deadlock, fork_watch
from paceline.launch.monitor.child_processes import ChildProcess
from paceline.launch.monitor.fork_deadlock import NativeFrame, WorkerLook
from paceline.machine import python_fork

COMMAND = "python train.py --lr 0.1"
RANK = ChildProcess(
    100, name="python", state="S", threads=9, command=COMMAND, wait="do_sys_poll", age_s=60
)
WORKER = ChildProcess(
    200,
    parent=100,
    name="python",
    state="S",
    command=COMMAND,
    wait="futex_do_wait",
    syscall="202",
    age_s=6,
    switches=3,
)
NOW = WorkerLook(rank=1, host="node-b", waits_s=6.0, process=RANK, worker=WORKER, at_s=50.0)
FIRST = replace(NOW, waits_s=3.0, at_s=47.0, worker=replace(WORKER, age_s=3))
LOOP = NativeFrame("_worker_loop", "torch/utils/data/_utils/worker.py")
DATASET = NativeFrame("__getitem__", "/home/me/data.py")
ATEXIT = NativeFrame("__cxa_atexit", "libc.so.6")
TORCH = NativeFrame("at::set_num_threads(int)", "libtorch_cpu.so")


def with_worker(**changes):
    return replace(NOW, worker=replace(WORKER, **changes))


def test_one_thread_in_a_futex_that_never_runs_and_has_no_name_yet_is_proven():
    assert fork_deadlock.is_proven(FIRST, NOW)


def test_a_kernel_that_hides_its_functions_still_tells_the_system_call(monkeypatch):
    monkeypatch.setattr(child_processes.platform, "machine", lambda: "x86_64")
    hidden = {"wait": "", "syscall": "202"}
    assert fork_deadlock.is_proven(
        replace(FIRST, worker=replace(FIRST.worker, **hidden)), with_worker(**hidden)
    )


def test_where_it_cannot_be_seen_whether_it_has_run_nothing_is_proven():
    hidden = {"switches": -1}
    assert not fork_deadlock.is_proven(
        replace(FIRST, worker=replace(FIRST.worker, **hidden)), with_worker(**hidden)
    )


@pytest.mark.parametrize(
    ("why", "now"),
    [
        ("torch has named it: the lock may be the dataset's", with_worker(name="pt_data_worker")),
        ("its worker_init_fn has named it", with_worker(name="loader-3")),
        ("it has two threads: the other may release the lock", with_worker(threads=2)),
        ("it sleeps", with_worker(wait="hrtimer_nanosleep", syscall="230")),
        ("it reads", with_worker(wait="pipe_read", syscall="0")),
        ("nothing can be seen of its wait", with_worker(wait="", syscall="")),
        ("it computes", with_worker(state="R", wait="", syscall="")),
        ("it is stopped", with_worker(state="T", wait="do_signal_stop")),
        ("a disk is slow", with_worker(state="D", wait="io_schedule", syscall="0")),
        ("it has ended", with_worker(state="Z", wait="", syscall="")),
        ("it has run since", with_worker(switches=4)),
        ("it has used CPU since", with_worker(cpu_s=0.01)),
        ("it is another process", with_worker(pid=201)),
        (
            "it was spawned: it imports, and has not been named",
            with_worker(command="python -c from multiprocessing..."),
        ),
        ("it is the child of a fork server", with_worker(parent=99)),
        ("it is young", with_worker(age_s=4)),
        ("the rank has only begun to wait for it", replace(NOW, waits_s=4)),
        ("the looks are too near to each other", replace(NOW, at_s=FIRST.at_s + 1)),
    ],
)
def test_everything_else_is_not(why, now):
    assert not fork_deadlock.is_proven(FIRST, now), why


def test_a_named_worker_is_accused_where_its_frames_are_torchs_own():
    """pytorch #130610: the pin-memory thread holds glibc's list of exit handlers at the fork."""
    first, now = (
        replace(each, worker=replace(each.worker, name="pt_data_worker")) for each in (FIRST, NOW)
    )
    assert fork_deadlock.is_proven(first, now, (LOOP, TORCH, ATEXIT))
    assert not fork_deadlock.is_proven(first, now, (LOOP, DATASET, ATEXIT))
    assert not fork_deadlock.is_proven(first, now, (TORCH, ATEXIT))
    evidence = "\n".join(fork_deadlock.explain(now, (LOOP, TORCH, ATEXIT)).evidence)
    assert "libtorch_cpu.so" in evidence
    assert "gh-112275" not in evidence


def test_a_lock_of_multiprocessing_that_another_worker_holds_is_not():
    """py-spy sees the frames of a dataset that waits for a multiprocessing.Lock."""
    first, now = (
        replace(look, worker=replace(look.worker, name="pt_data_worker")) for look in (FIRST, NOW)
    )
    enter = NativeFrame("__enter__", "multiprocessing/synchronize.py")
    start = NativeFrame("_launch", "multiprocessing/popen_fork.py")
    lock = NativeFrame("semlock_acquire", "semaphore.c")
    assert not fork_deadlock.is_proven(first, now, (start, LOOP, DATASET, enter, lock))
    assert not fork_deadlock.is_proven(first, now, (start, LOOP, enter, lock))  # worker_init_fn
    assert not fork_deadlock.is_proven(first, now, (start, enter, lock))  # a hook after the fork
    assert fork_deadlock.is_proven(first, now, (start, lock))


def test_the_report_names_the_bug_of_this_python_and_the_ways_out(monkeypatch):
    monkeypatch.setattr(python_fork.sys, "version_info", (3, 11, 7))
    monkeypatch.setattr(python_fork.platform, "python_version", lambda: "3.11.7")
    finding = fork_deadlock.explain(NOW)
    assert finding.name == "worker-fork-deadlock"
    assert "rank 1 (node-b)" in finding.what
    assert "200" in finding.where
    assert "likely: Python 3.11.7" in finding.evidence[1]
    assert all(
        word in finding.fix for word in ("3.11.10 or 3.12", "persistent_workers=True", "forkserver")
    )


def test_a_newer_python_is_not_blamed(monkeypatch):
    monkeypatch.setattr(python_fork.sys, "version_info", (3, 12, 1))
    finding = fork_deadlock.explain(NOW)
    assert "gh-112275" not in finding.evidence[1]
    assert "py-spy" in finding.evidence[1]
    assert not finding.fix.startswith("Python")


@pytest.mark.parametrize(
    ("version", "has_bug"),
    [
        ((3, 10, 14), True),
        ((3, 10, 15), False),
        ((3, 11, 0), True),
        ((3, 11, 9), True),
        ((3, 11, 10), False),
        ((3, 12, 0), False),
        ((3, 13, 0), False),
    ],
)
def test_versions_of_cpython_that_have_the_bug(version, has_bug):
    assert python_fork.has_bug(version, implementation="cpython") is has_bug
    assert not python_fork.has_bug(version, implementation="pypy")


DUMP = """Process 200: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 200 (idle): "MainThread"
    __futex_abstimed_wait_common (libc.so.6)
    sem_wait@@GLIBC_2.34 (libc.so.6)
    PyThread_acquire_lock_timed (libpython3.11.so.1.0)
    _PyThreadState_DeleteExcept (libpython3.11.so.1.0)
    PyOS_AfterFork_Child (libpython3.11.so.1.0)
    _launch (multiprocessing/popen_fork.py:66)
    at::native::(anonymous namespace)::run (libtorch_cpu.so)
    <module> (train.py:3)
"""


def test_frames_of_py_spy_are_read():
    frames = fork_deadlock.parse(DUMP)
    assert [frame.function for frame in frames[:2]] == [
        "<module>",
        "at::native::(anonymous namespace)::run",
    ]
    assert frames[2] == NativeFrame("_launch", "multiprocessing/popen_fork.py")
    assert len(frames) == 8


def test_py_spy_is_asked_if_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(child_stacks, "find_py_spy", lambda: "")
    assert fork_watch.read_frames(200) == ()
    program = tmp_path / "py-spy"
    program.write_text(
        f"#!/bin/sh\n[ \"$*\" = 'dump --native --pid 200' ] && cat <<'END'\n{DUMP}END\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(child_stacks, "find_py_spy", lambda: str(program))
    finding = fork_deadlock.explain(NOW, fork_watch.read_frames(200))
    expected = (
        python_fork.this() if python_fork.has_bug() else "the lock belongs to libpython3.11.so.1.0"
    )
    assert finding.evidence[1].startswith(expected)


class Pulses:
    def __init__(self):
        self.awaited = counters.Awaited()

    def read_awaited(self, local):
        return self.awaited


@pytest.fixture
def watched(monkeypatch):
    """A watch of one rank, a clock, and what /proc shows."""
    now = SimpleNamespace(
        s=1000.0, notices=[], pulses=Pulses(), seen={100: RANK, 200: WORKER}, looks=0
    )

    def look(pid):
        now.looks += 1
        return now.seen.get(pid)

    monkeypatch.setattr(fork_watch.time, "monotonic", lambda: now.s)
    monkeypatch.setattr(child_processes, "look", look)
    group = SimpleNamespace(attempt=SimpleNamespace(ranks={0: 1}, living={0}, pids={0: 100}))
    now.watch = fork_watch.ForkWatch(group, now.pulses, inform=now.notices.append)
    return now


def after(watched, seconds):
    """Tick for a time; return what is found and when."""
    start = watched.s
    while watched.s - start < seconds:
        if watched.pulses.awaited.since_ns:
            age_s = watched.s - watched.pulses.awaited.since_ns / 1e9
            watched.seen[200] = replace(watched.seen[200], age_s=age_s)
        finding = watched.watch.tick()
        if finding is not None:
            return finding.name, watched.s - start
        watched.s += 0.1
    return None


def test_nothing_is_read_as_long_as_batches_come(watched):
    for _ in range(50):
        watched.pulses.awaited = counters.Awaited(200, int(watched.s * 1e9))
        assert after(watched, 1.0) is None
    assert watched.looks == 0


def test_a_deadlock_is_named_within_ten_seconds_and_once(watched):
    watched.pulses.awaited = counters.Awaited(200, int(watched.s * 1e9))
    name, seconds = after(watched, 60)
    assert name == "worker-fork-deadlock"
    assert 5 <= seconds < 8
    assert after(watched, 60) is None


def test_a_worker_that_runs_now_and_then_is_not_named(watched):
    watched.pulses.awaited = counters.Awaited(200, int(watched.s * 1e9))
    for number in range(60):
        watched.seen[200] = replace(WORKER, switches=number)
        assert after(watched, 1.0) is None


def test_a_worker_that_cannot_be_told_is_not_named(watched):
    watched.pulses.awaited = counters.Awaited(0, int(watched.s * 1e9))
    assert after(watched, 60) is None
    assert watched.looks == 0


def test_forks_for_every_loop_are_told_once_where_python_has_the_bug(watched, monkeypatch):
    monkeypatch.setattr(fork_watch.python_fork, "has_bug", lambda: True)
    assert after(watched, 5) is None
    assert watched.notices == []
    watched.pulses.awaited = counters.Awaited(forked_again=1)
    after(watched, 5)
    assert len(watched.notices) == 1
    assert "rank 1" in watched.notices[0].what
    assert "persistent_workers=True" in watched.notices[0].advice


def test_no_notice_with_a_newer_python(watched, monkeypatch):
    monkeypatch.setattr(fork_watch.python_fork, "has_bug", lambda: False)
    watched.pulses.awaited = counters.Awaited(forked_again=3)
    after(watched, 5)
    assert watched.notices == []
