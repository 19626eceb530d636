"""How ranks are looked at: by their stack responder, by a signal only if it does not answer; children never by one."""

from __future__ import annotations

import ast
import errno
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
from paceline.launch.probe import stack_responder
from paceline.machine import system

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="abstract sockets and /proc are Linux's"
)

RANK = """
import ctypes, os, sys, time
from paceline.launch.probe import stack_responder

address = stack_responder.install(open("stacks", "w"))
libc = ctypes.PyDLL(None, use_errno=True)  # its calls hold the interpreter's lock


def ready():
    with open("new", "w") as file:
        file.write(address)
    os.rename("new", "ready")


{body}
"""
HOLDS_THE_LOCK = """
def work():
    ready()
    libc.sem_wait(ctypes.create_string_buffer(64))  # without a timeout


work()
"""
# Calls of C code that return early after a signal, with what they return at their end, or errno.
INTERRUPTED = {
    "libc.sleep(3)": 0,
    "libc.usleep(3000000)": 0,
    "libc.nanosleep(seconds(3), None)": 0,
    "libc.poll(None, 0, 3000)": 0,
    "libc.select(0, None, None, None, seconds(3))": 0,
    "libc.epoll_wait(libc.epoll_create1(0), room, 1, 3000)": 0,
    "libc.sem_timedwait(room, seconds(time.time() + 3))": errno.ETIMEDOUT,
    "libc.sigtimedwait(room, None, seconds(3))": errno.EAGAIN,
    "libc.recv(with_timeout(ends[0]), room, 1, 0)": errno.EAGAIN,
    "libc.semtimedop(libc.semget(0, 1, 896), shorts(0, -1, 0), 1, seconds(3))": errno.EAGAIN,
}
CALL = """
import socket, struct

room, shorts = ctypes.create_string_buffer(256), ctypes.c_short * 3
ends = socket.socketpair()


def seconds(count):
    return (ctypes.c_long * 2)(int(count), 0)


def with_timeout(end):
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 3, 0))
    return end.fileno()


ready()
returned = {call}
with open("new", "w") as file:
    file.write(str(ctypes.get_errno() if returned == -1 else returned))
os.rename("new", "returned")
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
        address = (tmp_path / "ready").read_text()
        return {0: process.pid}, {0: address}, {0: tmp_path / "stacks"}

    yield start
    for process in running:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def signals(monkeypatch):
    sent = []
    send = system.signal_main_thread
    monkeypatch.setattr(
        system, "signal_main_thread", lambda pid, signum: sent.append(pid) or send(pid, signum)
    )
    return sent


def test_a_rank_that_holds_the_interpreters_lock_is_asked_by_a_signal_as_the_last_means(
    rank, signals
):
    asked = rank(HOLDS_THE_LOCK)
    assert stacks.look(*asked, quiet=True)[0].frames == ()
    assert not signals
    found = stacks.look(*asked)[0]
    assert found.frames[-1].code.startswith("libc.sem_wait(")
    assert signals == [asked[0][0]]


@pytest.mark.parametrize("call, returned", INTERRUPTED.items())
def test_a_call_that_a_signal_would_end_is_left_alone(rank, signals, tmp_path, call, returned):
    asked = rank(CALL.replace("{call}", call))
    while not (tmp_path / "returned").exists():
        stacks.look(*asked)
    assert (tmp_path / "returned").read_text() == str(returned)
    assert not signals


LOCK, TIMED = "202 0x7f 0x80 0x0 0x0 0x0", "202 0x7f 0x189 0x0 0x7ffd 0x0"
WAITS = "voluntary_ctxt_switches"
CATCHES = {"SigCgt": f"{1 << (stack_responder.SIGNAL - 1):x}", "SigBlk": "0", WAITS: "5"}
COMPUTES = {"State": "R (running)"}


@pytest.mark.parametrize(
    "call, before, now, expected",
    [
        (LOCK, {}, {}, True),
        (TIMED, {}, {}, False),
        ("7 0x0 0x0 0xbb8 0x0 0x0", {}, {}, False),
        ("", {}, {}, False),
        ("running", COMPUTES, COMPUTES, True),
        ("running", COMPUTES, {**COMPUTES, WAITS: "6"}, False),
        (LOCK, {}, {"SigCgt": "0"}, False),
        (LOCK, {}, {"SigBlk": CATCHES["SigCgt"]}, False),
    ],
)
def test_which_threads_a_signal_cannot_harm(call, before, now, expected):
    first, second = ({"State": "S (sleeping)", **CATCHES, **more} for more in (before, now))
    assert stacks.is_harmless(call, first, second, machine="x86_64") is expected


def test_a_worker_gets_no_signal(rank, signals):
    found = stacks.look(*rank(LOADER))[0]
    assert position.classify(found.frames)[0] == position.DATA
    assert not signals


@pytest.mark.skipif(
    not child_stacks.find_py_spy() or os.geteuid() != 0,
    reason="needs py-spy, and rights to read others",
)
def test_the_line_of_a_dataset_in_a_worker_is_read_from_outside(rank, tmp_path):
    found = stacks.look(*rank(LOADER))[0]
    place = (tmp_path / "train.py").read_text().splitlines().index(
        "    time.sleep(60)  # in the dataset"
    ) + 1
    assert found.worker.endswith(f"train.py:{place}")


def test_a_stopped_rank_is_seen_at_once(rank, signals):
    asked = rank(LOADER)
    pid = asked[0][0]
    os.killpg(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while child_processes.look(pid).state != "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    started = time.monotonic()
    found = stacks.look(*asked)[0]
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
