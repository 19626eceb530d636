"""What a batch is made of: emptied, moved, counted. What is taken over of a user's own loader and dataset."""

from __future__ import annotations

import random
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    random_split,
)

from paceline.train.data.batch import to_device, without_rows
from paceline.train.data.samples import in_memory, takes_batches
from unit.train.data.test_modules import drawn, make, refused

Pair = namedtuple("Pair", "x y")


@dataclass
class Batch:
    x: torch.Tensor
    names: list[str]
    more: Any = None
    size: int = 7


@dataclass(frozen=True, slots=True)
class Normed:
    """Changes what it is given, once."""

    x: torch.Tensor
    mean: torch.Tensor = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "mean", self.x.mean())
        object.__setattr__(self, "x", self.x - 1)


def shapes(batch):
    """A batch with shapes in place of tensors, to compare."""
    if isinstance(batch, torch.Tensor | np.ndarray):
        return f"{type(batch).__name__}{tuple(batch.shape)}"
    if isinstance(batch, dict):
        return {key: shapes(part) for key, part in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch), [shapes(part) for part in batch]
    return batch


def zipped(samples):
    return tuple(zip(*samples, strict=True))


def stacked_beside(samples):
    """As for DETR: pictures in one piece, labels in a list."""
    pictures, labels = zip(*samples, strict=True)
    return {"pixel_values": torch.stack(pictures), "labels": list(labels)}


# Zero rows


PICTURE, GREY = torch.ones(3, 5, 4), torch.ones(1, 28, 28)
TARGET = {
    "boxes": torch.ones(1, 4),
    "labels": torch.ones(1),
    "image_id": torch.tensor([1]),
}  # of one object
EMPTY = "Tensor(0, 3, 5, 4)"


@pytest.mark.parametrize("num_rows", [1, 2, 3])
@pytest.mark.parametrize(
    ("sample", "collate", "expected"),
    [
        ((PICTURE, TARGET), zipped, (tuple, [(tuple, []), (tuple, [])])),
        ((PICTURE, TARGET), lambda rows: list(zipped(rows)), (list, [(tuple, []), (tuple, [])])),
        ((GREY, TARGET | {"image_id": 1}), zipped, (tuple, [(tuple, []), (tuple, [])])),
        ((GREY, torch.tensor(5)), zipped, (tuple, [(tuple, []), (tuple, [])])),
        ((GREY, 5), zipped, (tuple, [(tuple, []), (tuple, [])])),
        (
            (PICTURE, {"size": torch.tensor([5, 4]), "image_id": torch.tensor(1)}),
            stacked_beside,
            {"pixel_values": EMPTY, "labels": (list, [])},
        ),
        ({"image": PICTURE, "label": 3}, list, (list, [])),
        ((PICTURE, 3, "name"), list, None),
        (object(), list, (list, [])),
        (Batch(PICTURE, ["name"]), list, (list, [])),
        (np.ones((5, 2)), list, (list, [])),
        (np.ones(5), np.stack, "ndarray(0, 5)"),
    ],
)
def test_without_rows_leaves_out_entries_of_samples(sample, collate, expected, num_rows):
    if expected is None:  # three of three parts each look like three fields
        expected, num_rows = (list, []), min(num_rows, 2)
    found = without_rows(collate([sample] * num_rows), num_rows=num_rows)
    assert shapes(found) == expected
    assert shapes(without_rows(found)) == expected, "once more changes nothing"


@pytest.mark.parametrize("num_rows", [1, 2, 3])
@pytest.mark.parametrize(
    "sample",
    [
        (torch.ones(2), 1),
        (torch.ones(2),),
        [torch.ones(2), torch.ones(3)],
        {"x": torch.ones(1), "name": "a", "parts": [torch.ones(2)]},
        ({"x": torch.ones(2)},),
        ({"x": torch.ones(2)}, {"x": torch.ones(2), "name": "b"}),
        Pair(torch.ones(2), [3.0, "name"]),
        (("name",), 2, np.ones(3)),
        ((torch.ones(2),), ("name", "other")),
        "name",
    ],
)
def test_without_rows_keeps_fields(sample, num_rows):
    def emptied(batch):
        if isinstance(batch, torch.Tensor):
            return batch[:0]
        if isinstance(batch, dict):
            return {key: emptied(part) for key, part in batch.items()}
        if isinstance(batch, Pair):
            return Pair(*map(emptied, batch))
        return (
            batch[:0]
            if all(isinstance(part, str) for part in batch)
            else type(batch)(map(emptied, batch))
        )

    batch = default_collate([sample] * num_rows)
    expected = shapes(emptied(batch))
    found = without_rows(batch, num_rows=num_rows)
    assert shapes(found) == expected
    assert shapes(without_rows(found)) == expected


def test_without_rows_opens_dataclasses_and_arrays():
    batch = Batch(torch.ones(2, 3), ["a", "b"], {"y": np.ones((2, 5)), "all": np.array(7.0)})
    found = without_rows(batch)
    assert isinstance(found, Batch)
    assert (found.x.shape, found.names, found.more["y"].shape, found.more["all"]) == (
        (0, 3),
        [],
        (0, 5),
        7.0,
    )
    assert found.size == 7
    assert batch.x.shape == (2, 3)
    assert without_rows(Normed(torch.ones(2))).x.shape == (0,)
    assert without_rows(Pair(1, 2)) == Pair(1, 2), "these are fields, and no list of values"
    assert without_rows(Batch) is Batch


def test_a_rank_without_samples_gets_none_of_an_unstacked_batch():
    data = [(PICTURE, TARGET)] * 3
    ranks = [
        list(make(data, batch_size=2, rank=rank, world_size=2, collate_fn=zipped))
        for rank in range(2)
    ]
    assert [[len(pictures) for pictures, _ in batches] for batches in ranks] == [[1, 1], [1, 0]]
    assert ranks[1][1] == ((), ())


# On the device


def test_a_dataclass_is_moved_and_not_made_anew():
    meta = torch.device("meta")
    batch = Batch(torch.ones(2), ["a", "b"], [Pair(torch.ones(1), 3)])
    moved = to_device(batch, meta)
    assert (moved.x.device, moved.more[0].x.device, moved.names) == (meta, meta, ["a", "b"])
    assert batch.x.device.type == "cpu"
    moved = to_device(Normed(torch.ones(2)), torch.device("cpu"))
    assert moved.x.tolist() == [0.0, 0.0], "it was normed once"
    assert to_device(Normed(torch.ones(2)), meta).mean.device == meta


# Adopted loaders


NUMBERS = list(range(10))


def served(loader):
    return [number for batch in loader for number in batch.tolist()]


def test_a_sampler_over_something_else_than_the_dataset_is_kept():
    assert sorted(served(make(DataLoader(NUMBERS, 3, sampler=RandomSampler(range(4)))))) == [
        0,
        1,
        2,
        3,
    ]
    assert served(make(DataLoader(NUMBERS, 3, sampler=SequentialSampler(range(4))))) == [0, 1, 2, 3]
    assert (
        len(served(make(DataLoader(NUMBERS, 3, sampler=RandomSampler(NUMBERS, num_samples=4)))))
        == 4
    )
    for whole in (RandomSampler(range(10)), RandomSampler(NUMBERS)):
        assert make(DataLoader(NUMBERS, 3, sampler=whole)).shuffles
    assert served(make(DataLoader(NUMBERS, 3, sampler=SequentialSampler(range(10))))) == NUMBERS


class Unsized(torch.utils.data.Dataset):
    def __getitem__(self, index):
        return index


def test_a_dataset_without_length_is_refused_whatever_its_sampler():
    assert (
        refused(DataLoader(Unsized(), 3, sampler=SequentialSampler(range(4)))).name
        == "data-not-shardable"
    )


def test_batches_of_the_users_own_have_no_size_and_no_last():
    own = DataLoader(NUMBERS, batch_sampler=[[1], [2, 3]])
    for loader, options in ((own, {"per_rank": True}), (own, {"last": "drop"})):
        finding = refused(loader, **options)
        assert finding.name == "option-contradicted"
        assert "batch_sampler" in finding.what
    assert refused(NUMBERS, batch_sampler=[[1]], last="drop").name == "option-contradicted"
    assert served(make(own, last="exact")) == [1, 2, 3]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(NUMBERS)


def test_the_batch_size_of_a_stream_may_count_for_each_rank():
    assert make(DataLoader(Endless(), 2), per_rank=True, world_size=3).batch_size == 6


# Classes derived from those of torch


class Noisy(Subset):
    """Draws by its own method, and hands many on to it as torch asks for."""

    def __getitem__(self, index):
        return index, random.random(), 0.0, 0.0

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class NoisyAtOnce(Subset):
    def __getitems__(self, indices):
        return [(index, random.random(), 0.0, 0.0) for index in indices]


class NoisyItems(Subset):
    def __init__(self, dataset, indices):  # without torch's, which refuses it
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index):
        return index, random.random(), 0.0, 0.0


class NoisyConcat(ConcatDataset):
    def __getitem__(self, index):
        return index, random.random(), 0.0, 0.0


TENSORS = TensorDataset(torch.arange(10))


@pytest.mark.parametrize("kind", [Noisy, NoisyItems, NoisyConcat])
@pytest.mark.parametrize("inner", [TENSORS, NUMBERS])
def test_what_a_derived_class_draws_is_drawn_for_the_sample(kind, inner):
    dataset = kind([inner]) if kind is NoisyConcat else kind(inner, range(10))
    assert not in_memory(dataset)
    assert not takes_batches(dataset)
    expected = drawn(make(dataset, batch_size=3, shuffle=True))
    assert expected[0] != expected[1], "each epoch draws anew"
    assert drawn(make(dataset, batch_size=7)) == expected
    ranks = [drawn(make(dataset, batch_size=5, rank=rank, world_size=3)) for rank in range(3)]
    assert [{**a, **b, **c} for a, b, c in zip(*ranks, strict=True)] == expected


def test_a_derived_class_may_take_batches():
    dataset = NoisyAtOnce(TENSORS, range(10))
    assert takes_batches(dataset)
    assert (
        drawn(make(dataset, batch_size=4))
        == drawn(make(dataset, batch_size=4))
        != drawn(make(dataset, batch_size=5))
    )
    assert takes_batches(Noisy(dataset, [1])), "what is inside it does"
    assert not takes_batches(NoisyItems(dataset, [1])), "its own method would be passed by"


def test_plain_parts_of_tensors_are_in_memory():
    halves = random_split(TENSORS, [5, 5], generator=torch.Generator().manual_seed(0))
    assert all(map(in_memory, halves))
    assert in_memory(ConcatDataset(halves))
    assert not in_memory(Subset(Noisy(TENSORS, [1]), [0]))
