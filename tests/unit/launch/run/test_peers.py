"""What this node knows of the others, over all attempts of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.launch.channel.remote import Remote
from paceline.launch.channel.silence import CLOSED, REFUSED, SILENT, Loss
from paceline.launch.run import peers
from paceline.launch.run.peers import Peers


@pytest.fixture
def channel():
    return SimpleNamespace(remote=Remote(), clock_offset_ns=7)


@pytest.fixture
def others(channel):
    others = Peers()
    others.store_host = "host-a"
    others.attach(channel)
    return others


def test_a_node_alone_has_nobody_to_hear_of():
    alone = Peers()
    assert not alone.has_failure()
    assert alone.clock_offset_ns == 0
    assert alone.losses_at_end(heard=[0]) == {}
    assert alone.exchange({}, until_s=1, linger=False, give_up=lambda: False) == {}
    alone.fail()
    alone.hurry()


def test_a_lost_node_and_a_lost_store_are_failures(others, channel):
    assert not others.has_failure()
    channel.remote.lose(1, Loss("host-b", CLOSED))
    assert others.has_failure()
    channel.remote = Remote()
    assert not others.has_failure()
    channel.remote.lose_store(Loss("host-a", REFUSED))
    assert others.has_failure()


def test_losses_are_named_the_store_first(others, channel):
    channel.remote.lose(2, Loss("host-c", CLOSED))
    channel.remote.lose(1, Loss("host-b", SILENT))
    channel.remote.lose_store(Loss("host-a", REFUSED))
    losses = others.losses_at_end(heard=[0])
    assert list(losses) == [
        "host-a (the host of the run's store)",
        "node 1 (host-b)",
        "node 2 (host-c)",
    ]
    assert [loss.reason for loss in peers.known(losses).values()] == [REFUSED, SILENT, CLOSED]


def test_a_silent_node_is_lost_at_the_end_unless_its_account_has_come(others, channel):
    channel.remote.silent[1] = "host-b"
    channel.remote.store_silent = True
    assert others.losses_at_end(heard=[0]) == {
        "host-a (the host of the run's store)": None,
        "node 1 (host-b)": None,
    }
    channel.remote.store_silent = False
    assert others.losses_at_end(heard=[0, 1]) == {}


def test_the_host_of_a_node_is_known_after_its_attempt(others, channel):
    channel.remote.lose(1, Loss("host-b", CLOSED))
    assert others.has_failure()
    assert others.detach() is channel
    assert not others.has_failure()
    assert others.losses([1]) == {"node 1 (host-b)": Loss("host-b", CLOSED)}
