"""Note which samples a rank trains on, and which it holds out, at some places of the dataset.

A random split without a seed differs by rank. Subsets are traced to the dataset that they are of,
and all ranks look at the same places of it, so that the launcher can compare them. No sample is
read, only what the dataset holds in memory: reading one may draw random numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from random import Random
from typing import Any

from paceline import counters
from paceline.launch.probe.orders import digest, divides_among_ranks, fingerprint, parts_of

_DEPTH = 8  # of subsets of subsets, and columns that a dataset holds
_MOST_SAMPLES = 1 << 22


class Splits:
    """Writes the samples of the first training and evaluation to the rank's counters."""

    def __init__(self, slot: memoryview[int]) -> None:
        self._slot = slot
        self._split: counters.Split | None = None

    def train(self, dataset: Any, sampler: Any) -> None:
        """Note the samples of a training loop."""
        if self._split is None:
            identity, places = _places_of(dataset)
            self._split = counters.Split(identity, divides_among_ranks(sampler), places)
            self._split.write(self._slot)

    def evaluate(self, dataset: Any) -> None:
        """Note the samples of an evaluation of the same dataset, unless they are trained on."""
        split = self._split
        if split is None or not split.identity or split.held_out:
            return
        identity, places = _places_of(dataset)
        if identity == split.identity and not places & split.trained:
            self._split = split._replace(held_out=places)
            self._split.write(self._slot)


def traced(dataset: Any, indices: Iterable[int]) -> tuple[Any, Iterable[int]]:
    """Return the dataset that this one is a subset of, or itself, and the indices there."""
    from torch.utils.data import Dataset, Subset

    for _ in range(_DEPTH):
        held = vars(dataset).values() if hasattr(dataset, "__dict__") else ()
        inner = [each for each in held if isinstance(each, Dataset)]
        if isinstance(dataset, Subset):
            own = dataset.indices
            if isinstance(indices, range) and hasattr(own, "tolist"):
                own = own.tolist()  # all are looked up, and in a tensor each takes long
            indices = [int(own[index]) for index in indices]
        elif len(inner) != 1 or length_of(inner[0]) != length_of(dataset):
            break  # else it changes the samples of another, as a transform does
        dataset = inner[0]
    return dataset, indices


def length_of(sized: Any) -> int:
    """Return a length, 0 if there is none."""
    try:
        return len(sized)
    except Exception:
        return 0  # a sampler or dataset may not know


def _places_of(dataset: Any) -> tuple[int, int]:
    """Return a hash of the dataset that this is of, 0 if unknown, and a bit for each place."""
    with contextlib.suppress(Exception):  # a dataset may be any object, and the run must continue
        base, indices = traced(dataset, range(len(dataset) % _MOST_SAMPLES))
        length, held = len(base), vars(base)
        chosen = Random(0).sample(range(length), min(length, counters.SPLIT_PLACES))
        bits = {index: 1 << place for place, index in enumerate(chosen)}
        places = sum(bits[index] for index in set(bits).intersection(indices))
        columns = [part for value in held.values() for part in (value, *parts_of(value)[:_DEPTH])]
        if any(length_of(column) == length and fingerprint(column) for column in columns):
            return digest([fingerprint(held), length]), places
    return 0, 0
