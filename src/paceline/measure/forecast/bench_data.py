"""What a forecast takes from a bench: times of steps by world size, and all-reduces. Pure.

Steps are reduced to what the model needs: the own work of each rank, and the exchange and backward
of the rank that came last, whose exchange contains no waiting for others.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import Finding, SetupError
from paceline.launch.monitor import stage_times
from paceline.measure.bench_file import BenchFile, WorldBench

_S = 1e-9  # durations are in nanoseconds
_BACKWARD = stage_times.STAGES.index("backward")
# A round is divided into blocks until there are so many: neighbouring steps resemble each other, so
# that the bootstrap must draw blocks, and from few it cannot draw.
_LEAST_BLOCKS = 8
_LEAST_BLOCK_STEPS = 5


@dataclass(frozen=True)
class TimedStep:
    """One step of all ranks."""

    own_s: tuple[float, ...]  # seconds of each rank until its own gradients are computed
    exchange_s: float  # seconds of the exchange, as of the rank that came last
    backward_s: float  # seconds of that rank's own backward

    @property
    def seconds(self) -> float:
        """Time of the step."""
        return max(self.own_s) + self.exchange_s


@dataclass(frozen=True)
class WorldTimes:
    """What a bench has measured at one world size."""

    ranks: int  # number of ranks
    num_nodes: int  # number of nodes
    samples_per_step: float  # samples of all ranks in a step; 0 if unknown
    rounds: tuple[tuple[TimedStep, ...], ...]  # steps by round
    is_synchronised: bool  # whether ranks leave the exchange together
    cpu_s: float  # CPU time that the threads of a rank take in a step; 0 if unknown

    @property
    def blocks(self) -> list[tuple[TimedStep, ...]]:
        """Rounds, or parts of them where there are few."""
        return _divided(self.rounds)

    @property
    def steps(self) -> list[TimedStep]:
        """The steps of all rounds."""
        return [step for steps in self.rounds for step in steps]

    @property
    def own_mean_s(self) -> float:
        """Mean own work of a rank in a step."""
        return statistics.fmean(own_s for step in self.steps for own_s in step.own_s)


@dataclass(frozen=True)
class NetworkTimes:
    """What ``bench network`` has measured."""

    ranks: int  # number of ranks
    num_nodes: int  # number of nodes
    points: tuple[tuple[float, float], ...]  # bytes and seconds of an all-reduce
    # bytes, and the lower end of the interval of its seconds
    least: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Bench:
    """A bench, as far as a forecast needs it."""

    command: tuple[str, ...]  # words of the script
    scaling: str  # ``"weak"``, the batch per rank stays, or ``"strong"``, the global batch stays
    backend: str  # ``"nccl"`` or ``"gloo"``
    worlds: Mapping[int, WorldTimes]  # what was measured, by number of ranks, the smallest first
    gradient_bytes: float | None  # bytes of all gradients; None if unknown
    bucket_bytes: tuple[float, ...] | None  # bytes of each all-reduce; None if unknown
    networks: tuple[NetworkTimes, ...]  # what ``bench network`` has measured; empty without it
    is_oversubscribed: bool  # whether ranks shared CPUs or GPUs
    cpus: int  # that the ranks of a node could use; 0 if unknown

    @property
    def knows_bytes(self) -> bool:
        """Whether the bytes of the gradients are known."""
        return bool(self.gradient_bytes or self.bucket_bytes)

    @property
    def largest(self) -> WorldTimes:
        """The world with most ranks."""
        return self.worlds[max(self.worlds)]


def summarize(file: BenchFile, networks: Sequence[Mapping[str, Any]] = ()) -> Bench:
    """Return what a forecast needs of a bench.

    ``networks``: what ``bench network --json`` has printed, besides what the bench contains. Raises
    SetupError if the bench is damaged.
    """
    measured_networks = [file.network] if file.network else []
    try:
        worlds = {
            ranks: _world(ranks, world)
            for ranks, world in sorted(file.worlds.items())
            if any(world.rounds)
        }
        network_times = [_network(values) for values in (*measured_networks, *networks)]
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
        what = f"what was measured is damaged: {type(error).__name__}: {error}"
        raise SetupError(unreadable(what)) from None
    return Bench(
        command=file.command,
        scaling=file.scaling,
        backend=file.backend,
        worlds=worlds,
        gradient_bytes=file.gradient_bytes,
        bucket_bytes=file.bucket_bytes,
        networks=tuple(network_times),
        is_oversubscribed=file.oversubscribed,
        cpus=file.cpus,
    )


def unreadable(what: str) -> Finding:
    """Return the finding for a bench that cannot be read."""
    return Finding(
        "input-unreadable",
        what,
        evidence=("paceline bench writes bench.json into its run folder",),
        fix="paceline bench --world 1,2 train.py",
    )


def _world(ranks: int, world: WorldBench) -> WorldTimes:
    rounds = [[step for _, step in sorted(steps.items())] for steps in world.rounds]
    # All steps count: a stall of one rank in 400 is met by every step of 400 ranks.
    all_steps = [step for steps in rounds for step in steps]
    _check(all_steps, ranks)
    return WorldTimes(
        ranks=ranks,
        num_nodes=world.num_nodes,
        samples_per_step=world.samples_per_step,
        rounds=tuple(tuple(map(_summary, steps)) for steps in rounds if len(steps) > 1),
        is_synchronised=stage_times.are_synchronised(all_steps),
        cpu_s=world.cpu_s_per_step,
    )


def _check(steps: Sequence[stage_times.Step], ranks: int) -> None:
    """Raise a ValueError for steps that cannot have been measured."""
    if any(len(step) != ranks for step in steps):
        raise ValueError(f"a step of {ranks} ranks has another number of ranks")
    if not any(sum(durations) for step in steps for durations in step.values()):
        raise ValueError(f"the steps of {ranks} ranks take no time")


def _summary(step: Mapping[int, Sequence[int]]) -> TimedStep:
    own = {rank: sum(durations[:-1]) for rank, durations in sorted(step.items())}
    last = max(own, key=lambda rank: own[rank])
    return TimedStep(
        own_s=tuple(duration * _S for duration in own.values()),
        exchange_s=step[last][-1] * _S,
        backward_s=step[last][_BACKWARD] * _S,
    )


def _divided(blocks: Sequence[Sequence[TimedStep]]) -> list[tuple[TimedStep, ...]]:
    """Divide blocks of consecutive steps until there are enough to draw from."""
    parts_per_block = -(-_LEAST_BLOCKS // max(1, len(blocks)))
    divided = []
    for block in blocks:
        size = max(_LEAST_BLOCK_STEPS, -(-len(block) // parts_per_block))
        divided += [tuple(block[begin : begin + size]) for begin in range(0, len(block), size)]
    return divided


def _network(values: Mapping[str, Any]) -> NetworkTimes:
    measured = values["points"]
    points = [(float(point["bytes"]), float(point["seconds"])) for point in measured]
    lows = [float(point.get("low", point["seconds"])) for point in measured]
    least = [(size, low) for (size, _), low in zip(points, lows, strict=True)]
    lowest = min(min(point) for point in (*points, *least)) if points else 0.0
    if len(points) < 2 or lowest <= 0 or values["world"] < 2:
        raise ValueError("the network has too few points, or times of 0 s")
    return NetworkTimes(
        ranks=values["world"],
        num_nodes=int(values.get("num_nodes", 1)),
        points=tuple(points),
        least=tuple(least),
    )
