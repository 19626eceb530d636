"""A batch is what torch's ``default_collate`` makes, to the bit, and fails as that does."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from paceline.train.data import collation
from paceline.train.data.collation import collate_samples


class Point(NamedTuple):
    x: Any
    y: Any


class Own(torch.Tensor):
    pass


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class OwnTuple(tuple):
    __slots__ = ()


PICTURE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
BATCHES = {
    "ints": [3, -4, 0],
    "the largest ints": [2**63 - 1, -(2**63), 1],
    "floats": [0.1, float("nan"), -float("inf"), -0.0],
    "ints, then a float": [1, 2.5],
    "floats, then an int": [2.5, 1],
    "booleans": [True, False],
    "ints, then a boolean": [3, True],
    "an enumeration": [Level.LOW, Level.HIGH],
    "complex numbers in tensors": [torch.tensor(1j), torch.tensor(2.0 + 0j)],
    "texts": ["a", "bc"],
    "tuples": [(torch.ones(3), 1, 2.0, "a"), (torch.zeros(3), 2, 3.0, "b")],
    "one tuple": [(torch.ones(3), 1)],
    "tuples of nothing": [(), ()],
    "tuples in tuples": [((1, 2.0), [3]), ((4, 5.0), [6])],
    "lists": [[1, 2.0], [3, 4.0]],
    "named tuples": [Point(1, np.ones(2)), Point(2, np.zeros(2))],
    "tuples of an own class": [OwnTuple((1, 2)), OwnTuple((3, 4))],
    "a tuple and a list": [(1, 2.0), [3, 4.0]],
    "a named tuple and a tuple": [Point(1, 2), (3, 4)],
    "dicts": [{"x": 1, "y": (2, 3.0)}, {"x": 4, "y": (5, 6.0)}],
    "tensors of no dimension": [torch.tensor(1.5), torch.tensor(2.5)],
    "tensors of two types": [torch.ones(2), torch.ones(2, dtype=torch.float64)],
    "tensors of an own class": [torch.ones(2).as_subclass(Own), torch.ones(2).as_subclass(Own)],
    "transposed tensors": [torch.arange(6).view(2, 3).t(), torch.arange(6).view(2, 3).t()],
    "tensors without elements": [torch.ones(0, 3), torch.ones(0, 3)],
    "large tensors": [torch.arange(50_000), torch.arange(50_000)],
    "arrays": [np.arange(3.0), np.arange(3.0) + 1],
    "arrays of two types": [np.ones(2, np.float32), np.ones(2, np.float64)],
    "arrays of no dimension": [np.array(1), np.array(2)],
    "transposed arrays": [PICTURE.transpose(2, 0, 1), PICTURE.transpose(2, 0, 1)],
    "mirrored arrays, copied": [PICTURE[:, ::-1].copy(), PICTURE.copy()],
    "read-only masked arrays": [np.ma.array([1.0, 2.0]), np.ma.array([3.0, 4.0])],
    "numbers of NumPy": [np.float32(1.5), np.float32(2.5)],
}
WRONG = {
    "ints that are too large": [2**63, 1],
    "tuples of two lengths": [(1, 2), (3,)],
    "tensors of two shapes": [torch.ones(2), torch.ones(3)],
    "arrays of two shapes": [(np.ones(2), 1), (np.ones(3), 2)],
    "sparse tensors": [torch.ones(2, 2).to_sparse(), torch.ones(2, 2).to_sparse()],
    "objects": [object(), object()],
    "arrays of texts": [np.array(["a"]), np.array(["b"])],
    "an int and a text": [1, "a"],
}


def described(part):
    """A batch as plain data: types, shapes, strides and bits."""
    if isinstance(part, torch.Tensor):
        bits = part.contiguous().view(-1).numpy().tobytes()
        return type(part), part.dtype, tuple(part.shape), part.stride(), bits
    if isinstance(part, dict):
        return dict, {key: described(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return type(part), [described(value) for value in part]
    return part


@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_that_of_default_collate(name):
    samples = BATCHES[name]
    assert described(collate_samples(samples)) == described(default_collate(samples))


@pytest.mark.parametrize("name", WRONG)
def test_what_default_collate_refuses_is_refused_in_the_same_words(name):
    errors = []
    for function in (default_collate, collate_samples):
        with pytest.raises((RuntimeError, TypeError, ValueError, OverflowError)) as caught:
            function(WRONG[name])
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]


class Rows:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


@pytest.mark.parametrize("most_bytes", [0, collation.MOST_BYTES])
def test_a_worker_makes_the_same_batches_as_a_worker_of_torch(monkeypatch, most_bytes):
    monkeypatch.setattr(collation, "MOST_BYTES", most_bytes)
    samples = [sample for batch in BATCHES.values() for sample in batch]
    places = iter(range(len(samples)))
    requests = [[next(places) for _ in batch] for batch in BATCHES.values()]
    ours, theirs = (
        DataLoader(Rows(samples), batch_sampler=requests, num_workers=1, collate_fn=function)
        for function in (collate_samples, default_collate)
    )
    for name, batch, expected in zip(BATCHES, ours, theirs, strict=True):
        assert described(batch) == described(expected), name


def test_a_type_that_a_library_adds_later_is_collated_by_it(monkeypatch):
    """tensordict adds its types to torch's table when it is imported."""

    class Late:
        pass

    monkeypatch.setitem(
        collation.default_collate_fn_map, Late, lambda batch, *, collate_fn_map: len(batch)
    )
    assert collate_samples([(Late(), 1.0), (Late(), 2.0)])[0] == 2
