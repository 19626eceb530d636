"""One living run per folder: who is gone, who lives, and what a newcomer does until it knows."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from paceline import deadlines, env
from paceline.errors import UsageError
from paceline.rundir import lease, lease_file
from paceline.rundir.files import RunDir
from paceline.rundir.lease import FREE, LIVING, UNKNOWN, LeaseWatch, judge
from paceline.rundir.lease_file import Owner
from refusals import refusal

ELSEWHERE = Owner("theirs", host="node9", machine="another boot", pid=7, started=1)


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setenv(env.TEST_TIME_FACTOR, "0.02")  # a heartbeat at 0.1 s, expiry after 1.2 s
    monkeypatch.delenv(env.JOB_ID, raising=False)


@pytest.fixture
def said():
    return []


@pytest.fixture
def take(tmp_path, said):
    taken = []

    def take(owner=None, **options):
        taken.append(
            lease.take(tmp_path, owner or lease_file.this_process(), say=said.append, **options)
        )
        return taken[-1]

    yield take
    for each in taken:
        each.users = 1
        each.release()


def leave(folder, owner):
    lease.acquire(folder, owner, say=print)


@pytest.mark.parametrize(
    ("owner", "mine", "alive", "verdict"),
    [
        ({}, {}, False, FREE),  # killed, and started again on this machine
        ({}, {}, True, LIVING),
        ({"job": "5"}, {"job": "5"}, True, LIVING),  # by hand beside its own job
        ({}, {}, None, UNKNOWN),
        ({"job": "5", "restarts": 0}, {"job": "5", "restarts": 1}, None, FREE),  # queued again
        ({"job": "5", "pid": 0}, {"job": "5"}, None, FREE),  # what the job script has reserved
        ({"job": "5"}, {"job": "5"}, None, UNKNOWN),  # two steps of one job on two nodes
        ({"job": "5"}, {"job": "6"}, None, UNKNOWN),
        ({"job": "5", "restarts": 0}, {"job": "6", "restarts": 1}, None, UNKNOWN),
    ],
)
def test_first_look(owner, mine, alive, verdict):
    assert judge(replace(ELSEWHERE, **owner), replace(ELSEWHERE, **mine), alive=alive) == verdict


@pytest.mark.parametrize(
    ("looks", "alive", "verdicts"),
    [
        ([(0, 1), (59, 1), (60, 1)], None, [UNKNOWN, UNKNOWN, FREE]),
        ([(0, 1), (5, 2), (9, 2), (10, 3)], None, [UNKNOWN, UNKNOWN, UNKNOWN, LIVING]),
        (
            [(0, 1), (50, 2)],
            None,
            [UNKNOWN, LIVING],
        ),  # one heartbeat that the file server showed late
        ([(0, 1), (9, 1), (10, 1)], True, [UNKNOWN, UNKNOWN, LIVING]),
    ],
)
def test_the_counter_is_watched_by_the_newcomers_own_clock(looks, alive, verdicts):
    watch = LeaseWatch(expiry_s=60, patience_s=10)
    assert [
        watch.sees(replace(ELSEWHERE, count=count), at, alive=alive) for at, count in looks
    ] == verdicts


def test_a_folder_that_nobody_has(take, tmp_path, said):
    held = take()
    assert lease_file.read(tmp_path).pid == os.getpid()
    assert said == []
    held.release()
    assert lease_file.read(tmp_path) is None


def test_the_heartbeat_raises_the_counter_until_the_release(take, tmp_path):
    held = take()
    first, until = lease_file.read(tmp_path).count, time.monotonic() + 10
    while lease_file.read(tmp_path).count < first + 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert lease_file.read(tmp_path).count >= first + 2
    held.release()
    held.send_heartbeat()
    assert lease_file.read(tmp_path) is None, "a heartbeat that comes late brings nothing back"


def test_an_owner_elsewhere_that_gives_no_sign_expires(take, tmp_path, said):
    leave(tmp_path, ELSEWHERE)
    start = time.monotonic()
    held = take()
    assert time.monotonic() - start >= deadlines.scaled(deadlines.LEASE_EXPIRY)
    assert lease_file.read(tmp_path).token == held.owner.token
    (line,) = said
    assert "last used by process 7 on node9: waiting up to 1.2 s for a sign of it" in line


def test_an_owner_elsewhere_that_gives_signs_is_left_alone(take, tmp_path):
    leave(tmp_path, ELSEWHERE)
    ended = threading.Event()

    def live():
        count = 0
        while not ended.wait(0.05):
            count += 1
            lease_file.write(tmp_path, replace(ELSEWHERE, count=count))

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(UsageError) as caught:
            take()
    finally:
        ended.set()
        thread.join()
    assert caught.value.finding.name == "run-folder-in-use"
    assert "process 7 on node9" in caught.value.finding.what


def other_process(folder):
    """A process that owns a folder until it is ended."""
    text = "from paceline.rundir import lease, lease_file; import time; from pathlib import Path\n"
    text += f"lease.take(Path({str(folder)!r}), lease_file.this_process(), say=print); print('up', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "up\n"
    return process


def test_a_living_process_of_this_machine_is_left_alone_and_a_killed_one_followed_at_once(
    take, tmp_path, monkeypatch
):
    process = other_process(tmp_path)
    try:
        assert f"process {process.pid} on" in refusal(UsageError, take).what
        monkeypatch.setenv(env.TEST_TIME_FACTOR, "1")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    start = time.monotonic()
    take()
    assert time.monotonic() - start < deadlines.LEASE_LIVING


def test_a_process_that_got_the_number_of_a_dead_one_is_not_that_one(take, tmp_path):
    leave(tmp_path, replace(lease_file.this_process(), started=1))
    take()


def test_one_that_ends_while_it_is_waited_for_is_followed(take, tmp_path, monkeypatch):
    process = other_process(tmp_path)
    monkeypatch.setenv(env.TEST_TIME_FACTOR, "1")
    threading.Timer(0.3, process.terminate).start()
    try:
        take()
    finally:
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": 1, "pid": []', "null"])
def test_a_lease_that_cannot_be_read_expires(take, tmp_path, text):
    RunDir(tmp_path).lease.write_text(text)
    take()


def test_of_many_newcomers_one_takes_it_over(tmp_path):
    leave(tmp_path, replace(lease_file.this_process(), started=1))
    judged, won = lease_file.read(tmp_path), []

    def come(number):
        if lease_file.replace_owner(tmp_path, judged, replace(ELSEWHERE, token=f"new-{number}")):
            won.append(f"new-{number}")

    threads = [threading.Thread(target=come, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert won == [lease_file.read(tmp_path).token]


@pytest.mark.parametrize("loses", ["folder", "right"])
def test_a_lease_that_cannot_be_written_costs_one_warning(take, tmp_path, said, loses, monkeypatch):
    held = take()
    if loses == "folder":
        RunDir(tmp_path).lease.unlink()
        tmp_path.rmdir()
    else:
        monkeypatch.setattr(
            lease_file, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
        )
    for _ in range(3):
        held.send_heartbeat()
    (line,) = said
    assert "cannot be written" in line
    assert "training continues" in line
    assert lease.new_owner(tmp_path, held.owner.token) is None, (
        "a checkpoint is committed all the same"
    )
    tmp_path.mkdir(exist_ok=True)


def test_who_was_suspended_finds_its_folder_taken(take, tmp_path, said):
    held = take()
    lease_file.write(tmp_path, ELSEWHERE)
    held.send_heartbeat()
    held.send_heartbeat()
    assert lease.new_owner(tmp_path, held.owner.token) == ELSEWHERE
    assert len(said) == 1
    held.release()
    assert lease_file.read(tmp_path) == ELSEWHERE, "it is not ours to remove"


def test_two_users_of_one_process_share_it(take, tmp_path):
    first, second = take(), take()
    assert first is second
    first.release()
    assert lease_file.read(tmp_path) is not None
    second.release()
    assert lease_file.read(tmp_path) is None


def test_a_forked_child_gives_nothing_back(take, tmp_path):
    held = take()
    pid = os.fork()
    if pid == 0:
        held.release()
        os._exit(0)
    os.waitpid(pid, 0)
    assert lease_file.read(tmp_path).token == held.owner.token


def test_the_garbage_collector_may_give_a_folder_back_at_any_moment(take):
    """It ran while a lease was being kept, in a thread that held the lock that ``release`` waits for."""
    first = take()
    with lease._heartbeats._lock, first._lock:
        first.release_soon()
    second = take()
    assert second is not first
    assert lease_file.read(second.folder).token == second.owner.token


def test_a_heartbeat_gives_back_what_the_garbage_collector_has_left(take, tmp_path):
    take().release_soon()
    deadline_s = time.monotonic() + 5
    while RunDir(tmp_path).lease.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
