"""Losses and gradients beside those of one rank, and when they cannot be compared."""

import pytest

from paceline.measure.verify import updates
from verify_records import MIXED, epoch, rank, step, training, world


def recorded(num_ranks, losses, sample=(3.0, 4.0), rate=0.1, batch=None, **values):
    """Ranks that share the first batch of eight samples."""
    share = batch or 8 // num_ranks
    ranks = []
    for number in range(num_ranks):
        made = [
            step(each, rate=rate, losses=(losses[number],), sample=sample) for each in range(1, 5)
        ]
        indices = MIXED[number * share : (number + 1) * share]
        ranks.append(rank([epoch(indices, share)], training(steps_made=made, **values)))
    return world(*ranks)


ONE = recorded(1, (2.0,))


@pytest.mark.parametrize(
    ("several", "loss", "gradients"),
    [
        (recorded(2, (1.5, 2.5)), "kept", "kept"),
        (recorded(2, (0.5, 1.5)), "kept", "kept"),  # a sum
        (recorded(2, (1.5, 1.5)), "note", "not judged"),
        (recorded(2, (1.5, 2.5), sample=(6.0, 8.0)), "kept", "broken"),
        (recorded(2, (1.5, 2.5), sample=(6.0, 8.0), rate=0.05), "kept", "kept"),
        (recorded(2, (1.5, 2.5), sample=(4.0, 3.0)), "kept", "broken"),
        (recorded(2, (1.5, 2.5), sample=()), "kept", "not judged"),
        (recorded(2, (1.5, 2.5), batch=8), "not judged", "not judged"),
        (recorded(2, (1.5, 2.5), is_whole=False), "not judged", "not judged"),
        (recorded(2, (1.5, None)), "not judged", "not judged"),
    ],
)
def test_the_first_step(several, loss, gradients):
    assert updates.judge_loss(several, ONE).state == loss
    assert updates.judge_updates(several, ONE).state == gradients


def test_samples_that_are_augmented_are_not_compared():
    several = recorded(2, (1.5, 1.5))
    several.ranks[1].epochs[0].rows[MIXED[5]] = (1, 2)
    assert "augmentation" in updates.unknown(several, ONE)


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (recorded(1, (2.0,), is_random=True), "Dropout"),
        (recorded(1, (2.0,), has_statistics=True), "BatchNorm"),
        (recorded(1, (2.0,), checksums={0: 7}), "set a seed"),
        (world(rank([epoch(MIXED[8:16], 8)], training())), "other samples"),
        (world(rank()), "no optimizer step"),
    ],
)
def test_why_nothing_is_compared(alone, words):
    assert words in updates.unknown(recorded(2, (1.5, 2.5)), alone)


def test_the_factor_is_named():
    finding = updates.judge_updates(recorded(2, (1.5, 2.5), sample=(6.0, 8.0)), ONE).finding
    assert finding.name == "updates-differ"
    assert "2 times those on 1 rank" in finding.what


def test_ranks_with_gradients_of_their_own_are_not_judged():
    several = recorded(2, (1.5, 2.5), sample=(6.0, 8.0))
    several.ranks[1].trainings[0].steps[:] = [step(number, gradients=number) for number in range(4)]
    assert updates.judge_updates(several, ONE).state == "not judged"


def test_ranks_that_read_the_same_batch_are_not_told_to_change_its_size():
    several = recorded(2, (1.5, 2.5), batch=8)
    several.ranks[1].loops[0] = several.ranks[0].loops[0]
    assert "same first batch" in updates.unknown(several, ONE)
