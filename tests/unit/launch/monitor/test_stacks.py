"""How ranks are looked at: by their stack responder, by a signal only if it does not answer; children never by one."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time

import pytest

from paceline.launch.monitor import (
    child_processes,
    child_stacks,
    conditional_line,
    position,
    stacks,
)
from paceline.launch.monitor.position import Frame

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="abstract sockets and /proc are Linux's"
)

RANK = """
import ctypes, os, sys, time
from paceline.launch.probe import stack_responder

stack_responder.install(open("stacks", "w"))


def ready():
    with open("ready", "w") as file:
        file.write("ready\\n")


{body}
"""
HOLDS_THE_LOCK = """
def work():
    ready()
    ctypes.PyDLL(None).sleep(60)


work()
"""
LOADER = """
source = '''
def _worker_loop():
    inside()


def __next__():
    if os.fork() == 0:
        _worker_loop()
    ready()
    time.sleep(60)
'''


def inside():
    time.sleep(60)  # in the dataset


exec(compile(source, "/venv/site-packages/torch/utils/data/dataloader.py", "exec"))
__next__()
"""


@pytest.fixture
def rank(tmp_path):
    running = []

    def start(body):
        script = tmp_path / "train.py"
        script.write_text(RANK.replace("{body}", body))
        process = subprocess.Popen(
            [sys.executable, str(script)], cwd=tmp_path, start_new_session=True
        )
        running.append(process)
        deadline = time.monotonic() + 30
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return process.pid, tmp_path / "stacks"

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def signals(monkeypatch):
    sent = []
    kill = os.kill
    monkeypatch.setattr(os, "kill", lambda pid, signum: (sent.append(pid), kill(pid, signum)))
    return sent


def test_a_rank_that_holds_the_interpreters_lock_is_asked_by_a_signal_as_the_last_means(
    rank, signals
):
    pid, file = rank(HOLDS_THE_LOCK)
    assert stacks.look({0: pid}, {0: file}, quiet=True)[0].frames == ()
    assert not signals
    found = stacks.look({0: pid}, {0: file})[0]
    assert found.frames[-1].code == "ctypes.PyDLL(None).sleep(60)"
    assert signals == [pid]


def test_a_worker_gets_no_signal(rank, signals):
    pid, file = rank(LOADER)
    found = stacks.look({0: pid}, {0: file})[0]
    assert position.classify(found.frames)[0] == position.DATA
    assert not signals


@pytest.mark.skipif(
    not child_stacks.find_py_spy() or os.geteuid() != 0,
    reason="needs py-spy, and rights to read others",
)
def test_the_line_of_a_dataset_in_a_worker_is_read_from_outside(rank):
    pid, file = rank(LOADER)
    found = stacks.look({0: pid}, {0: file})[0]
    place = (file.parent / "train.py").read_text().splitlines().index(
        "    time.sleep(60)  # in the dataset"
    ) + 1
    assert found.worker.endswith(f"train.py:{place}")


def test_a_stopped_rank_is_seen_at_once(rank, signals):
    pid, file = rank(LOADER)
    os.killpg(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while child_processes.look(pid).state != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    started = time.monotonic()
    found = stacks.look({0: pid}, {0: file})[0]
    assert (found.state, found.frames) == ("T", ())
    assert time.monotonic() - started < 0.4
    assert not signals


DUMPED = [
    {
        "thread_name": "pin_memory",
        "os_thread_id": 8,
        "frames": [{"name": "get", "filename": "queue.py", "line": 1}],
    },
    {
        "thread_name": None,  # where the interpreter's names cannot be read
        "os_thread_id": 7,
        "frames": [
            {"name": "Samples.__getitem__", "filename": "data.py", "line": 40},
            {"name": "main.<locals>.load", "filename": "train.py", "line": None},
        ],
    },
]


def test_a_frame_of_py_spy_has_the_name_that_python_gives_it():
    """From Python 3.11 on py-spy prints qualified names, and places of torch are known by plain ones."""
    assert child_stacks.main_thread(7, DUMPED) == [
        ("train.py", 0, "load"),
        ("data.py", 40, "__getitem__"),
    ]
    assert child_stacks.main_thread(9, []) == []


def test_a_file_is_parsed_once_however_many_frames_ranks_and_looks_there_are(tmp_path, monkeypatch):
    parsed = []
    monkeypatch.setattr(
        conditional_line, "tree_of", lambda text: parsed.append(text) or ast.parse(text)
    )
    files = [tmp_path / "first.py", tmp_path / "second.py"]
    for file in files:
        file.write_text(f"if rank == 0:\n    {file.stem}()\n" + "again()\n" * 3000)
    for _ in range(10):
        frames = [Frame(str(file), 3 + n, "f", user=True) for n in range(2000) for file in files]
        first = Frame(str(files[0]), 2, "<module>", user=True)
        assert stacks.at((first, *frames)).guard.startswith("if rank == 0: (")
    assert sorted(parsed) == sorted(file.read_text() for file in files)


def test_few_lines_of_a_stack_are_searched_for_a_condition(tmp_path, monkeypatch):
    searched = []
    monkeypatch.setattr(
        conditional_line, "guard_of", lambda text, line: searched.append(line) and None
    )
    frames = [Frame(str(tmp_path / "train.py"), n, "f", user=True) for n in range(1, 5000)]
    assert stacks.at(tuple(frames)).guard == ""
    assert 10 < len(searched) < 50
    assert {1, 4999} < set(searched)


def test_a_generated_script_is_not_parsed(monkeypatch):
    monkeypatch.setattr(conditional_line, "tree_of", lambda text: pytest.fail("parsed"))
    assert conditional_line.guard_of("again()\n" * 100_000, 5) is None
