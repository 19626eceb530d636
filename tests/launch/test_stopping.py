"""Runs that stop before their end, to be resumed: by a notice, by the clock, by the script, or by the loss of the head.

The script is what a Session does, as far as the launcher sees it: a signal sets a flag, the ranks save and end with 75.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import signal
import socket
import time

import psutil
import pytest

import commits
from launch.test_nodes import nodes
from starting import free_port

SAVING = (
    f"MANIFEST = {commits.text(150)!r}"
    + """
import os, pathlib, signal, sys, time
asked = []
for name in ("SIGTERM", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), lambda number, frame: asked.append(signal.Signals(number).name))
rank, attempt = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
folder = pathlib.Path(os.environ["PACELINE_RUN_DIR"]) / "checkpoints"
print("rank", rank, "attempt", attempt, "goes on" if folder.exists() else "begins")
if folder.exists():
    sys.exit()
open(f"up-{rank}", "w").write("here\\n")
while not asked and "leave" not in sys.argv[1:]: time.sleep(0.02)
if "too long" in sys.argv[1:]:
    (folder / ".00002-step-300.tmp").mkdir(parents=True, exist_ok=True)
    while True:
        (folder / ".00002-step-300.tmp" / "data").write_text("more")
        time.sleep(0.1)
if "leave" in sys.argv[1:] and rank != 1: time.sleep(60)
if rank == 0:
    (folder / "00001-step-150").mkdir(parents=True)
    (folder / "00001-step-150" / "manifest.json").write_text(MANIFEST)
open(f"got-{rank}", "w").write(" ".join(asked) + "\\n")
time.sleep(0.3 * rank)
sys.exit(75)
"""
)


HANGING = """
import atexit, queue, sys, threading, time
import torch, torch.distributed as dist

def prefetch():
    raise ValueError("shard 17 is broken")

def rest():
    time.sleep(60)

dist.init_process_group("gloo")
rank, group = dist.get_rank(), dist.new_group([0, 1])
open(f"up-{rank}", "w").write("here\\n")
if "outlive" in sys.argv:
    atexit.register(rest)
    if rank == 1:
        threading.Thread(target=rest, name="uploader").start()
    sys.exit()
if rank == 1 and "prefetch" in sys.argv:
    threading.Thread(target=prefetch, name="prefetch").start()
    queue.Queue().get()
work = dist.all_reduce(torch.ones(3), group=group if rank else None, async_op=True)
work.wait()
"""
DIED = r"in rank 1, thread prefetch raised ValueError: shard 17 is broken \("
KEPT = r"done with the script, and thread 'uploader' keeps it alive: time\.sleep\(60\) \(rest, train\.py:9\)"


def line_of(ended, label):
    (line,) = re.findall(f"^{label}[^:]*: (.*)$", ended.block, flags=re.M)
    return line


def test_a_notice_stops_the_run_well_and_the_printed_line_goes_on_in_its_folder(command):
    """No restart is spent, the ranks get SIGTERM, and the second start leaves the files of the first alone."""
    command.script(SAVING)
    running = command.start("--nproc-per-node", 2, "--max-restarts", 3, "train.py", "two words")
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    for below in psutil.Process(
        running.process.pid
    ).children():  # Slurm sends it to all processes of a step
        below.send_signal(signal.SIGUSR1)
    running.signal(signal.SIGUSR1)
    first = running.wait()
    assert first.status == 75, first.err
    assert [(command.folder / f"got-{rank}").read_text() for rank in range(2)] == ["SIGTERM\n"] * 2
    told = first.block.splitlines()[1]
    assert re.fullmatch(
        r"stopped by SIGUSR1 from pid \d+ .*, to be resumed   \[RUN017 run-unfinished\]", told
    )
    assert f"last checkpoint: step 150, {first.run_dir}/checkpoints/00001-step-150" in first.block
    assert "started again" not in first.err
    assert "Traceback" not in first.err
    folder = command.folder / first.run_dir
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    words = shlex.split(line_of(first, "resume"))
    assert words[-2:] == ["train.py", "two words"]
    second = command.run(*words[2:])
    assert second.status == 0, second.err
    assert second.out == "rank 0 attempt 0 goes on\n"
    assert second.run_dir == first.run_dir
    appended = {folder / "events.jsonl", folder / "speed.jsonl"}
    changed = {*appended, folder / "speed.json"}  # the last of these is of the running attempt
    assert {path: path.read_bytes() for path in before if path not in changed} == {
        path: content for path, content in before.items() if path not in changed
    }
    for path in appended & set(before):
        assert path.read_bytes().startswith(before[path])
    assert (folder / "logs" / "rank-001.attempt-1.out").read_text() == "rank 1 attempt 0 goes on\n"
    assert (folder / "plan.attempt-1.json").exists()
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["attempt"] for event in told if event["kind"] == "start"] == [0, 1]
    assert [event["exit_status"] for event in told if event["kind"] == "outcome"] == [75, 0]


def test_ranks_that_leave_by_themselves_spend_no_restart(command):
    """One after the other, and one crashes in the interpreter's teardown: its work was done."""
    command.script(
        "import os, sys, time\nclass Last:\n    def __del__(self): os.kill(os.getpid(), 6)\n"
        "rank = int(os.environ['RANK'])\nlast = Last() if rank == 1 else None\ntime.sleep(0.3 * rank)\nsys.exit(75)\n"
    )
    ended = command.run("--nproc-per-node", 3, "--max-restarts", 2, "train.py")
    assert ended.status == 75, ended.err
    assert "stopped by the script itself, to be resumed" in ended.block
    assert "last checkpoint: none in the run folder" in ended.block
    assert "started again" not in ended.err


@pytest.mark.slow
def test_the_clock_of_one_node_stops_the_run_on_all(command):
    command.script(SAVING)
    port = free_port()
    (head,) = nodes(command, [1], "--nnodes", 2, port=port)
    other = command.start(
        *("--nnodes", 2, "--node-rank", 1, "--master-addr", "127.0.0.1", "--master-port", port),
        *("--nproc-per-node", 1, "--max-time", "0:09", "train.py"),
    )
    ended = [head.wait(), other.wait()]
    assert [end.status for end in ended] == [75, 75], [end.err for end in ended]
    assert ended[0].block == ended[1].block
    assert ended[1].seconds >= 9
    assert "stopped by --max-time 0:09, to be resumed" in ended[0].block
    assert "resume, on all 2 nodes, each with its own --node-rank: paceline run" in ended[0].block
    assert [(command.folder / f"got-{rank}").read_text() for rank in range(2)] == ["SIGTERM\n"] * 2


def test_a_checkpoint_that_the_grace_cuts_off_is_a_finding(command):
    command.script(SAVING)
    running = command.start("--grace-s", 1, "train.py", "too long")
    command.wait_for(command.folder / "up-0")
    running.signal(signal.SIGTERM)
    ended = running.wait()
    assert ended.status == 143, ended.err
    assert "a checkpoint was not whole when the ranks were killed, 1 s after SIGTERM" in ended.block
    assert "[RUN016 grace-too-short]" in ended.block
    assert f"not committed: {ended.run_dir}/checkpoints/.00002-step-300.tmp" in ended.block
    assert "  fix: --grace-s 60" in ended.block


@pytest.mark.slow
def test_a_rank_that_leaves_the_others_is_the_cause(command):
    command.script(SAVING)
    ended = command.run("--nproc-per-node", 2, "--grace-s", 1, "train.py", "leave")
    assert ended.status == 1, ended.err
    assert "rank 1 ended with status 75 (to be resumed), and the others did not" in ended.block
    assert "rank 0: stopped because rank 1 failed" in ended.block
    assert 5 < ended.seconds < 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_without_the_head_nobody_waits_for_a_restart(command, kind):
    """Restarts are left, but no place to meet."""
    command.script(
        "import os, pathlib, time\nrank = os.environ['RANK']\n"
        "folder = pathlib.Path(os.environ['PACELINE_RUN_DIR'], 'checkpoints', '00003-step-40')\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        f"(folder / 'manifest.json').write_text({commits.text(40)!r})\n"
        "open('up-' + rank, 'w').write('here\\n')\ntime.sleep(120)\n"
    )
    port = free_port()
    options = ("--nnodes", 2, "--max-restarts", 3)
    if kind == "static":
        started = nodes(command, [1, 1], *options, port=port)
    else:  # whoever comes first hosts the store
        (head,) = nodes(command, [1], *options, kind=kind, port=port)
        await_listener(port)
        started = [head, *nodes(command, [1], *options, kind=kind, port=port)]
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(1.5)  # a few signs of life
    started[0].signal(signal.SIGKILL)
    begun = time.monotonic()
    ended = started[1].wait()
    assert time.monotonic() - begun < 15
    assert ended.status == 1
    assert "agent-died" in ended.block
    line = line_of(ended, "resume from step 40, on all 2 nodes")
    assert line.startswith("paceline run ") and " --nnodes 2 " in line  # as they were typed
    assert line_of(ended, "auto-resume") == f"(trap exit INT; until {line}; do sleep 10; done)"
    started[0].process.wait()
    assert command.survivors(within_s=10) == []


def await_listener(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"nobody listens on {port}")


def hanging(command, signum, *words, after_s):
    """Return how a run ended that hung before a signal (a notice comes after 2.4 s), and how fast it ended."""
    command.script(HANGING)
    env = {"PACELINE_TEST_TIME_FACTOR": "0.02"}
    running = command.start("--nproc-per-node", 2, *words, env=env)
    for rank in range(2):
        command.wait_for(command.folder / f"up-{rank}")
    time.sleep(after_s)
    running.signal(signum)
    start = time.monotonic()
    return running.wait(), time.monotonic() - start


@pytest.mark.parametrize(
    ("word", "noticed", "said"),
    [
        (
            "prefetch",
            f"rank 0 has been waiting for rank 1 .*(\n  .*)*\n  {DIED}",
            "at train.py:21; rank 0 waits",
        ),
        (
            "outlive",
            f"(\n  .*)*\n  rank 1 is {KEPT}",
            "an atexit hook keeps it alive: time.sleep(60) (rest, train.py:9)",
        ),
    ],
)
def test_a_hang_that_is_interrupted_says_where_the_ranks_were(command, word, noticed, said):
    ended, _ = hanging(command, signal.SIGTERM, "train.py", word, after_s=8)
    assert ended.status == 143, ended.err
    assert re.search(f"notice: .*{noticed}", ended.err), ended.err
    assert re.search(r"\n  nothing had moved before: ranks? \d.* for \d+ s", ended.block)
    assert said in ended.block
    assert re.search(rf"\n  (rank 1 .*{KEPT}|{DIED})", ended.block), ended.block


def test_ctrl_c_does_not_wait_for_ranks_that_wait_for_an_asynchronous_collective(command):
    ended, took_s = hanging(command, signal.SIGINT, "--on-hang", "off", "train.py", after_s=2)
    assert ended.status == 130, ended.err
    assert took_s < 12
