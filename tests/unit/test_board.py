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


def test_the_head_hears_news_of_all_once(make):
    head, other = make(0, 1)
    assert head.hear("facts") == {}
    head.tell("facts", {"a": 1})
    assert head.hear("facts") == {}  # the other has told nothing yet
    other.tell("facts", {"b": 2})
    until(lambda: head.hear("facts") == {0: {"a": 1}, 1: {"b": 2}})  # the store does not confirm what it is told
    assert head.hear("facts") == {}  # no news
    other.tell("facts", {"b": 3})
    until(lambda: head.hear("facts") == {0: {"a": 1}, 1: {"b": 3}})


def test_what_is_announced_is_read_by_number(make):
    head, other = make(0, 1)
    assert other.announced("word", 0) is None
    head.announce("word", 0, {"x": 1})
    head.announce("word", 1, [2])
    until(lambda: (other.announced("word", 0), other.announced("word", 1)) == ({"x": 1}, [2]))
    assert other.announced("word", 2) is None


def test_all_but_the_head_can_be_asked_for(make):
    head, other = make(0, 1)
    assert not head.all_have("done", but_head=True)
    other.post("done", True)
    until(lambda: head.all_have("done", but_head=True))
    assert not head.all_have("done")


def silent_for(board, node, seconds):
    """As if the head had last seen something new of a node so long ago; real waiting tests the machine's load."""
    beat, since = board._beats[node]
    board._beats[node] = (beat, min(since, time.monotonic() - seconds))


def test_a_node_that_goes_silent_is_lost_for_all_others(make):
    head, silent, third = make(0, 1, 2, num_nodes=3)
    until(lambda: {1, 2} <= set(head._beats))
    silent.close()
    silent._thread.join(10)

    def lost():
        silent_for(head, 1, boards.LOST_AFTER_S + 1)
        return head.remote.lost == {1} and third.remote.lost == {1}

    until(lost)
    assert not head.remote.failed


def test_a_node_that_never_came_is_lost_too(make):
    head, other = make(0, 2, num_nodes=3)
    until(lambda: 1 in head._beats)

    def lost():
        silent_for(head, 1, boards.LOST_AFTER_S + 1)
        return head.remote.lost == {1} and other.remote.lost == {1}

    until(lost)
