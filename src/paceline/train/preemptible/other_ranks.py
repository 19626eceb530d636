"""Decide what remains of an interrupted epoch if the number of ranks has changed.

Two kinds of samplers are known. torch's ``DistributedSampler`` deals one order of all samples to
the ranks in turn, so after k batches of b samples on n ranks the first k * b * n of that order are
done. Accelerate's ``BatchSamplerShard`` deals batches instead.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

_SAMPLES, _BATCHES, _PARTS = "samples", "batches", "parts of batches"

Layout = dict[str, Any]


def layout_of(loader: DataLoader[Any] | None) -> Layout | None:
    """Return how a loader's sampler deals an epoch to the ranks; None if that is unknown.

    It is what is dealt (``unit``), how many units all ranks take in one step (``each``), and what
    else has to be equal for the order to be the same.
    """
    batches: Any = getattr(loader, "batch_sampler", None)
    if type(batches).__name__ == "BatchSamplerShard":
        in_step = 1 if batches.split_batches else batches.num_processes
        unit = _PARTS if batches.split_batches else _BATCHES
        return {"unit": unit, "each": in_step, "batch_size": batches.batch_size}
    sampler: Any = getattr(batches, "sampler", None)
    if type(batches) is not BatchSampler or type(sampler) is not DistributedSampler:
        return None
    return {
        "unit": _SAMPLES,
        "each": batches.batch_size * sampler.num_replicas,
        "length": len(sampler.dataset),  # type: ignore[arg-type]
        "shuffle": sampler.shuffle,
        "seed": sampler.seed,
    }


def is_same_order(saved: Layout | None, present: Layout | None) -> bool:
    """Return whether two samplers deal the same order, to any number of ranks. Pure."""
    if saved is None or present is None:
        return False
    return {**saved, "each": 0} == {**present, "each": 0}


def remaining_batches(loader: DataLoader[Any], num_done: int) -> list[list[int]]:
    """Return this rank's index batches of an epoch of whose order some units are done.

    The loader's ``layout_of`` is known; its sampler is as at the epoch's begin.
    """
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler:
        rest = list(islice(batches.batch_sampler, num_done, None))
        shard = copy.copy(batches)
        shard.batch_sampler = rest
        return list(shard)
    sampler: Any = batches.sampler
    whole = copy.copy(sampler)
    whole.num_replicas, whole.rank, whole.drop_last = 1, 0, False
    whole.num_samples = whole.total_size = len(sampler.dataset)
    shares = equal_shares(list(whole)[num_done:], sampler.num_replicas, drop=sampler.drop_last)
    return in_batches(
        shares[sampler.rank :: sampler.num_replicas],
        batches.batch_size,
        drop_last=batches.drop_last,
    )


def equal_shares(samples: Sequence[int], num_ranks: int, *, drop: bool) -> list[int]:
    """Return samples as many as ranks can share evenly: padded as torch pads, or cut. Pure."""
    if drop:
        return list(samples[: len(samples) // num_ranks * num_ranks])
    missing = -len(samples) % num_ranks
    return [*samples, *(list(samples) * missing)[:missing]]


def in_batches(samples: Sequence[int], size: int, *, drop_last: bool) -> list[list[int]]:
    """Return consecutive batches of samples. Pure."""
    batches = [list(samples[start : start + size]) for start in range(0, len(samples), size)]
    if drop_last and batches and len(batches[-1]) < size:
        batches.pop()
    return batches
