"""A DataLoader worker waits for ever in its fork, for a lock that nobody in it can release.

CPython gh-112275 does so once in 1,000 to 2,000 forks of a rank whose threads enter the interpreter often (measured
with 3.11.7). The stand-in has the same shape without the luck: the child of one fork waits in a futex before torch has
named it, with one thread and without using the CPU.
"""

import os
import time
from pathlib import Path

from faults.stage import FRAMEWORKS, fault
from paceline.machine import python_fork

FUTEX = """
import ctypes
libc, lock, futex = ctypes.CDLL(None), ctypes.c_int(1), 202 if os.uname().machine == "x86_64" else 98

def wait_for_lock():
    leave("deadlocked", os.getpid())
    libc.syscall(futex, ctypes.byref(lock), 0, 1, None)
"""
DEADLOCK = f"""
{FUTEX}
workers, persistent, length, forks, rank_process = 1, False, 32, [], os.getpid()

def before_fork():
    if os.getpid() == rank_process:
        forks.append(1)
        if rank == 1 and len(forks) == 4:
            broke()

def after_fork():
    first_attempt = not os.path.exists("deadlocked")
    if os.getppid() == rank_process and rank == 1 and len(forks) == 4 and first_attempt:
        wait_for_lock()

os.register_at_fork(before=before_fork, after_in_child=after_fork)
"""
NAMES = (
    "rank 1",
    r"process \d+",
    "futex",
    "gh-112275|py-spy",
    "persistent_workers=True",
    "forkserver",
)


@fault(
    "DataLoader worker is deadlocked in its fork",
    finding="worker-fork-deadlock",
    names=NAMES,
    frameworks=FRAMEWORKS,
)
def test_of_one_rank(stage):
    """At default settings."""
    stage.script(settings=DEADLOCK)
    stage.launch()


@fault(
    "DataLoader worker on the other host is deadlocked in its fork",
    finding="worker-fork-deadlock",
    names=(*NAMES, "host-b"),
    num_hosts=2,
)
def test_on_the_other_host(stage):
    stage.script(settings=DEADLOCK)
    stage.launch()


@fault(
    "DataLoader worker is deadlocked in its fork, and --max-restarts",
    finding="",
    status=0,
    limit_s=60,
    options=("--max-restarts", "1"),
)
def test_it_is_started_again(stage):
    stage.script(settings=DEADLOCK, epochs=6)
    (launcher,) = stage.launch()
    stage.wait_for_line(launcher, "deadlocked in its fork; ranks were started again (1 of 1)")
    assert stage.wait(60)
    notices = [line for line in launcher.err if "can deadlock in a fork" in line.text]
    assert len(notices) == python_fork.has_bug(), (
        "one for the run, not one for each rank or attempt"
    )


@fault(
    "DataLoader worker is deadlocked in its fork, and --on-hang report",
    finding={0: "stopped-by-signal"},
    names=("SIGTERM",),
    status=143,
    limit_s=40,
    options=("--hang-timeout", "3", "--on-hang", "report"),
)
def test_the_look_leaves_it_alive(stage):
    """Also when the ranks are asked for their stacks first, by a signal of which such a worker would die."""
    stage.script(settings=DEADLOCK)
    (launcher,) = stage.launch()
    stage.wait_for_line(launcher, "rank-stuck-in-data")
    stage.wait_for_line(launcher, "worker-fork-deadlock")
    worker = int((stage.folder / "deadlocked").read_text())
    assert Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    assert not launcher.ended()
    launcher.signal(15)


@fault(
    "healthy: workers that wait for a lock, and other forks that do",
    finding="",
    status=0,
    limit_s=90,
)
def test_locks_that_will_be_released(stage):
    """A worker that waits for another one's lock, one that has another name, and a child that is no worker."""
    stage.script(
        epochs=2,
        settings=f"""
{FUTEX}
import multiprocessing
workers, length, shared_lock = 2, 32, multiprocessing.Lock()
if rank == 1 and os.fork() == 0:
    time.sleep(0.5)
    wait_for_lock()

def rename(worker):
    if rank == 0 and worker == 1:
        libc.prctl(15, b"loader", 0, 0, 0)

class DataLoader(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, worker_init_fn=rename, **kwargs)
""",
        sample="""
        from torch.utils.data import get_worker_info
        with shared_lock:
            if not os.path.exists(f"prepared-{rank}"):
                leave(f"prepared-{rank}", get_worker_info().id)
                time.sleep(12)
        """,
        end="""
        if rank == 1:
            os.kill(int(open("deadlocked").read()), 9)
        """,
    )
    stage.launch()
    assert int(stage.wait_for("prepared-0")) in (0, 1)
    time.sleep(8)
    assert os.path.exists(stage.folder / "prepared-1")
