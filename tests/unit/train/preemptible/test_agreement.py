"""Ranks that stop agree on one step, whoever was asked and however long the others did not look."""

import itertools
import random

import pytest

from paceline.train.preemptible.agreement import LOOK_EVERY_S, Agreement


class Store:
    """The store of the ranks, in this process."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def find(self, key):
        return self.values.get(key)

    def add(self, key, amount):
        self.values[key] = self.values.get(key, 0) + amount
        return self.values[key]


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def world(size):
    store, clock, asked = Store(), Clock(), [""] * size
    agreements = [
        Agreement(lambda rank=rank: asked[rank], store, rank=rank, world_size=size, clock=clock)
        for rank in range(size)
    ]
    return agreements, clock, asked


def step(agreements, order, here):
    """One step: each rank reaches its boundary, in any order, before one begins the next step."""
    return {rank: agreements[rank].stops(here) for rank in order}


@pytest.mark.parametrize("asks", range(3))
@pytest.mark.parametrize("seed", range(5))
def test_all_ranks_stop_at_the_same_step(asks, seed):
    agreements, clock, asked = world(3)
    order = random.Random(seed)
    for number in itertools.count(1):
        clock.now_s += 0.3
        if number == 10:
            asked[asks] = "SIGTERM"
        answers = step(agreements, order.sample(range(3), 3), (0, number))
        assert len(set(answers.values())) == 1
        if answers[0]:
            break
    steps_until_all_have_looked = LOOK_EVERY_S / 0.3 + 1
    assert 10 < number <= 10 + steps_until_all_have_looked + 3
    assert {agreement.by for agreement in agreements} == {"SIGTERM"}


def test_nobody_stops_unasked_and_a_look_comes_once_a_second():
    agreements, clock, _ = world(2)
    looks = []
    store = agreements[0]._store
    store.find = lambda key: looks.append(clock.now_s)
    for number in range(100):
        clock.now_s += 0.1
        assert not agreements[0].stops((0, number))
    assert 8 <= len(looks) <= 10


def test_a_rank_that_has_ended_its_batches_keeps_nobody_waiting():
    """torch's Join: the others continue, and all stop together in the next epoch."""
    agreements, clock, asked = world(2)
    asked[:] = "SIGTERM", "SIGTERM"
    for number in range(1, 6):  # rank 1 has no batches
        clock.now_s += 1
        assert not agreements[0].stops((0, number))
    answers = [step(agreements, (0, 1), (1, number)) for number in range(1, 4)]
    assert [set(answer.values()) for answer in answers] == [{False}, {False}, {True}]


def test_alone_the_request_is_enough():
    asked = [""]
    agreement = Agreement(lambda: asked[0], None, rank=0, world_size=1)
    assert not agreement.stops((0, 1))
    asked[0] = "SIGINT"
    assert agreement.stops((0, 2))
    assert agreement.by == "SIGINT"
