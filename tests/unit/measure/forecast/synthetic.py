"""Benches whose truth is known: steps of ranks that draw their work, and exchange buckets over a ring."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

SHARES = (0.02, 0.01, 0.07, 0.3, 0.6)  # of own work: optimizer, other, data, forward, backward


@dataclass(frozen=True)
class Truth:
    """A training run that is simulated."""

    own_s: float = 0.2
    spread_s: float = 0.02
    skewed: bool = False
    latency_s: float = 2e-4
    bytes_per_s: float = 12e6
    buckets: tuple[int, ...] = (1 << 20,) * 4
    slow_rank: int | None = None
    fixed_share: float = 0.0  # of own work, which a smaller batch does not shorten
    stall_chance: float = 0.0  # of a rank in a step
    stall_s: float = 0.0
    samples: int = 64  # of a rank, or of all ranks with strong scaling
    strong: bool = False

    def own_work_s(self, source, world, rank):
        varied = (
            source.expovariate(1 / self.spread_s) if self.skewed else source.gauss(0, self.spread_s)
        )
        size = 1 / world if self.strong else 1
        varied += self.stall_s * (source.random() < self.stall_chance) if self.stall_chance else 0.0
        mean = self.own_s * (self.fixed_share + (1 - self.fixed_share) * size)
        return mean + varied + 0.3 * self.own_s * (rank == self.slow_rank)

    def exposed_s(self, world, backward_s):
        """The all-reduces of the buckets one after the other, as a simulation of messages."""
        if world == 1:
            return 0.0
        now = ready = 0.0
        for size in self.buckets:
            ready += size
            now = max(now, backward_s * ready / sum(self.buckets))
            for _ in range(2 * (world - 1)):
                now += self.latency_s + size / world / self.bytes_per_s
        return max(0.0, now - backward_s)

    def step(self, source, world):
        """A step of all ranks, in microseconds by rank."""
        own_s = [self.own_work_s(source, world, rank) for rank in range(world)]
        end_s = max(own_s) + self.exposed_s(world, max(own_s) * SHARES[-1])
        return {
            str(rank): [*(round(1e6 * share * own) for share in SHARES), round(1e6 * (end_s - own))]
            for rank, own in enumerate(own_s)
        }

    def samples_per_step(self, world):
        return self.samples if self.strong else self.samples * world

    def samples_per_s(self, world, steps=2000):
        """The truth for any number of ranks."""
        source = random.Random(99)
        seconds = [max(map(sum, self.step(source, world).values())) / 1e6 for _ in range(steps)]
        return self.samples_per_step(world) / statistics.fmean(seconds)


def bench(truth=None, worlds=(1, 2), *, rounds=5, steps=30, seed=0, one_node=False, **values):
    """The content of ``bench.json`` of a bench of a truth."""
    truth, source = truth or Truth(), random.Random(seed)
    measured = {
        str(world): {
            "num_nodes": 1 if one_node else world,
            "samples_per_step": truth.samples_per_step(world),
            "hosts": {},
            "rounds": [
                {str(step + 10): truth.step(source, world) for step in range(steps)}
                for _ in range(rounds)
            ],
        }
        for world in worlds
    }
    return {
        "version": 1,
        "kind": "bench",
        "command": ["train.py", "--lr", "0.1"],
        "scaling": "strong" if truth.strong else "weak",
        "backend": "gloo",
        "warmup_steps": 10,
        "worlds": measured,
        "gradient_bytes": sum(truth.buckets),
        "bucket_bytes": list(truth.buckets),
        "settings": [],
        "network": None,
        **values,
    }


def network(truth=None, world=2, *, one_node=False):
    """What ``bench network`` prints of the links of a truth."""
    truth = truth or Truth()
    sizes = [4**power for power in range(5, 14)]
    steps = 2 * (world - 1)
    points = [
        {"bytes": size, "seconds": steps * (truth.latency_s + size / world / truth.bytes_per_s)}
        for size in sizes
    ]
    num_nodes = 1 if one_node else world
    return {
        "version": 1,
        "kind": "network",
        "world": world,
        "num_nodes": num_nodes,
        "points": points,
    }
