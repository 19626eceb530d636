"""The observer: what a node tells of its ranks, and what the head makes of all nodes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline import counters
from paceline.launch.monitor import observer as observers
from paceline.launch.monitor.observer import Head, Observer, _Pace, read_parameters
from paceline.rundir.files import RunDir


def facts(**given):
    nothing = {
        "data": [0],
        "works": [0],
        "indices": 0,
        "orders": {},
        "padded": [0, 0],
        "splits": [],
        "draws": False,
        "not_a_number": {},
    }
    return {"ranks": 2, "pace": None, "checks": {}, **nothing, **given}


def named(found):
    return [finding.name for finding in found]


def test_a_head_that_hears_nothing_special_says_nothing():
    head = Head(4)
    assert head.judge({0: facts(), 1: facts()}, last=True) == []


def test_the_same_data_is_judged_when_all_nodes_have_told():
    head, same = Head(4), facts(data=[7], works=[5], indices=64)
    assert head.judge({0: same, 1: facts()}, last=False) == []
    assert head.judge({0: same, 1: facts(data=[0, 7], works=[5])}, last=False) == []
    assert head.judge({0: same, 1: facts(data=[7], works=[0, 5])}, last=False) == []
    assert named(head.judge({0: same, 1: same}, last=False)) == ["same-data-on-all-ranks"]
    assert head.judge({0: same, 1: same}, last=True) == []  # once


def test_other_data_and_nodes_that_are_missing_are_no_finding():
    same = facts(data=[7], works=[5], indices=64)
    assert Head(4).judge({0: same, 1: facts(data=[8], works=[5])}, last=True) == []
    assert Head(4).judge({0: same, 1: facts(data=[7], works=[6])}, last=True) == []
    assert Head(6).judge({0: same, 1: same}, last=True) == []


def test_a_padded_evaluation_is_told_once():
    head = Head(4)
    (found,) = head.judge({0: facts(padded=[101, 104]), 1: facts()}, last=False)
    assert (found.name, found.where) == ("evaluation-padded", "ranks 0-3")
    assert head.judge({0: facts(padded=[101, 104]), 1: facts(padded=[101, 104])}, last=True) == []


def test_splits_are_compared_once_all_ranks_train_one_model():
    head, checks = Head(4), {"1": ranges(1)}
    own = {node: facts(splits=[[7, True, 0b11 << node, 0]], checks=checks) for node in (0, 1)}
    assert head.judge({**own, 1: facts(splits=own[1]["splits"])}, last=False) == []
    assert named(head.judge(own, last=False)) == ["data-not-shardable"]


def test_random_evaluations_are_told_at_the_end():
    head, some = Head(4), {0: facts(draws=True), 1: facts()}
    assert head.judge(some, last=False) == []
    assert named(head.judge(some, last=True)) == ["loop-draws-numbers"]


def test_parameters_with_a_nan_are_told_when_all_ranks_have_ended():
    head, some = Head(4), facts(not_a_number={"0": "0.weight", "1": "0.weight"})
    assert head.judge({0: some, 1: facts()}, last=False) == []
    everyone = {0: some, 1: facts(not_a_number={"2": "0.weight", "3": "0.weight"})}
    assert head.judge(everyone, last=False)[0].where == "ranks 0-3"
    assert Head(4).judge({0: some, 1: facts()}, last=True)[0].where == "ranks 0-1"


def test_the_same_order_waits_for_all_ranks_for_a_while():
    head, some = (
        Head(4),
        {0: facts(orders={"0": [2, 64], "1": [2, 64]}), 1: facts(orders={"2": [2, 64]})},
    )
    said = [head.judge(some, last=False) for _ in range(5)]
    assert said[:4] == [[]] * 4
    assert said[4][0].where == "ranks 0-2"
    everyone = {**some, 1: facts(orders={"2": [2, 64], "3": [2, 64]})}
    assert Head(4).judge(everyone, last=False)[0].where == "ranks 0-3"
    assert Head(4).judge(some, last=True)[0].where == "ranks 0-2"


def window(number, own_s, node=0):
    mean = {"host": f"host-{node}", "node": node, "own_s": own_s, "data_s": 0.0, "step_s": 0.05}
    return facts(pace={"window": number, "mean": mean})


def test_windows_are_compared_when_all_nodes_have_closed_one():
    head, found = Head(4), []
    for number in (1, 2, 3):
        found += head.judge({0: window(number, 0.01), 1: window(number - 1, 0.03, 1)}, last=False)
        found += head.judge({0: window(number, 0.01), 1: window(number, 0.03, 1)}, last=False)
        assert named(found) == (["straggler"] if number == 3 else [])


def test_each_host_is_called_a_straggler_once():
    head, told = Head(4), []
    for number in range(1, 14):
        slow, other = (0.03, 0.01) if number > 7 else (0.01, 0.03)
        told += head.judge({0: window(number, slow), 1: window(number, other, 1)}, last=False)
    assert [finding.where for finding in told] == ["host-1 (node 1)", "host-0 (node 0)"]


def values(second):
    return [("0.weight", 1.0, 1.0, 0.1, False), ("0.bias", second, second + 1, 0.1, False)]


def lists(ranks, second):
    return {"ranks": ranks, "values": values(second)}


def ranges(low, high=None, place=1):
    return [[place, low, low], [place, low if high is None else high, low]]


def test_replicas_are_compared_at_a_step_that_all_have():
    head = Head(4)
    early = {0: facts(checks={"5": ranges(1), "10": ranges(2)}), 1: facts(checks={"5": ranges(1)})}
    assert head.judge(early, last=False) == []
    assert head.list_step == 0
    ahead = {
        0: facts(checks={"10": ranges(2), "15": ranges(3)}),
        1: facts(checks={"10": ranges(2.9), "15": ranges(9), "20": ranges(4)}),
    }
    assert head.judge(ahead, last=False) == []
    assert (head.list_step, head.has_lists) == (15, False)
    ahead[0]["lists"] = [lists([0, 1], 2.0)]
    assert head.judge(ahead, last=False) == []
    ahead[1]["lists"] = [lists([2], 2.05), lists([3], 3.0)]
    (found,) = head.judge(ahead, last=False)
    assert found.what == "after step 15 rank 3 has other parameters than ranks 0-2, first in 0.bias"
    assert head.has_lists
    assert head.judge(ahead, last=True) == []


@pytest.mark.parametrize(
    ("low", "high", "places", "step"), [(1, 9, (1, 1), 5), (1, 2, (1, 1), 0), (1, 9, (1, 2), 0)]
)
def test_ranks_of_one_node_that_differ_at_the_same_place_are_enough(low, high, places, step):
    head = Head(2)
    check = [[places[0], low, 0.0], [places[1], high, 0.0]]
    head.judge({0: facts(checks={"5": check})}, last=False)
    assert head.list_step == step


def beat(steps, own_s=0.0, data_s=0.0, seconds=0.0):
    return replace(counters.NOTHING, steps=steps, own_s=own_s, data_s=data_s, seconds=seconds)


def test_a_pace_is_that_of_a_window_of_time():
    pace = _Pace(3)
    assert pace.look([beat(0), beat(0)], 0.0) is None
    assert pace.look([beat(1), beat(0)], 20.0) is None
    assert pace.look([beat(1), beat(1)], 30.0) is None
    assert pace.look([beat(50, 1.0, 0.1, 5.0), beat(50, 1.0, 0.1, 5.0)], 39.0) is None  # too short
    assert (
        pace.look([beat(101, 1.0, 0.5, 10.0), beat(11, 0.1, 0, 1.0)], 41.0) is None
    )  # too few steps
    found = pace.look([beat(101, 1.0, 0.5, 10.0), beat(101, 3.0, 0.5, 10.0)], 42.0)
    assert found["window"] == 1
    assert found["mean"] == pytest.approx(
        {"host": found["mean"]["host"], "node": 3, "own_s": 0.02, "data_s": 0.005, "step_s": 0.1}
    )
    assert pace.look([beat(102, 9.0), beat(102, 9.0)], 43.0) == found
    assert pace.look([beat(201, 3.0, 0.5, 20.0), beat(201, 5.0, 0.5, 20.0)], 52.5)["window"] == 2


@pytest.fixture
def pulses():
    handle = counters.create(2)
    yield counters.SharedCounters(handle, 2)
    os.close(handle)


@pytest.fixture
def made(pulses, tmp_path):
    group = SimpleNamespace(attempt=SimpleNamespace(ranks={0: 0, 1: 1}, world_size=2, number=0))
    told = []
    run_dir = RunDir(tmp_path)
    run_dir.create()
    return Observer(group, pulses, None, run_dir=run_dir, notice=told.append), told, run_dir


def test_one_node_tells_what_its_pulses_show(made, pulses):
    observer, told, _ = made
    for local in (0, 1):
        slot = pulses.slot(local)
        slot[counters.DATA_INDICES], slot[counters.DATA_HASH], slot[counters.WORK_HASH] = 64, 7, 5
        slot[counters.ORDER_INDICES], slot[counters.SAME_ORDER] = 64, 2
    observer.tick()
    assert named(told) == ["same-data-on-all-ranks", "same-order-each-epoch"]
    assert observer.close()
    assert len(told) == 2


def test_a_run_that_is_shorter_than_a_tick_is_looked_at_in_the_end(made, pulses):
    observer, told, _ = made
    observer.tick()
    pulses.slot(0)[counters.ORDER_INDICES], pulses.slot(0)[counters.SAME_ORDER] = 64, 2
    observer.tick()  # too early for another look
    assert told == []
    assert observer.close()
    assert named(told) == ["same-order-each-epoch"]


def leave_parameters(run_dir, rank, second):
    run_dir.parameters(rank).write_text(json.dumps({"10": values(second)}))


def leave_check(pulses, local, total):
    check = counters.Check(1, total, 0.0)
    counters.write_check(pulses.slot(local), check, step=10, at_powers=True)


def test_lists_of_parameters_are_read_where_checksums_differ(made, pulses):
    observer, told, run_dir = made
    for local, total in ((0, 5.0), (1, 60.0)):
        leave_check(pulses, local, total)
        leave_parameters(run_dir, local, total)
    assert observer.close()
    assert told[0].evidence == ("first: 0.bias", "1 of 2 values differ")


def test_parameters_that_are_not_known_read_as_none(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.create()
    assert read_parameters(run_dir, 0, 0, step=10) == ()
    leave_parameters(run_dir, 0, 2.0)
    assert read_parameters(run_dir, 0, 0, step=10) == tuple(values(2.0))
    assert read_parameters(run_dir, 0, 0, step=11) == ()
    run_dir.parameters(0).write_text("{")
    assert read_parameters(run_dir, 0, 0, step=10) == ()


class HeadsChannel:
    """A channel of two nodes on which the other one is silent when it is asked for its lists."""

    node, num_nodes = 0, 2

    def __init__(self, other):
        self.other, self.mine, self.words = other, {}, []

    def tell(self, kind, content):
        self.mine = content

    def hear(self, kind):
        return {0: self.mine, 1: self.other} if self.mine else {}

    def announce(self, kind, number, word):
        assert number == len(self.words)
        self.words.append(word)


def test_the_head_asks_for_lists_and_does_not_wait_for_ever(made, pulses, monkeypatch):
    observer, told, run_dir = made
    observer._channel = channel = HeadsChannel(facts(checks={"10": ranges(60)}))
    observer._head = Head(4)
    for local in (0, 1):
        leave_check(pulses, local, 5.0)
        leave_parameters(run_dir, local, 5.0)
    assert not observer.close()
    assert channel.words == [{"lists": 10}]
    assert channel.mine["lists"] == [{"ranks": [0, 1], "values": tuple(values(5.0))}]
    monkeypatch.setattr(observers, "_LISTS_S", 0.0)
    assert observer.close()
    assert told == []
    channel.other["lists"] = [lists([2, 3], 6.0)]
    observer._next_s = 0.0
    assert observer.close()
    assert named(told) == ["replicas-differ"]
    assert channel.words[1]["finding"]["name"] == "replicas-differ"
