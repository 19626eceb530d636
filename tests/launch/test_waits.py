"""Ranks that wait for each other in vain: what the last lines say, and what ends the run."""

from __future__ import annotations

import signal
import socket
import textwrap

import pytest

from starting import started, wait_for

pytestmark = pytest.mark.ci

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


ASYNC = """
if rank == 0:
    work = dist.all_reduce(numbers, async_op=True)
else:
    work = dist.all_gather([torch.ones(3)] * 2, numbers, async_op=True)
work.wait()
"""
DESTROYED = """
if rank == 1:
    dist.destroy_process_group()
    time.sleep(60)
dist.all_reduce(numbers)
"""
TWO_GROUPS = """
data, plain = dist.new_group([0, 1], group_desc="data"), dist.new_group([0, 1])
def reduce(group):
    dist.all_reduce(numbers, group=group)
for group in (data, plain) if rank == 0 else (plain, data):
    reduce(group)
"""
PROVEN = {
    "each receives from the other": (
        "dist.recv(numbers, 1 - rank)\n",
        ("to send or receive", "recv from rank 1, train.py:5", "recv from rank 0, train.py:5"),
    ),
    "two operations without waiting in them": (
        ASYNC,
        ("rank 0 called all_reduce #1", "rank 1 called all_gather #1"),
    ),
    "one destroys the group": (
        DESTROYED,
        ("rank 1 (", "has destroyed the process group in which rank 0 waits: all_reduce #1"),
    ),
    "one creates a group": (
        "if rank == 1:\n    dist.new_group([0, 1])\nelse:\n    dist.all_reduce(numbers)\n",
        ("rank 1 (", "new_group, train.py:6", "all_reduce #1, train.py:8"),
    ),
    "two groups in opposite order": (
        TWO_GROUPS,
        (
            "in different groups (group data (ranks 0-1) and group 2 (ranks 0-1))",
            "train.py:8, called from train.py:10, in group data (ranks 0-1)",
            "train.py:8, called from train.py:10, in group 2 (ranks 0-1)",
        ),
    ),
}


@pytest.mark.parametrize("body, said", PROVEN.values(), ids=PROVEN)
def test_ranks_that_can_never_go_on_are_ended_and_told_apart(command, body, said):
    block = hung(command, body)
    assert "proven: " in block
    assert [text for text in said if text not in block] == []


DESTROYED_BESIDE_DDP = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
if rank == 1:
    dist.destroy_process_group()  # the model could still call the group: this is no proof
    time.sleep(14)
    sys.exit(3)
dist.all_reduce(numbers)
"""


def test_a_destroyed_group_that_a_model_holds_is_said_in_the_wait(command):
    command.script("import sys\n" + START.replace("TIMEOUT", "600") + DESTROYED_BESIDE_DDP)
    factor = {"PACELINE_TEST_TIME_FACTOR": "0.2"}
    ended = command.run("--nproc-per-node", 2, "train.py", env=factor, timeout=50)
    assert "in rank 1, the default process group was destroyed" in ended.err
    assert "proven: " not in ended.block and "sys.exit(3)" in ended.block, ended.err


def test_ranks_that_receive_from_each_other_go_on_when_a_timer_sends(command):
    body = """
    import threading
    if rank == 1:
        threading.Timer(10, dist.send, (numbers, 0)).start()
    dist.recv(numbers, 1 - rank)
    if rank == 0:
        dist.send(numbers, 1)
    dist.barrier()
    """
    command.script(START.replace("TIMEOUT", "600") + textwrap.dedent(body))
    ended = command.run("--nproc-per-node", 2, "train.py")
    assert ended.status == 0, ended.err


def test_types_that_differ_are_named_with_the_line_of_each_rank(command):
    kind = "numbers = torch.ones(4, dtype=torch.float64 if rank else torch.float32)\n"
    block = hung(command, kind + "dist.all_reduce(numbers)\n")
    assert "rank 1: all_reduce #1 of 4 elements (Double), train.py:6" in block
    assert "shape and dtype" in block


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from paceline.cli.main import main
sys.argv = ["paceline", "run", "--nproc-per-node", "14", "limit.py"]
main()
"""


@pytest.mark.cold
def test_a_low_soft_limit_of_open_files_is_raised_for_the_launcher_alone(command):
    command.script(
        "import resource\nprint(*resource.getrlimit(resource.RLIMIT_NOFILE))", "limit.py"
    )
    ended = command.run(command.script(FEW_FILES), program="python")
    assert ended.status == 0, ended.err
    assert "ranks" in ended.err and {line.split()[0] for line in ended.out.splitlines()} == {"96"}


@pytest.mark.cold
def test_why_says_where_the_ranks_of_a_run_of_paceline_are(command):
    command.script(START.replace("TIMEOUT", "600") + SLEEPS + "dist.all_reduce(numbers)\n")
    running = command.start("--nproc-per-node", 2, "--run-dir", "run", "train.py")
    wait_for(command.folder / "run" / "events.jsonl", 30)
    for word in ("run", running.process.pid):
        while "ranks 0-1 of 2" not in (seen := started(command.folder, "why", word)).stdout:
            pass  # not all ranks have begun
        assert f" on {socket.gethostname()}, started by paceline run" in seen.stdout
        assert "rank 1 (" in seen.stdout and "time.sleep(60)" in seen.stdout
    running.signal(signal.SIGTERM)
    assert running.wait().status == 143


LOST_IN_A_WORKER = """
from torch.utils.data import DataLoader
class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        class Broken(Exception): pass
        if rank == 1:
            raise Broken
        return index
for batch in DataLoader(Samples(), num_workers=1):
    dist.all_reduce(numbers)
"""


def test_an_exception_that_only_a_log_shows_is_said_in_the_wait_and_at_its_end(command):
    command.script(START.replace("TIMEOUT", "12") + LOST_IN_A_WORKER)
    factor = {"PACELINE_TEST_TIME_FACTOR": "0.2"}
    ended = command.run("--nproc-per-node", 2, "train.py", env=factor, timeout=50)
    said = "in rank 1, its log shows AttributeError: Can't pickle local object"
    notice, block = (
        ended.err.split("notice: rank 0 has been waiting for rank 1 for")[1:],
        ended.block,
    )
    assert said in notice[0], ended.err
    assert said in block, block
