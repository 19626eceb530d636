"""Runs in which a rank waits for the world outside while others wait for it: they are noticed, and never ended.

All deadlines are a twentieth of the usual ones: a notice comes after 6 s, and every wait here is longer.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FACTOR = {"PACELINE_TEST_TIME_FACTOR": "0.05"}
WAIT_S = 11
TRAINING = """
import fcntl, os, socket, subprocess, sys, time, urllib.request
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["RANK"])
SECONDS = {seconds}


def wait():
    {wait}


def train(model, optimizer, place):
    for step, (x,) in enumerate(DataLoader(TensorDataset(torch.rand(40, 4)), batch_size=8)):
        if rank == 0 and place == "backward" and step == 2:
            wait()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train(model, optimizer, "")
train(model, optimizer, "{place}")
if rank == 0 and "{place}" == "barrier":
    wait()
dist.barrier()
train(model, optimizer, "")
print("trained", flush=True)
dist.destroy_process_group()
"""
WAITS = {
    "a subprocess": 'subprocess.run(["sleep", str(SECONDS)], check=True)',
    "a lock file": """holder = subprocess.Popen(["flock", "lock", "sleep", str(SECONDS)])
    time.sleep(0.5)
    fcntl.flock(open("lock"), fcntl.LOCK_EX)
    holder.wait()""",
    "a file system that does not answer": """os.mkfifo("pipe")
    server = subprocess.Popen(["sh", "-c", f"sleep {SECONDS}; echo data > pipe"])
    open("pipe").read()
    server.wait()""",
    "a larger share of inference": """until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        torch.rand(64, 64) @ torch.rand(64, 64)""",
    # Its processor belongs to programs of a higher priority: it computes, and gets next to no time.
    "a processor that others use": """core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [core])
    busy = ["taskset", "--cpu-list", str(core), "timeout", str(SECONDS), sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(busy) for _ in range(3)]
    os.nice(19)
    while any(each.poll() is None for each in others):
        torch.rand(64, 64) @ torch.rand(64, 64)""",
    "a download into memory": "urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['PORT']}/\").read()",
}


def assert_left_alone(ended):
    assert ended.status == 0, ended.err
    assert "trained" in ended.out
    assert not re.search(r"(?:error|warning) [A-Z]{3}\d{3}|\[[A-Z]{3}\d{3} ", ended.err), ended.err


@pytest.fixture
def slow_server():
    """An HTTP server that sends a little, again and again, for as long as a wait is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=dribble, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def dribble(server):
    connection, _ = server.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        until = time.monotonic() + WAIT_S
        while time.monotonic() < until:
            connection.sendall(b"x" * 100)
            time.sleep(0.1)


@pytest.mark.parametrize("place", ["barrier", "backward"])
@pytest.mark.parametrize("kind", WAITS)
def test_a_rank_that_waits_for_the_world_outside(command, slow_server, kind, place):
    command.script(
        TRAINING.replace("{wait}", WAITS[kind])
        .replace("{place}", place)
        .replace("{seconds}", str(WAIT_S))
    )
    ended = command.run(
        "--nproc-per-node", 2, "train.py", env={**FACTOR, "PORT": str(slow_server)}, timeout=150
    )
    assert_left_alone(ended)
    notice = re.search(
        r"notice: rank 1 has been waiting for rank 0 for \d+ s \(hang\?\): rank 0 is in (.*)",
        ended.err,
    )
    assert notice, ended.err
    assert re.search(r"train\.py:\d+", notice[1])
    assert "torch ends this wait after 30 min, `--hang-timeout 60` sooner" in ended.err
    assert ended.err.count("notice:") <= 3


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, in a file."""
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    image.touch()
    os.truncate(image, 64 << 20)
    for make in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place]):
        made = subprocess.run(make, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no file system of one's own here: {made.stderr}")
    yield place
    subprocess.run(["fsfreeze", "--unfreeze", place], capture_output=True, check=False)
    subprocess.run(["umount", place], check=True)


def test_a_rank_that_waits_for_a_frozen_file_system(command, small_disk):
    """As a server of files does that is being failed over: the rank is in state D, which no signal reaches."""
    wait = f"""thaw = f"fsfreeze --freeze {small_disk}; sleep {{SECONDS}}; fsfreeze --unfreeze {small_disk}"
    thawed = subprocess.Popen(["sh", "-c", thaw])
    time.sleep(1)
    open("{small_disk}/result", "w").write("1")
    thawed.wait()"""
    command.script(
        TRAINING.replace("{wait}", wait)
        .replace("{place}", "barrier")
        .replace("{seconds}", str(WAIT_S))
    )
    ended = command.run("--nproc-per-node", 2, "train.py", env=FACTOR, timeout=150)
    assert_left_alone(ended)
    assert re.search(
        r"\(hang\?\): rank 0 is in state D, where nothing can end it, train\.py:\d+", ended.err
    ), ended.err


ONCE = f"""
import time
import paceline

session = paceline.Session(seed=0)
print("value", session.once(lambda: time.sleep({WAIT_S}) or 7), flush=True)
print("trained", flush=True)
"""


def test_once_has_no_time_limit_and_shows_progress(command):
    command.script(ONCE)
    ended = command.run("--nproc-per-node", 2, "train.py", env=FACTOR, timeout=150)
    assert_left_alone(ended)
    assert "notice:" not in ended.err


SERVER = """
import os, socket, subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for (x,) in DataLoader(TensorDataset(torch.rand(40, 4)), batch_size=8):
    net(x).sum().backward()
    optimizer.step()
dist.barrier()
print("trained", flush=True)
with socket.create_server(("127.0.0.1", 0)) as server:
    address = server.getsockname()
    call = f"import socket, time; time.sleep(40); socket.create_connection({address})"
    client = subprocess.Popen([sys.executable, "-c", call])
    server.accept()
client.wait()
"""


def test_a_server_after_training(command):
    command.script(SERVER)
    ended = command.run("--nproc-per-node", 2, "train.py", env=FACTOR, timeout=150)
    assert_left_alone(ended)
    assert "none waits for another (a server, or a hang?)" in ended.err


def test_a_stopped_rank_is_called_stopped(command):
    wait = 'subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 8; kill -CONT {os.getpid()}"]).wait()'
    command.script(
        TRAINING.replace("{wait}", wait).replace("{place}", "barrier").replace("{seconds}", "8")
    )
    ended = command.run("--nproc-per-node", 2, "train.py", env=FACTOR, timeout=150)
    assert_left_alone(ended)
    assert re.search(
        r"notice: rank 0 is stopped \(state T\); rank 1 has been waiting", ended.err
    ), ended.err
    assert re.search(r"to let it continue: kill -CONT \d+", ended.err)


TIMEOUT = """
import os, subprocess
from datetime import timedelta
import torch.distributed as dist


def fetch():
    subprocess.run(["sleep", "60"])


dist.init_process_group("gloo", timeout=timedelta(seconds=16))
dist.barrier()
if os.environ["RANK"] == "0":
    fetch()
dist.barrier()
"""


def test_where_torch_ends_a_wait_the_report_blames_what_the_notice_had_named(command):
    command.script(TIMEOUT)
    ended = command.run("--nproc-per-node", 2, "train.py", env=FACTOR, timeout=150)
    assert ended.status == 1
    assert "notice: rank 1 has been waiting for rank 0" in ended.err
    assert "torch ends this wait after 16 s" in ended.err
    assert re.search(
        r"hang: rank 0 \(.*\) has been stuck for \d+ s in .*train\.py:\d+.*\[RUN\d+ rank-stuck-in-code\]",
        ended.block,
    )
    assert "torch ended the wait of rank 1" in ended.block
