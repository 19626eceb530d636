"""The control channel: launchers of several nodes in one process, on a real store of the loopback interface."""

import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import PrefixStore, TCPStore

from paceline import deadlines
from paceline.launch.channel import liveness, silence
from paceline.launch.channel.control_channel import ControlChannel
from paceline.launch.channel.surroundings import Surroundings


def until(condition, *, within_s=8.0):
    """Wait for what the channels' threads are about to do."""
    deadline = time.monotonic() + within_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        tick.wait(0.01)


@pytest.fixture
def store():
    return TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10)
    )


@pytest.fixture
def make(store):
    """Channels of a run with so many nodes, each on a store client of its own; closed at the end."""
    made = []

    def build(*nodes, num_nodes=2, attempt=0, **surroundings):
        for node in nodes:
            client = PrefixStore(f"attempt/{attempt}", store)
            made.append(
                ControlChannel(
                    client,
                    node=node,
                    num_nodes=num_nodes,
                    surroundings=Surroundings(**surroundings),
                )
            )
        return made[-len(nodes) :]

    yield build
    for channel in made:
        channel.close()
    for channel in made:
        channel._thread.join(10)
        assert not channel._thread.is_alive()


def posted(channel, kind, node):
    return channel._get(channel._key(kind, node)) is not None


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
    until(lambda: head._answered > 2 and other._answered > 2)  # both have looked since
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

    def exchange(channel, *, linger):
        found[channel.node] = channel.exchange({"node": channel.node}, until_s=5, linger=linger)

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
    until(
        lambda: head.hear("facts") == {0: {"a": 1}, 1: {"b": 2}}
    )  # the store does not confirm what it is told
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


def silent_for(channel, node, seconds):
    """As if a channel had last heard something of a node so long ago; real waiting tests the machine's load."""
    heartbeats = channel._heartbeats
    heartbeats.records[node].since_s = min(
        heartbeats.records[node].since_s, heartbeats.now_s - seconds
    )
    heartbeats._stepped_s = min(heartbeats._stepped_s, heartbeats.now_s - seconds)


def stop(channel):
    """End a channel's heartbeats, as if its launcher had been stopped."""
    channel.close()
    channel._thread.join(10)


def test_a_silent_node_is_named_on_all_others_and_may_come_back(make):
    told = []
    head, _, third = make(0, 1, 2, num_nodes=3, inform=lambda notice: told.append(notice.what))
    until(lambda: head._heartbeats.records[1].host)
    beat, head._heartbeats.record = head._heartbeats.record, lambda node, beat: None
    for_s = deadlines.SILENT_NODE_NOTICE + 1
    until(
        lambda: silent_for(head, 1, for_s) or (1 in head.remote.silent and 1 in third.remote.silent)
    )
    assert head.remote.lost == third.remote.lost == set()
    assert [line.split(" (")[0] for line in told if line.startswith("node 1")] == [
        "node 1",
        "node 1",
    ]
    assert all("has been silent for 1" in line for line in told if line.startswith("node 1"))
    head._heartbeats.record = beat
    until(lambda: not head.remote.silent and not third.remote.silent)
    until(lambda: sum("node 1" in line and "is heard again, after 1" in line for line in told) == 2)


def test_a_silence_like_the_last_one_is_not_named_again(make):
    """Heartbeats that queue behind gradients on a full link come every dozen seconds, for as long as it is full."""
    told = []
    head, silent = make(0, 1, inform=lambda notice: told.append(notice.what))
    until(lambda: head._heartbeats.records[1].host)
    beat, head._heartbeats.record = head._heartbeats.record, lambda node, beat: None
    until(lambda: silent_for(head, 1, 12) or 1 in head.remote.silent)
    head._heartbeats.record = beat
    until(lambda: not head.remote.silent)
    stop(silent)
    seen = head._answered
    until(lambda: silent_for(head, 1, 12) or head._answered > seen + 4)
    assert sum("has been silent for 12 s" in line for line in told) == 1
    until(lambda: silent_for(head, 1, 30) or 1 in head.remote.silent)
    assert sum("has been silent for" in line for line in told) == 2


def test_a_node_that_goes_silent_is_lost_for_all_others_after_the_node_timeout(make):
    head, silent, third = make(0, 1, 2, num_nodes=3)
    until(lambda: head._heartbeats.records[1].host)
    stop(silent)
    until(
        lambda: (
            silent_for(head, 1, deadlines.NODE_TIMEOUT + 1)
            or (head.remote.lost == third.remote.lost == {1})
        )
    )
    assert third.remote.losses[1].reason == silence.SILENT
    assert not head.remote.failed


def test_a_node_that_never_came_is_lost_too(make):
    head, other = make(0, 2, num_nodes=3)
    until(
        lambda: (
            silent_for(head, 1, deadlines.NODE_TIMEOUT + 1)
            or (head.remote.lost == other.remote.lost == {1})
        )
    )


def test_a_silent_node_is_not_lost_as_long_as_training_steps_are_made(make):
    steps = iter(range(10**9))
    head, silent = make(0, 1, count_steps=lambda: next(steps))
    until(lambda: head._heartbeats.records[1].host)
    stop(silent)
    until(lambda: silent_for(head, 1, 1000) or 1 in head.remote.silent)
    seen = head._answered
    until(lambda: silent_for(head, 1, 1000) or head._answered > seen + 4)
    assert head.remote.lost == set()


def test_the_head_is_watched_too_where_another_node_hosts_the_store(make):
    head, other = make(0, 1)
    until(lambda: other._heartbeats.records[0].host)
    stop(head)
    until(lambda: silent_for(other, 0, deadlines.NODE_TIMEOUT + 1) or other.remote.lost == {0})


def test_a_launcher_whose_connection_was_closed_is_lost_soon(make, store):
    listener = liveness.Listener(store, token="token")
    head, silent = make(0, 1)
    until(lambda: head._heartbeats.records[1].launcher)
    launcher = head._heartbeats.records[1].launcher
    connection = liveness.Connection(store.clone(), "127.0.0.1", token="token", name=launcher)
    until(lambda: launcher in listener._names.values() and connection._socket is not None)
    connection._leaving.set()  # it does not come back
    stop(silent)
    connection._socket.shutdown(2)
    until(lambda: head.remote.lost == {1}, within_s=12)
    assert head.remote.losses[1].reason == silence.CLOSED


def test_a_launcher_that_leaves_in_order_is_not_lost_soon(make, store):
    listener = liveness.Listener(store, token="token")
    connection = liveness.Connection(store.clone(), "127.0.0.1", token="token", name="a:1")
    until(lambda: "a:1" in listener._names.values())
    connection.leave()
    until(lambda: "a:1" not in listener._names.values())
    assert not store.check([liveness.closed_key("a:1")])
    again = liveness.Connection(store.clone(), "127.0.0.1", token="token", name="a:1")
    until(lambda: "a:1" in listener._names.values() and again._socket is not None)
    again._socket.shutdown(2)  # closed by something else: the launcher connects again
    until(
        lambda: not store.check([liveness.closed_key("a:1")]) and "a:1" in listener._names.values()
    )
    again.leave()


def test_a_node_that_the_scheduler_calls_down_is_lost_at_once(make):
    head, silent = make(0, 1, node_state=lambda node: "down*\n" if node == 1 else "idle\n")
    until(lambda: head._heartbeats.records[1].host)
    stop(silent)
    until(lambda: silent_for(head, 1, deadlines.SILENT_NODE_NOTICE + 1) or head.remote.lost == {1})
    assert head.remote.losses[1].reason == silence.DOWN


def test_a_launcher_that_was_stopped_does_not_hold_its_own_silence_against_others(
    make, monkeypatch
):
    head, other = make(0, 1)
    until(lambda: head._heartbeats.records[1].host and other._heartbeats.records[0].host)
    for channel in (head, other):
        channel._heartbeats._looked_s -= 1000
    seen = head._answered, other._answered
    until(lambda: head._answered > seen[0] + 2 and other._answered > seen[1] + 2)
    assert head.remote.silent == other.remote.silent == {}
    assert head.remote.lost == other.remote.lost == set()


def test_a_store_whose_host_refuses_the_port_is_gone(make):
    """The port is refused, so the launcher that hosted the store has ended."""
    code = "import sys, time\nfrom torch.distributed import TCPStore\n"
    code += "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
    code += "print(store.port, flush=True)\ntime.sleep(60)\n"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    client = TCPStore(
        "127.0.0.1", int(process.stdout.readline()), is_master=False, wait_for_workers=False
    )
    channel = ControlChannel(PrefixStore("attempt/0", client), node=1, num_nodes=2)
    try:
        until(lambda: channel._answered > 1)
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        assert channel._get("nothing") is None
        assert time.monotonic() - start < 6  # nobody waits for a store that does not answer
        channel.post("word", 7)  # kept until it does
        process.send_signal(signal.SIGCONT)
        until(lambda: channel._get(channel._key("word", 1)) == b"7")
        assert not channel.remote.any_lost
        process.kill()
        until(lambda: channel.remote.store_lost, within_s=12)
        assert channel.remote.store_loss.reason == silence.REFUSED
        assert channel.remote.lost == set()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        channel.close()
        channel._thread.join(10)
