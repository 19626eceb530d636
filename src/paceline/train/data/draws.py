"""What a user's sampler yields in an epoch: the same on all ranks, and in a run that was resumed."""

from __future__ import annotations

from typing import Any

import torch

from paceline.train.data.order import derive
from paceline.train.data.samples import seeded


class Draws:
    """Asks a sampler, with its random state a function of the seed and the epoch.

    Args:
        sampler: The user's sampler or batch sampler; None if there is none.
        seed: Seed of the run.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler, self._seed = sampler, seed
        self._generators = _generators_of(sampler)
        self._num_drawn = 0  # epochs for which the sampler was asked

    def of_epoch(self, epoch: int) -> list[Any]:
        """Return what it yields in an epoch."""
        if not _is_torchs(self._sampler):
            # It may continue from the epoch before, as one that shuffles its list in place.
            for missed in range(self._num_drawn, epoch):
                self._draw(missed)
            self._num_drawn = epoch + 1
        return self._draw(epoch)

    def _draw(self, epoch: int) -> list[Any]:
        if callable(getattr(self._sampler, "set_epoch", None)):
            self._sampler.set_epoch(epoch)
        for generator, first in self._generators:
            # As the user seeded it in the first epoch; then by the epoch's number, which a resumed run knows too.
            generator.manual_seed(derive("sampler", first, epoch) if epoch else first)
        with seeded("sampler", self._seed, epoch):
            return list(self._sampler)


def _is_torchs(sampler: Any) -> bool:
    """Return whether a sampler, and the one inside a batch sampler, keeps nothing from one epoch to the next."""
    inner = getattr(sampler, "sampler", None)
    parts = [sampler] if inner is None else [sampler, inner]
    return all(
        type(part).__module__ == torch.utils.data.sampler.__name__ or callable(getattr(part, "set_epoch", None))
        for part in parts
    )


def _generators_of(sampler: Any) -> list[tuple[torch.Generator, int]]:
    """Return the generators of a sampler and of the one inside a batch sampler, each with its seed."""
    parts = (sampler, getattr(sampler, "sampler", None))
    found = (getattr(part, "generator", None) for part in parts)
    return [(each, each.initial_seed()) for each in found if isinstance(each, torch.Generator)]
