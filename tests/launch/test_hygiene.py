"""Signals, and what is left afterwards: nothing."""

from __future__ import annotations

import os
import signal
import time

import pytest

from starting import METHODS

# Each rank has two loader workers and writes its process ids; then it does what argv[1] says.
BUSY = """
import os, signal, sys, time
from torch.utils.data import DataLoader

class Samples:
    def __len__(self): return 1000
    def __getitem__(self, index):
        if index > 4: time.sleep(600)
        return index

def main():
    rank = os.environ["RANK"]
    how, method = sys.argv[1:3]
    if how == "ignore":
        for name in ("SIGTERM", "SIGINT", "SIGHUP"): signal.signal(getattr(signal, name), signal.SIG_IGN)
    if how == "polite":
        def stop(number, frame):
            time.sleep(0.5)
            open(f"saved-{rank}", "w").write(signal.Signals(number).name + "\\n")
            sys.exit(0)
        for name in ("SIGTERM", "SIGINT", "SIGHUP"): signal.signal(getattr(signal, name), stop)
    it = iter(DataLoader(Samples(), num_workers=2, multiprocessing_context=method))
    next(it)
    open(f"ready-{rank}", "w").write(f"{os.getpid()}\\n")
    time.sleep(600)

if __name__ == "__main__":
    main()
"""


def busy(command, how, *options, method="fork", ranks=2):
    command.script(BUSY)
    running = command.start("--nproc-per-node", ranks, *options, "train.py", how, method)
    for rank in range(ranks):
        command.wait_for(command.folder / f"ready-{rank}")
    return running


@pytest.mark.parametrize(
    ("signum", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["INT", "TERM", "HUP"],
)
def test_ranks_may_end_by_themselves_and_nothing_is_left(command, signum, status):
    running = busy(command, "polite")
    os.kill(int((command.folder / "ready-1").read_text()), signal.SIGSTOP)  # by somebody
    running.signal(signum)
    ended = running.wait()
    assert ended.status == status, ended.err
    for rank in range(2):
        assert (command.folder / f"saved-{rank}").read_text() == signal.Signals(signum).name + "\n"
    assert f"{signal.Signals(signum).name} from pid {os.getpid()}" in ended.err
    assert f"exit status {status}" in ended.block
    assert not command.survivors()


def test_ranks_that_ignore_the_signal_are_killed_after_the_grace_time(command):
    running = busy(command, "ignore", "--grace-s", "2")
    running.signal(signal.SIGTERM)
    begun = time.monotonic()
    ended = running.wait()
    assert 2 <= time.monotonic() - begun < 10
    assert ended.status == 143
    assert not command.survivors()


def test_a_second_interrupt_ends_everything_at_once(command):
    running = busy(command, "ignore")
    running.signal(signal.SIGINT)
    time.sleep(0.5)
    running.signal(signal.SIGINT)
    begun = time.monotonic()
    ended = running.wait()
    assert time.monotonic() - begun < 4  # not the 30 s of grace
    assert ended.status == 130
    assert not command.survivors()


def test_a_rank_in_a_native_wait_is_killed_with_the_second_interrupt(command):
    command.script(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\nrank = dist.get_rank()\n"
        "open(f'ready-{rank}', 'w').write('here\\n')\n"
        "if rank == 0: dist.all_reduce(torch.ones(1))\n"
        "time.sleep(600)\n"
    )
    running = command.start("--nproc-per-node", "2", "train.py")
    command.wait_for(command.folder / "ready-0")
    time.sleep(0.3)
    running.signal(signal.SIGINT)
    time.sleep(0.5)
    running.signal(signal.SIGINT)
    assert running.wait(timeout=8).status == 130
    assert not command.survivors()


@pytest.mark.parametrize("method", METHODS)
def test_nothing_outlives_a_killed_launcher(command, method):
    running = busy(command, "ignore", method=method)
    running.signal(signal.SIGKILL)
    running.process.wait()
    assert command.survivors(within_s=10.0) == []


def test_a_killed_launcher_still_lets_ranks_save(command):
    running = busy(command, "polite")
    running.signal(signal.SIGKILL)
    running.process.wait()
    for rank in range(2):
        assert command.wait_for(command.folder / f"saved-{rank}", timeout=5) == "SIGTERM\n"
    assert command.survivors(within_s=10.0) == []


def test_nothing_outlives_the_killed_warm_process(command):
    running = busy(command, "ignore")
    warm = [pid for pid in children(running.process.pid) if comm(pid) == "paceline-warm"]
    assert len(warm) == 1
    os.kill(warm[0], signal.SIGKILL)
    ended = running.wait(timeout=20)
    assert ended.status == 1
    assert command.survivors(within_s=10.0) == []


@pytest.mark.parametrize("method", METHODS)
def test_loader_workers_of_a_killed_rank_are_ended(command, method):
    running = busy(command, "plain", method=method)
    os.kill(int((command.folder / "ready-1").read_text()), signal.SIGKILL)
    ended = running.wait(timeout=20)
    assert ended.status == 1
    assert "rank 1 was killed by SIGKILL" in ended.block
    assert command.survivors(within_s=2.0) == []


def test_a_signal_while_nodes_are_awaited_ends_the_launcher_at_once(command):
    command.script("print('never')")
    running = command.start(
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        "9",
        "train.py",
    )
    waiting = running.process.stderr.readline()  # after 5 s it says whom it waits for
    assert "waiting for the head" in waiting
    running.signal(signal.SIGTERM)
    begun = time.monotonic()
    assert running.wait().status == 143
    assert time.monotonic() - begun < 5


def test_user_signals_are_handed_on_when_asked_for(command):
    command.script(
        "import os, signal, sys, time\n"
        "def stop(number, frame):\n    open('got', 'w').write(signal.Signals(number).name + '\\n'); sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, stop)\nopen('ready', 'w').write('here\\n')\ntime.sleep(60)\n"
    )
    running = command.start("--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1", "train.py")
    command.wait_for(command.folder / "ready")
    running.signal(signal.SIGUSR1)
    assert running.wait().status == 128 + signal.SIGUSR1
    assert (command.folder / "got").read_text() == "SIGUSR1\n"


def children(pid):
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


def comm(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
