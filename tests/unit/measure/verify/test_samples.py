"""Which samples ranks read: shared, padded, read by all, left out; and in which order."""

import pytest

from paceline.errors import Finding
from paceline.measure.verify import samples
from paceline.measure.verify.command import read_by
from verify_records import LENGTH, MIXED, REMIXED, epoch, one, rank, shared, step, training, world


def both(first, second, trained=None, **values):
    trained = trained or training()
    return world(rank([epoch(first, **values)], trained), rank([epoch(second, **values)], trained))


def apart():
    """Two ranks that apply gradients of their own."""
    ranks = []
    for number in range(2):
        steps = [step(each, gradients=100 * number + each) for each in range(1, 9)]
        order = (MIXED, REMIXED)[number]
        ranks.append(rank([epoch(order)], training(steps_made=steps)))
    return world(*ranks)


TINY = {"dataset_length": 20, "view_length": 20}  # fewer than four batches


@pytest.mark.parametrize(
    ("recorded", "state", "words"),
    [
        (shared(), "kept", "64 samples, each once"),
        (shared(3), "kept", "64 samples, each once"),
        (both(MIXED[:33], MIXED[32:]), "kept", "1 repeated"),
        (both(MIXED, REMIXED), "broken", "every one of 2 ranks reads the whole dataset"),
        (both(MIXED, MIXED), "not judged", "same samples in the same order"),
        (both(range(16), [*range(16, 20), *range(12)], size=16, **TINY), "kept", "12 repeated"),
        (both(MIXED[:20], MIXED[19::-1], size=16, **TINY), "not judged", "each reads a part"),
        (apart(), "not judged", "ranks train apart"),
        (both(MIXED, REMIXED, rows={}), "not judged", "another sample on each rank"),
        (both(MIXED, REMIXED, view_length=128), "not judged", "a part of the dataset"),
        (both(MIXED, REMIXED, is_stream=True), "not judged", "stream"),
        (both([5] * 64, [6] * 64), "not judged", "replacement"),
        (world(rank(), rank()), "not judged", "no DataLoader"),
        (
            world(rank([epoch(MIXED)]), rank([epoch(MIXED, dataset_length=65)])),
            "not judged",
            "different lengths",
        ),
    ],
)
def test_shares(recorded, state, words):
    verdict = samples.judge_shares(recorded)
    assert (verdict.state, words in verdict.reason) == (state, True), verdict


def test_a_label_proves_the_sample_where_the_input_is_augmented():
    trained = training()
    ranks = [
        rank([epoch(order, rows={i: (hash((place, i)), i % 5) for i in order})], trained)
        for place, order in enumerate((MIXED, REMIXED))
    ]
    assert samples.judge_shares(world(*ranks)).finding.name == "sampler-missing"


def test_a_dataset_that_ranks_have_divided_before_is_not_accused():
    """The indices are the same on all ranks, and the samples are not."""
    trained = training()
    rows = {index: (index + 1000, index + 1000) for index in range(LENGTH)}
    ranks = [rank([epoch(MIXED)], trained), rank([epoch(REMIXED, rows=rows)], trained)]
    assert samples.judge_shares(world(*ranks)).state == "not judged"


@pytest.mark.parametrize("name", ["same-data-on-all-ranks", "data-not-shardable"])
def test_the_proof_of_the_launcher_is_used(name):
    found = Finding(name, "all 2 ranks train on the same samples")
    recorded = world(*both(MIXED, MIXED).ranks, findings=[found])
    assert samples.judge_shares(recorded).finding is found


def test_what_each_rank_has_read_is_printed():
    ranks = shared().ranks
    assert read_by(world(*ranks)) == [
        "2 ranks, epoch 1-2: ranks 0-1: 4 of 4 batches, 32 samples",
    ]
    cut = rank([epoch(MIXED[:8], num_batches=8)])
    assert read_by(world(cut, ranks[0])) == [
        "2 ranks, epoch 1: rank 0: 1 of 8 batches, 8 samples; rank 1: 4 of 4 batches, 32 samples",
        "2 ranks, epoch 2: rank 0: nothing; rank 1: 4 of 4 batches, 32 samples",
    ]


@pytest.mark.parametrize(
    ("recorded", "state"),
    [
        (shared(), "kept"),
        (one(), "kept"),
        (shared(orders=(MIXED,)), "not judged"),
        (shared(orders=(range(64), range(64))), "not judged"),
        (shared(orders=(MIXED, MIXED)), "not judged"),
    ],
)
def test_order(recorded, state):
    assert samples.judge_order(recorded).state == state


def test_the_same_order_is_accused_with_the_line_of_the_loop():
    found = Finding("same-order-each-epoch", "the same order", where="ranks 0-1")
    verdict = samples.judge_order(world(*shared().ranks, findings=[found]))
    assert verdict.state == "broken"
    assert verdict.finding.where == "train.py:20, ranks 0-1"


@pytest.mark.parametrize(
    ("recorded", "state"),
    [
        (shared(), "kept"),
        (both(MIXED[:30], MIXED[30:60]), "kept"),
        (both(MIXED[:16], MIXED[16:32], size=4), "broken"),
        (both(MIXED[:16], MIXED[8:24], size=4), "not judged"),
        (both(MIXED[:16], MIXED[16:32], size=4, has_ended=False), "not judged"),
        (both(MIXED[:16], MIXED[16:32], size=4, dataset_length=32), "not judged"),
    ],
)
def test_epoch(recorded, state):
    assert samples.judge_epoch(recorded, one()).state == state
