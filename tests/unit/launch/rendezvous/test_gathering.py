"""Nodes between the roll call and the first attempt, on a real store; what is printed while nodes are awaited."""

import time
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from paceline import deadlines, env
from paceline.errors import Notice, RunError
from paceline.launch.channel import liveness
from paceline.launch.rendezvous import gathering
from paceline.launch.rendezvous.gathering import Gathering
from paceline.launch.rendezvous.held_rendezvous import HeldRendezvous
from paceline.launch.rendezvous.node_wait import Waiting
from paceline.launch.rendezvous.presence import Arrived
from refusals import refusal

MEMBERS = [Arrived(place + 1, place, f"host-{place}", 100 + place, (2, 2)) for place in range(2)]
NAMES = [*(liveness.name_of(member.host, member.pid) for member in MEMBERS), "host-2:102"]


@pytest.fixture
def store():
    return TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10)
    )


@pytest.fixture
def gather(store):
    made = []

    def build(place, *, inform=lambda notice: None, node_timeout_s=90.0):
        made.append(
            Gathering(
                store,
                MEMBERS if place == 0 else (),
                launcher=NAMES[place],
                num_nodes=2,
                inform=inform,
                node_timeout_s=node_timeout_s,
            )
        )
        return made[-1]

    yield build
    for each in made:
        each.close()
        each._thread.join(10)


def until(condition, *, within_s=10.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def test_a_node_that_died_after_the_roll_call_is_lost_and_nobody_waits_for_it(gather, store):
    """It ended between the roll call and the rendezvous: the others waited for 600 s."""
    mine = gather(0)
    store.set(f"{gathering._KEY}/{NAMES[1]}", f"3 {NAMES[1]} 0")
    until(lambda: mine._heartbeats.records[0].launcher)
    store.set(liveness.closed_key(NAMES[1]), str(time.time()))
    handler = HeldRendezvous(
        store,
        rank=0,
        num_nodes=2,
        run_id="x",
        address="127.0.0.1",
        join_s=600,
        inform=lambda notice: None,
    )
    handler.lost = lambda: mine.lost
    begun = time.monotonic()
    finding = refusal(RunError, handler.next_rendezvous)
    assert time.monotonic() - begun < 10
    assert finding.name == "agent-died"
    assert "the launcher on node 1 (host-1) has gone" in finding.what


def test_a_silent_node_is_named_and_lost_after_the_node_timeout(gather, monkeypatch):
    monkeypatch.setattr(deadlines, "SILENT_NODE_NOTICE", 0.8)
    told, told_too = [], []
    mine = gather(0, inform=told.append, node_timeout_s=2.0)
    third = gather(2, inform=told_too.append)
    until(lambda: mine.lost is not None and third.lost is not None)
    assert [notice.what for notice in told] == ["node 1 (host-1) has been silent for 1 s"]
    assert told == told_too
    assert "has gone silent" in mine.lost.what
    assert third.lost == mine.lost


def test_a_node_that_has_gone_ahead_is_not_silent(gather, monkeypatch):
    monkeypatch.setattr(deadlines, "SILENT_NODE_NOTICE", 1.5)
    told = []
    mine, other = gather(0, inform=told.append, node_timeout_s=2.0), gather(1)
    until(lambda: mine._heartbeats.records[0].beat)
    other.close()
    other._thread.join(10)
    time.sleep(3)
    assert told == []
    assert mine.lost is None


def test_a_notice_is_printed_when_it_is_time_to_and_when_the_picture_changes(monkeypatch):
    monkeypatch.setenv(env.TEST_TIME_FACTOR, "0.04")  # 0.2 s
    told = []
    waiting = Waiting(told.append, limit_s=900)
    waiting.show(Notice("waiting for node 1", advice="fix: start it"))
    assert told == []
    until(lambda: waiting.is_due)
    for _ in range(3):
        waiting.show(Notice("waiting for node 1", advice="fix: start it"))
        time.sleep(0.25)
    waiting.show(Notice("waiting for node 2"))
    assert [notice.what for notice in told] == [
        "waiting for node 1, for 0 s",
        "waiting for node 2, for 1 s",
    ]
    assert told[0].advice == "fix: start it; the wait ends after 15 min (--roll-call-timeout)"
    assert told[1].advice == "the wait ends after 15 min (--roll-call-timeout)"
