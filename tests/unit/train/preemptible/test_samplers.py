"""What remains of an epoch on another number of ranks: each sample once."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from paceline.train.preemptible import samplers


def loader_of(rank, num_ranks, *, length=61, batch_size=4, drop=False, shuffle=True):
    sampler = DistributedSampler(
        range(length), num_ranks, rank, shuffle=shuffle, seed=3, drop_last=drop
    )
    sampler.set_epoch(2)
    return DataLoader(range(length), batch_size, sampler=sampler)


def taken(loaders, num_batches):
    """The samples of the first batches of all ranks."""
    each = [itertools.islice(loader.batch_sampler, num_batches) for loader in loaders]
    return [index for batches in each for batch in batches for index in batch]


@pytest.mark.parametrize(("before", "now"), [(1, 3), (2, 1), (2, 3), (3, 2), (4, 2)])
@pytest.mark.parametrize("num_batches", [1, 3, 4])
def test_each_sample_once(before, now, num_batches):
    first = taken([loader_of(rank, before) for rank in range(before)], num_batches)
    layout = samplers.layout_of(loader_of(0, before))
    done = num_batches * layout["each"]
    shares = [samplers.remaining_batches(loader_of(rank, now), done) for rank in range(now)]
    assert len({len(batches) for batches in shares}) == 1
    rest = [index for batches in shares for batch in batches for index in batch]
    padding = len(rest) + len(first) - 61
    assert set(first) | set(rest) == set(range(61))
    assert not set(first) & set(rest)
    assert 0 <= padding <= before - 1 + now - 1


def test_with_drop_last_no_sample_comes_twice():
    shares = [samplers.remaining_batches(loader_of(rank, 3, drop=True), 8) for rank in range(3)]
    rest = [index for batches in shares for batch in batches for index in batch]
    assert len(rest) == len(set(rest)) == 51


def test_another_order_is_not_the_same():
    saved = samplers.layout_of(loader_of(0, 2))
    assert samplers.is_same_order(saved, samplers.layout_of(loader_of(1, 3, batch_size=8)))
    assert not samplers.is_same_order(saved, samplers.layout_of(loader_of(0, 2, length=60)))
    assert not samplers.is_same_order(saved, samplers.layout_of(loader_of(0, 2, shuffle=False)))
    assert not samplers.is_same_order(saved, None)


def test_an_order_that_nobody_knows_has_no_layout():
    random = DataLoader(range(9), 2, sampler=RandomSampler(range(9)))
    assert samplers.layout_of(random) is None
    assert samplers.layout_of(None) is None
    assert samplers.layout_of(DataLoader(torch.arange(4), batch_size=None)) is None


def test_a_batch_of_accelerate_is_dealt_again():
    accelerate = pytest.importorskip("accelerate.data_loader")

    def shard(rank, num_ranks):
        inner = torch.utils.data.BatchSampler(range(61), 4, drop_last=False)
        return DataLoader(
            range(61), batch_sampler=accelerate.BatchSamplerShard(inner, num_ranks, rank)
        )

    layout = samplers.layout_of(shard(0, 2))
    assert layout["each"] == 2
    first = taken([shard(rank, 2) for rank in range(2)], 3)
    shares = [samplers.remaining_batches(shard(rank, 3), 3 * 2) for rank in range(3)]
    rest = [index for batches in shares for batch in batches for index in batch]
    assert set(first) | set(rest) == set(range(61))
    assert not set(first) & set(rest)
