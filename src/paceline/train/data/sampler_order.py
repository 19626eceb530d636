"""Draw the order of a user's sampler in an epoch, the same on all ranks and after a resume."""

from __future__ import annotations

from typing import Any

import torch

from paceline.train.data.generator_states import seeded
from paceline.train.data.order import derive


class SamplerOrder:
    """SamplerOrder from a sampler, with a random state that is a function of seed and epoch."""

    def __init__(
        self,
        sampler: Any,  # the user's sampler or batch sampler; None without one
        seed: int,
    ) -> None:
        self._sampler, self._seed = sampler, seed
        self._generators = _generators_of(sampler)
        self._num_drawn = 0  # epochs drawn so far

    def of_epoch(self, epoch: int) -> list[Any]:
        """Return the samples or batches of an epoch."""
        if not _is_torchs(self._sampler):
            # A sampler may depend on the epoch before, for example if it shuffles its list in
            # place.
            for missed in range(self._num_drawn, epoch):
                self._draw(missed)
            self._num_drawn = epoch + 1
        return self._draw(epoch)

    def _draw(self, epoch: int) -> list[Any]:
        if callable(getattr(self._sampler, "set_epoch", None)):
            self._sampler.set_epoch(epoch)
        for generator, first in self._generators:
            # The user's seed in the first epoch; then derived from the epoch, which a resumed run
            # knows.
            generator.manual_seed(derive("sampler", first, epoch) if epoch else first)
        with seeded("sampler", self._seed, epoch):
            return list(self._sampler)


def _is_torchs(sampler: Any) -> bool:
    """Return whether a sampler, and a batch sampler's inner one, keeps no state between epochs."""
    inner = getattr(sampler, "sampler", None)
    parts = [sampler] if inner is None else [sampler, inner]
    return all(
        type(part).__module__ == torch.utils.data.sampler.__name__
        or callable(getattr(part, "set_epoch", None))
        for part in parts
    )


def _generators_of(sampler: Any) -> list[tuple[torch.Generator, int]]:
    """Return the generators of a sampler, and of a batch sampler's inner one, with their seeds."""
    parts = (sampler, getattr(sampler, "sampler", None))
    generators = (getattr(part, "generator", None) for part in parts)
    return [
        (generator, generator.initial_seed())
        for generator in generators
        if isinstance(generator, torch.Generator)
    ]
