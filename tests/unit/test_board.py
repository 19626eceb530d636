"""The board: launchers of several nodes in one process, on a real store of the loopback interface."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from paceline.launcher import board as boards
from paceline.launcher.board import Board


def until(condition, *, within_s=8.0):
    """Wait for what the boards' threads are about to do."""
    deadline = time.monotonic() + within_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        tick.wait(0.01)


@pytest.fixture
def store():
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10))


@pytest.fixture
def make(store):
    """Boards of a run with so many nodes, each on a store client of its own; closed at the end."""
    made = []

    def build(*nodes, num_nodes=2, attempt=0):
        for node in nodes:
            client = PrefixStore(f"attempt/{attempt}", store)
            made.append(Board(client, node=node, num_nodes=num_nodes))
        return made[-len(nodes) :]

    yield build
    for board in made:
        board.close()
    for board in made:
        board._thread.join(10)
        assert not board._thread.is_alive()


def posted(board, kind, node):
    return board._get(board._key(kind, node)) is not None


def test_a_failure_of_one_is_seen_by_all(make):
    head, other = make(0, 1)
    assert not head.remote.failed
    other.fail()
    until(lambda: head.remote.failed and other.remote.failed)
    assert head.remote.lost == other.remote.lost == set()


def test_a_failure_of_the_head_is_heard_within_two_seconds(make):
    head, other = make(0, 1)
    head.fail()
    until(lambda: other.remote.failed, within_s=2.0)


def test_a_failure_of_an_earlier_attempt_is_not(make):
    (before,) = make(0, attempt=0)
    before.fail()
    head, other = make(0, 1, attempt=1)
    until(lambda: head._beats.get(1, (b"", 0))[0] not in (b"", b"1"))  # both have looked since
    assert not head.remote.failed
    assert not other.remote.failed


def test_what_all_have_posted_is_collected_by_each(make):
    head, other = make(0, 1)
    head.post("ends", {"rank": 0, "text": "größe"})
    other.post("ends", [1, None])
    expected = {0: {"rank": 0, "text": "größe"}, 1: [1, None]}
    assert head.collect("ends", until_s=5) == other.collect("ends", until_s=5) == expected


def test_collecting_waits_for_who_is_late(make):
    head, other = make(0, 1)
    head.post("ends", 0)
    late = threading.Timer(0.2, lambda: other.post("ends", 1))
    late.start()
    assert head.collect("ends", until_s=5) == {0: 0, 1: 1}
    late.join()


def test_collecting_does_not_wait_for_ever(make):
    head, _ = make(0, 1)
    head.post("ends", 0)
    start = time.monotonic()
    assert head.collect("ends", until_s=0.2) == {0: 0}
    assert 0.2 <= time.monotonic() - start < 5


def test_collecting_does_not_wait_for_who_is_lost(make):
    head, _ = make(0, 1)
    head.post("ends", 0)
    head.remote.lost.add(1)
    assert head.collect("ends", until_s=60) == {0: 0}


def test_accounts_are_exchanged_once_and_nobody_leaves_before_all_have_read(make):
    head, other = make(0, 1)
    until(lambda: other.clock_offset_ns)
    found = {}

    def exchange(board, *, linger):
        found[board.node] = board.exchange({"node": board.node}, until_s=5, linger=linger)

    first = threading.Thread(target=exchange, args=(head,), kwargs={"linger": True})
    first.start()
    until(lambda: posted(other, "account", 0))
    assert first.is_alive(), "the store goes with the head"
    exchange(other, linger=False)
    first.join(5)
    assert found == {0: {0: {"node": 0}, 1: {"node": 1}}, 1: {0: {"node": 0}, 1: {"node": 1}}}


def test_all_have_waits_for_the_last(make):
    head, other = make(0, 1)
    assert not head.all_have("done")
    other.post("done", True)
    until(lambda: posted(head, "done", 1))  # the store does not confirm what it is told
    assert not head.all_have("done")
    head.post("done", True)
    until(lambda: head.all_have("done") and other.all_have("done"))
    assert not head.all_have("ends")


def test_a_node_that_goes_silent_is_lost_for_all_others(make, monkeypatch):
    monkeypatch.setattr(boards, "LOST_AFTER_S", 0.9)
    head, silent, third = make(0, 1, 2, num_nodes=3)
    until(lambda: {1, 2} <= set(head._beats))
    silent.close()
    until(lambda: head.remote.lost == {1} and third.remote.lost == {1})
    assert not head.remote.failed


def test_a_node_that_never_came_is_lost_too(make, monkeypatch):
    monkeypatch.setattr(boards, "LOST_AFTER_S", 0.5)
    head, other = make(0, 2, num_nodes=3)
    until(lambda: head.remote.lost == {1} and other.remote.lost == {1})


def test_nodes_that_live_are_heard_again_and_again(make):
    head, other = make(0, 1)

    def count():
        return int(head._beats.get(1, (b"0", 0.0))[0] or 0)

    until(lambda: count() >= 2)
    heard = head._beats[1][1], head._heard, other._heard
    until(lambda: head._beats[1][1] > heard[0] and head._heard > heard[1] and other._heard > heard[2])
    assert head.remote.lost == other.remote.lost == set()
    assert max(head.silent_s, other.silent_s) < 5


def test_a_store_that_is_gone_is_the_head_that_is_lost(store):
    """Node rank -1 stands for whoever hosted the store; nothing raises, and nothing is asked again."""

    class Gone:
        def clone(self):
            return self

        def __getattr__(self, name):
            if name == "set_timeout":
                return lambda *_: None
            if name == "set" and not self.__dict__.get("started"):
                self.__dict__["started"] = True  # the first question, in the thread
                return lambda *_: None
            raise RuntimeError("Broken pipe")

    board = Board(Gone(), node=1, num_nodes=2)
    board._thread.join(10)
    assert board.remote.lost == {-1}
    board.fail()
    board.post("ends", 1)
    assert not board.all_have("ends")
    assert not board.answers(within_s=60)
    assert board.collect("ends", until_s=60) == {}


def test_a_store_that_answers_is_waited_for(make):
    (head,) = make(0)
    heard = head._heard
    assert head.answers(within_s=10)
    assert head._heard > heard
    assert head.remote.lost == set()


def test_a_store_that_falls_silent_is_given_up(make):
    (head,) = make(0)
    head.close()
    head._thread.join(10)
    start = time.monotonic()
    assert not head.answers(within_s=0.2)
    assert 0.2 <= time.monotonic() - start < 5
    assert head.remote.lost == {-1}


def test_the_clocks_of_two_processes_on_one_machine_agree(make):
    head, other = make(0, 1)
    until(lambda: other.clock_offset_ns != 0)
    assert abs(other.clock_offset_ns) < 1_000_000_000
    assert head.clock_offset_ns == 0


def test_a_clock_that_is_ahead_has_a_positive_offset(make, monkeypatch):
    from paceline.launcher.endings import RankEnd

    class Ahead:
        """The time of both nodes; of the asking one it is read a minute late."""

        @staticmethod
        def time_ns():
            late = threading.current_thread() is asking[0]
            return time.time_ns() + (60_000_000_000 if late else 0)

        monotonic = staticmethod(time.monotonic)
        sleep = staticmethod(time.sleep)

    asking = [None]
    monkeypatch.setattr(boards, "time", Ahead)
    (other,) = make(1)  # asks, and waits for the head
    asking[0] = other._thread
    make(0)
    until(lambda: other.clock_offset_ns != 0)
    assert 59_000_000_000 < other.clock_offset_ns < 61_000_000_000
    moment = time.time_ns()
    assert abs(RankEnd(0, time_ns=moment + 60_000_000_000).shifted(other.clock_offset_ns).time_ns - moment) < 10**9


def test_close_ends_the_thread(make):
    head, other = make(0, 1)
    other.close()
    other._thread.join(5)
    assert not other._thread.is_alive()
    assert other.remote.lost == set()
    assert head._thread.is_alive()


@pytest.mark.parametrize(("num_nodes", "tick_s"), [(2, 0.25), (100, 0.25), (400, 1.0), (10_000, 2.0)])
def test_many_nodes_ask_the_store_less_often(num_nodes, tick_s):
    class Deaf:
        def clone(self):
            return self

        def __getattr__(self, name):
            return lambda *_: False

    board = Board(Deaf(), node=0, num_nodes=num_nodes)
    board.close()
    board._thread.join(10)
    assert board._tick_s == tick_s
