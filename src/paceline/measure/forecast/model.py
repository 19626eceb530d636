"""The model of a step's time by number of ranks. Pure.

step = mean of the slowest rank's own work + communication that backward does not hide
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.measure.forecast.collectives import Exchange, Network
from paceline.measure.forecast.own_work import OwnWork


@dataclass(frozen=True)
class Model:
    """A step's time by world size."""

    work: OwnWork  # own work of a rank with the batch of the largest measured world
    backward_s: float  # seconds of backward within it
    exchange: Exchange  # gradients of a step
    network: Network  # links
    samples_per_rank: float  # samples of a rank in a step of that world
    fixed_s: float | None  # own work of an empty batch, with strong scaling; None with weak scaling
    global_batch: float  # samples of a step, with strong scaling
    single_step_s: float | None  # measured step of one rank; None if none was measured
    single_samples: float  # samples of that step
    steady_share: float  # share of the differences between ranks that another batch does not change
    # size of a rank's batch relative to the measured one, with weak scaling
    batch_factor: float = 1.0

    def step_s(self, world: int) -> float:
        """Return the mean time of a step of ``world`` ranks."""
        if world == 1 and self.single_step_s is not None:
            return self.single_step_s * self.batch_factor
        factor = self._work_factor(world)
        spread_factor = factor + (1 - factor) * self.steady_share
        own_s = self.work.mean_s * factor + self.work.differences.excess_s(world) * spread_factor
        return own_s + self.exchange.exposed_s(self.network, world, self.backward_s * factor)

    def exposed_s(self, world: int) -> float:
        """Return the seconds of a step in which nothing hides communication."""
        backward_s = self.backward_s * self._work_factor(world)
        return self.exchange.exposed_s(self.network, world, backward_s)

    def samples(self, world: int) -> float:
        """Return the samples of a step of ``world`` ranks."""
        if self.fixed_s is not None:
            return self.global_batch
        if world == 1 and self.single_step_s is not None:
            return self.single_samples * self.batch_factor
        return self.samples_per_rank * self.batch_factor * world

    def samples_per_s(self, world: int) -> float:
        """Return the throughput of ``world`` ranks."""
        return self.samples(world) / self.step_s(world)

    def _work_factor(self, world: int) -> float:
        """Return a rank's own work relative to that of the largest measured world."""
        if self.fixed_s is None:
            return self.batch_factor
        share = self.fixed_s / self.work.mean_s
        return share + (1 - share) * self.global_batch / world / self.samples_per_rank
