"""What of a collated batch is not one a sample."""

import pytest
import torch

from paceline.train.data.collation import Counted, unit_of
from paceline.train.data.missing_rows import (
    BORROW,
    EMPTY,
    LEAVE_OUT,
    Situation,
    batch_size_for,
    choose,
)
from paceline.train.data.same_data_check import is_due, is_other, mark_of

X = torch.zeros


class Graphs:
    pass


@pytest.mark.parametrize(
    ("batch", "num_samples"),
    [
        ((X(4, 3), X(4)), 4),
        ({"edge_index": X(2, 9), "x": X(7, 3), "y": X(4)}, 4),
        ((X(9, 4, 2), X(9, 4)), 4),
        (X(9, 4, 2), 4),
        ([X(4, 3), X(4, 3)], 4),
        (([X(3, 5, 5), X(3, 6, 6)], [{"boxes": X(7, 4)}, {"boxes": X(1, 4)}]), 2),
        ([{"x": X(5)}, {"x": X(6)}], 2),
        (Graphs(), 4),
        ({"graphs": Graphs(), "x": X(7)}, 4),
        ({"step": 3}, 4),
        (None, 4),
    ],
)
def test_rows_that_are_samples(batch, num_samples):
    assert unit_of(batch, num_samples) is None


def test_two_fields_of_two_samples_are_told_from_a_list_of_two_samples():
    """By a batch of one sample, which two fields cannot be a list of."""
    counted = Counted(lambda samples: [X(len(set(samples)), 4), X(len(set(samples)))], of_rows=True)
    assert counted([1, 1])[1] is None  # nobody knows yet
    assert counted([1])[1] is None
    assert counted([1, 2])[1] is None
    assert counted([1, 1])[1].per_sample is None
    assert Counted(lambda samples: [X(3, 4) for _ in samples], of_rows=True)([1, 2])[1] is None


@pytest.mark.parametrize(
    ("batch", "num_samples", "per_sample"),
    [
        ((X(7, 3), X(7)), 4, None),
        ((X(7, 2), X(7)), 2, None),
        (X(3, 2), 2, None),
        ({"x": X(3, 9)}, 4, None),
        ({"x": X(8, 9)}, 4, 2),
        ({"x": X(11), "bounds": X(5)}, 4, None),
        ({"labels": torch.tensor([[1, -100], [1, 2]])}, 2, None),
        ((X(2, 3), torch.tensor([[1, -100], [-100, 2]])), 2, 1),
        ({"labels": torch.ones(2, 6, dtype=torch.int64)}, 2, 6),
    ],
)
def test_rows_and_labels_that_are_not(batch, num_samples, per_sample):
    assert unit_of(batch, num_samples).per_sample == per_sample


@pytest.mark.parametrize("values", [[[1, 2], [-100, -7]], [[1, 2], [3, 4]]])
def test_other_numbers_are_no_ignored_labels(values):
    assert unit_of((X(2), torch.tensor(values)), 2) is None


def test_marks_tell_other_samples_from_other_augmentations():
    samples = [{"x": X(3) + number, "path": f"/a/{number}.png"} for number in range(4)]
    moved = [{**sample, "path": sample["path"].replace("/a/", "/b/c/")} for sample in samples]
    augmented = [{**sample, "x": sample["x"] + 0.5} for sample in samples]
    mark = mark_of(samples)
    assert not is_other(mark_of(moved), mark), "a copy of the files on another node"
    assert not is_other(mark_of(augmented), mark)
    assert is_other(mark_of(samples[1:]), mark)
    assert is_other(mark_of([X(3)]), mark_of([X(3) + 1])), "nothing else tells them apart"
    assert type(mark).parse(str(mark)) == mark


def test_early_batches_are_compared_and_one_in_many_later():
    assert [number for number in range(40) if is_due(number)] == [0, 1, 2, 4, 8, 16, 32]
    assert sum(map(is_due, range(1 << 16))) < 100


def situation(**known):
    usual = {
        "with_grad": True,
        "is_first": False,
        "has_trained": False,
        "may_train": False,
        "in_training_mode": True,
    }
    return Situation(**{**usual, **known})


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"has_trained": True}, BORROW),
        ({"has_trained": True, "with_grad": False}, BORROW),
        ({"has_trained": True, "is_beside": True}, EMPTY),
        ({"is_first": True, "may_train": True}, BORROW),
        ({"is_first": True, "may_train": True, "in_training_mode": False}, EMPTY),
        ({"is_first": True, "may_train": True, "in_training_mode": None}, EMPTY),
        ({}, EMPTY),
        ({"with_grad": False}, LEAVE_OUT),
        ({"in_training_mode": False}, LEAVE_OUT),
        ({"with_grad": False, "is_first": True}, EMPTY),
        ({"with_grad": False, "body_runs_collectives": True}, EMPTY),
        ({"with_grad": False, "forward_is_collective": True}, EMPTY),
        ({"with_grad": False, "forward_is_collective": True, "takes_any": True}, BORROW),
        ({"with_grad": False, "takes_any": True}, LEAVE_OUT),
        ({"with_grad": False, "is_beside": True}, EMPTY),
    ],
)
def test_what_a_rank_without_a_row_gets(known, expected):
    assert choose(situation(**known)) == expected


@pytest.mark.parametrize(
    ("length", "batch_size", "world_size", "expected"),
    [(11, 5, 2, 6), (43, 5, 4, 11), (8, 1, 2, 4), (3, 2, 2, None)],
)
def test_the_batch_size_with_two_rows_for_each_rank(length, batch_size, world_size, expected):
    size = batch_size_for(length, batch_size, world_size)
    assert size == expected
    assert size is None or all(rows >= 2 * world_size for rows in (size, length % size or size))
