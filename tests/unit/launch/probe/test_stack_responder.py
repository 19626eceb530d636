"""What a rank answers about where it is."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from paceline.launch.monitor import stacks
from paceline.launch.probe import stack_responder


def entry(number, *, group="0", retired=True, name="all_reduce", sizes=((4,),)):
    return {
        "collective_seq_id": number,
        "input_sizes": [list(size) for size in sizes],
        "is_p2p": False,
        "process_group": [group, "desc"],
        "profiling_name": f"gloo:{name}",
        "record_id": number - 1,
        "retired": retired,
        "timeout_ms": 1800000,
    }


@pytest.fixture
def recorder(monkeypatch):
    def fill(*entries):
        text = json.dumps(
            {"entries": entries, "nccl_comm_state": {}}, separators=(",", ":")
        ).encode()
        monkeypatch.setitem(
            sys.modules,
            "torch._C._distributed_c10d",
            SimpleNamespace(_dump_fr_trace_json=lambda *_: text),
        )

    return fill


@pytest.mark.parametrize("count", [1, 2, 256, 257, 2000])
def test_the_newest_entries_are_read_without_those_before(recorder, count):
    recorder(*(entry(number) for number in range(1, count + 1)))
    whole = stack_responder.entries()
    assert len(whole) == count
    newest = stack_responder.entries(last=256)
    assert newest == whole[-256:]


def test_what_has_not_come_back_is_pending(recorder):
    recorder(entry(1), entry(2, retired=False, sizes=((2, 3), (4,))))
    state = stack_responder.state()
    assert state["pending"] == [["0", 2, "all_reduce", 10, 1, ""]]
    assert [call[1] for call in state["recent"]] == [1, 2]
    assert state["whole"]
    assert state["recorded"]["flying"]


def test_a_group_that_was_made_again_has_no_past(recorder):
    recorder(entry(8), entry(9), entry(1, name="barrier"), entry(2))
    assert [call[1] for call in stack_responder.state()["recent"]] == [1, 2]


def test_all_threads_are_seen_but_the_one_that_answers():
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait, name="mine")
    thread.start()
    try:
        names = {stack["name"]: stack for stack in stack_responder.stacks()}
    finally:
        waiting.set()
        thread.join()
    assert names["mine"]["frames"][-1][2] == "wait"
    assert not names["mine"]["main"]


def ask(ear, *, user, name=""):
    """Send a question from a process of another user, and return whether it got an answer."""
    code = (
        "import os, socket, sys\n"
        f"os.setuid({user})\n"
        "asker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        f"asker.bind({name!r})\n"
        "asker.settimeout(1)\n"
        f"asker.sendto(b'where', {ear.getsockname()!r})\n"
        "print(len(asker.recv(1 << 18)) > 0)\n"
    )
    return (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        ).stdout
        == "True\n"
    )


@contextlib.contextmanager
def answering(name):
    """A witness in this process, under another name than its own."""

    def answer():
        with contextlib.suppress(OSError):  # it is closed
            stack_responder._answer(made, os.getuid())

    with stack_responder.signed_socket() as made:
        made.bind(name)
        thread = threading.Thread(target=answer)
        thread.start()
        yield made
        made.shutdown(socket.SHUT_RDWR)  # wakes the thread
    thread.join(5)
    assert not thread.is_alive()


@pytest.fixture
def ear():
    with answering("") as made:
        yield made


async def waits_in_a_task(event, has_begun):
    async def inner():
        has_begun.set()
        await event.wait()

    await asyncio.gather(asyncio.sleep(0), inner())


def test_a_thread_that_waits_in_an_event_loop_is_where_its_task_is():
    has_begun, loop = threading.Event(), asyncio.new_event_loop()
    event = asyncio.Event()
    task = waits_in_a_task(event, has_begun)
    thread = threading.Thread(target=loop.run_until_complete, args=(task,), name="loop")
    thread.start()
    try:
        assert has_begun.wait(50)
        seen = []
        while seen[-1:] != [("locks.py", "wait")]:  # the loop may still be on its way there
            (frames,) = [
                each["frames"] for each in stack_responder.stacks() if each["name"] == "loop"
            ]
            seen = [(os.path.basename(file), function) for file, _, function in frames]
        own = os.path.basename(__file__)
        assert seen[-3:-1] == [(own, "waits_in_a_task"), (own, "inner")]
    finally:
        loop.call_soon_threadsafe(event.set)
        thread.join()
        loop.close()


def test_the_same_user_is_answered(ear):
    assert ask(ear, user=os.getuid())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_not_answered(ear):
    assert not ask(ear, user=65534)
    assert ask(ear, user=0), "and who may ask is answered as before"


def test_an_answer_in_the_name_of_a_rank_is_not_believed():
    """Anybody may send to an abstract socket, and see its name once it is bound."""
    name, pid = f"\0paceline-test-{os.getpid()}", os.getppid()
    with answering(name):
        assert stacks._ask_responders({0: name}, {0: pid}, wait_s=0.5) == {}
        assert stacks._ask_responders({0: name}, {0: os.getpid()}, wait_s=5.0)[0]["threads"]


def test_nobody_can_take_a_responders_name_beforehand(monkeypatch, tmp_path):
    """Two ranks of one process id have nothing in common in their names."""
    monkeypatch.setattr(stack_responder, "_answer", lambda listener, user: listener.close())
    monkeypatch.setattr(stack_responder, "SIGNAL", 0)
    names = {stack_responder.install(-1) for _ in range(2)}
    assert len(names) == 2
    assert all(len(name.rpartition("-")[2]) == 32 for name in names)
