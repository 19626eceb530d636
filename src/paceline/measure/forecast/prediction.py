"""Predict the throughput of more ranks from a bench. Pure.

The estimate is the fitted model's. The interval comes from a bootstrap in which blocks of steps,
the deviations between ranks, and what the bench does not determine are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from paceline.errors import Finding, SetupError
from paceline.measure.bench_file import BenchFile
from paceline.measure.forecast import bench_data
from paceline.measure.forecast.bench_data import Bench
from paceline.measure.forecast.collectives import MeasuredLink
from paceline.measure.forecast.fitting import (
    LATENCY_RANGE_S,
    PAYLOAD_SHARE,
    Draw,
    Fitter,
    Model,
    measured_per_node,
)

WORLDS = tuple(2**power for power in range(1, 13))
DRAWS = 100
CONFIDENCE = 0.95
_SEED = 0  # the same bench gives the same forecast
_LEAST_STEPS = 16
# Where no second node was measured: the slowest link that clusters have today, for the lower end.
SLOWEST_LINK_BITS_PER_S = 1e9


@dataclass(frozen=True)
class Point:
    """The forecast for one world size."""

    world: int  # number of ranks
    num_nodes: int  # number of nodes
    samples_per_s: float  # throughput
    low: float  # lower end of its interval
    high: float  # upper end
    efficiency: float  # throughput relative to ``world`` times that of one rank
    # whether ``samples_per_s`` is what it can be at most, because no link between nodes was
    # measured
    is_bound: bool = False


@dataclass(frozen=True)
class Forecast:
    """What is forecast from a bench."""

    command: tuple[str, ...]  # words of the script
    unit: str  # ``"samples"``, or ``"batches"`` if the bench could not count samples
    single_per_s: float  # throughput of one rank
    points: tuple[Point, ...]  # by world size, the smallest first
    # number of ranks from which another rank brings less than half of what one rank does alone;
    # None if that is beyond the largest point
    half_worth_at: int | None
    ranks_per_node: int  # ranks of a node
    notes: tuple[str, ...]  # what the forecast rests on, and what it cannot know

    @property
    def should_scale(self) -> bool:
        """Whether a second rank is worth at least half of itself."""
        return self.half_worth_at != 1

    def to_json(self) -> dict[str, Any]:
        """Return the forecast as the dictionary that ``--json`` prints."""
        return {
            "version": 1,
            "kind": "forecast",
            **asdict(self),
            "should_scale": self.should_scale,
        }


def predict(
    file: BenchFile,
    *,
    worlds: Sequence[int] = WORLDS,
    networks: Sequence[Mapping[str, Any]] = (),  # what ``bench network --json`` has printed
    ranks_per_node: int | None = None,  # None as in the bench
) -> Forecast:
    """Predict the throughput of other world sizes.

    Raises SetupError if the bench is damaged, or not enough for a forecast.
    """
    bench = bench_data.summarize(file, networks)
    check(bench)
    possible = sorted(set(worlds))
    if bench.scaling == "strong":  # each rank needs a sample
        possible = [world for world in possible if world <= bench.largest.samples_per_step]
    fitter = Fitter(bench, ranks_per_node)
    source = random.Random(_SEED)
    ensemble = _Ensemble(
        fitter.fit(Draw()), [fitter.fit(Draw(source)) for _ in range(DRAWS)], bench
    )
    points = tuple(ensemble.point(world) for world in possible)
    half_worth_at = _half_worth_at(ensemble.estimate, possible)
    return Forecast(
        command=bench.command,
        unit="samples" if bench.largest.samples_per_step else "batches",
        single_per_s=ensemble.estimate.samples_per_s(1),
        points=points,
        half_worth_at=half_worth_at,
        ranks_per_node=ensemble.estimate.network.ranks_per_node,
        notes=tuple(
            describe(
                bench,
                ranks_per_node=ensemble.estimate.network.ranks_per_node,
                has_bounds=any(point.is_bound for point in points),
            )
        ),
    )


def check(bench: Bench) -> None:
    """Check that a bench is enough for a forecast."""
    reason = _missing(bench)
    if reason:
        raise SetupError(_insufficient(reason, bench))


def _missing(bench: Bench) -> str:
    """Return what a bench lacks; empty if it is enough."""
    exchanging = [world for world in bench.worlds.values() if world.ranks > 1]
    fewest_steps = min((len(world.steps) for world in bench.worlds.values()), default=0)
    if fewest_steps < _LEAST_STEPS:
        return f"fewer than {_LEAST_STEPS} steps of a world size"
    if len(bench.worlds) == 1 and not bench.networks:
        return "one world size, and no measurement of the network"
    if not exchanging and not bench.knows_bytes:
        return "no exchange was measured, and the bytes of the gradients are unknown"
    # Ranks of a script without DistributedDataParallel seem to scale perfectly: nothing is sent.
    if not bench.knows_bytes and not all(world.is_synchronised for world in exchanging):
        return "ranks do not wait for each other in backward, where gradients are exchanged"
    return _missing_of_strong_scaling(bench) if bench.scaling == "strong" else ""


def _missing_of_strong_scaling(bench: Bench) -> str:
    if len(bench.worlds) == 1:
        return "strong scaling needs two sizes of the batch"
    if not all(world.samples_per_step for world in bench.worlds.values()):
        return "strong scaling needs the number of samples"
    return ""


def _insufficient(reason: str, bench: Bench) -> Finding:
    sizes = ", ".join(map(str, bench.worlds)) or "none"
    return Finding(
        "bench-insufficient",
        f"this bench is not enough for a forecast: {reason}",
        evidence=(f"measured world sizes: {sizes}",),
        why="latency, bandwidth and the spread between ranks would be guesses",
        fix="paceline bench --world 1,2 train.py",
    )


def _half_worth_at(model: Model, worlds: Sequence[int]) -> int | None:
    """Return the number of ranks from which another one brings less than half of one alone.

    Ranks are added node by node once a node is full. A node boundary may cost once and no further,
    so the number is the one after which no addition brings half.
    """
    half = model.samples_per_s(1) / 2
    sizes = _sizes(model.network.ranks_per_node, max(worlds, default=1))
    worth = None
    for world, larger in pairwise(sizes):
        gain = (model.samples_per_s(larger) - model.samples_per_s(world)) / (larger - world)
        if gain >= half:
            worth = None
        elif worth is None:
            worth = world
    return worth


def _sizes(per_node: int, largest: int) -> list[int]:
    """Return world sizes that grow by about 10 %, of whole nodes from one node on."""
    sizes = list(range(1, min(per_node, largest) + 1))
    nodes = 2
    while nodes * per_node <= largest:
        sizes.append(nodes * per_node)
        nodes = max(nodes + 1, nodes * 11 // 10)
    return sizes


class _Ensemble:
    """The estimate, and the models of the bootstrap's draws."""

    def __init__(self, estimate: Model, draws: Sequence[Model], bench: Bench) -> None:
        self.estimate, self._draws = estimate, draws
        has_between = any(world.num_nodes > 1 for world in bench.worlds.values())
        has_between |= any(network.num_nodes > 1 for network in bench.networks)
        self._knows_between = has_between

    def is_bound(self, world: int) -> bool:
        """Return whether ``world`` ranks need a link that was never measured."""
        return not self._knows_between and self.estimate.network.num_nodes(world) > 1

    def point(self, world: int) -> Point:
        """Return the forecast for ``world`` ranks."""
        value = self.estimate.samples_per_s(world)
        low, high = ends([model.samples_per_s(world) for model in self._draws])
        if self.is_bound(world):
            slowed = [_on_slowest_link(model).samples_per_s(world) for model in self._draws]
            low = ends(slowed)[0]
        return Point(
            world=world,
            num_nodes=self.estimate.network.num_nodes(world),
            samples_per_s=value,
            low=min(low, value),
            high=max(high, value),
            efficiency=value / world / self.estimate.samples_per_s(1),
            is_bound=self.is_bound(world),
        )


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the interval that holds ``CONFIDENCE`` of the values."""
    ordered = sorted(values)
    tail = (1 - CONFIDENCE) / 2
    last = len(ordered) - 1
    return ordered[int(tail * last)], ordered[round((1 - tail) * last)]


def _on_slowest_link(model: Model) -> Model:
    """Return the model with the slowest link between nodes that clusters have."""
    network = model.network
    slowest = min(network.inside.bytes_per_s, SLOWEST_LINK_BITS_PER_S / 8 * PAYLOAD_SHARE)
    latency_s = max(network.inside.latency_s, LATENCY_RANGE_S[1])
    return replace(model, network=replace(network, between=MeasuredLink(latency_s, slowest)))


_CONTENTION = 0.05  # longer own work that is worth a note


def describe(
    bench: Bench,
    *,
    ranks_per_node: int,
    has_bounds: bool,  # points need a link that was never measured
) -> Iterator[str]:
    """Yield the notes of a forecast."""
    yield from _of_nodes(bench, ranks_per_node, has_bounds)
    yield from _of_shared_devices(bench)
    yield from _of_the_fit(bench)
    yield (
        "It cannot know: other jobs on the network, storage that more ranks read from, slow ranks"
        " and nodes that the bench has not met."
    )


def _of_nodes(bench: Bench, ranks_per_node: int, has_bounds: bool) -> Iterator[str]:
    if has_bounds:
        yield (
            f"No second node was measured: beyond {ranks_per_node} ranks the figures are upper"
            " bounds, as if the link between nodes were as fast as the one inside. Lower ends are"
            " those of 1 Gbit/s Ethernet. --network says more, with what paceline"
            " bench network measured on two nodes."
        )
    sizes = [(world.num_nodes, world.ranks) for world in bench.worlds.values()]
    sizes += [(network.num_nodes, network.ranks) for network in bench.networks]
    has_inside = any(num_nodes == 1 and ranks > 1 for num_nodes, ranks in sizes)
    if ranks_per_node > 1 and not has_inside:
        yield (
            "No two ranks were measured alone on a node: the link inside one is taken to be as slow"
            " as the one between nodes."
        )
    most = measured_per_node(bench)
    if ranks_per_node > most:
        left_out, included = "memory, CPUs, power", ""
        if bench.cpus and bench.largest.cpu_s:
            left_out = "memory, power"
            included = f"; their waits for its {bench.cpus} CPUs are estimated"
        yield (
            f"At most {most} ranks were measured on one node: what {ranks_per_node} ranks take from"
            f" each other there ({left_out}) is not included{included}."
        )


def _of_shared_devices(bench: Bench) -> Iterator[str]:
    if bench.is_oversubscribed:
        yield (
            "Ranks shared CPUs or GPUs in the bench, which makes their own work longer: this is a"
            " forecast of ranks that share them too."
        )
    on_one_node = [world for world in bench.worlds.values() if world.num_nodes == 1]
    if len(on_one_node) < 2 or bench.scaling == "strong":
        return
    smallest, largest = on_one_node[0], on_one_node[-1]
    excess = largest.own_mean_s / smallest.own_mean_s - 1
    if excess >= _CONTENTION:
        shared = f"the node's {bench.cpus} CPUs, memory and power" if bench.cpus else "something"
        yield (
            f"A rank's own work takes {excess:.0%} longer with {largest.ranks} ranks on the node"
            f" than with {smallest.ranks}: they share {shared}. The forecast rests on the longer"
            " time, and with fewer ranks on each node it would be better."
        )


def _of_the_fit(bench: Bench) -> Iterator[str]:
    if not bench.knows_bytes:
        yield (
            "The bytes of the gradients are unknown, so that it is open how much communication"
            " backward hides: the intervals cover all of backward and nothing."
        )
    exchanging = [world for world in bench.worlds.values() if world.ranks > 1]
    if not bench.networks and len(exchanging) == 1:
        low_s, high_s = LATENCY_RANGE_S
        yield (
            "One exchange does not show latency and bandwidth apart: the intervals hold for"
            f" latencies of {low_s * 1e6:g} us to {high_s * 1e3:g} ms. paceline bench network, or"
            " one more world size, narrows them."
        )
    if 1 not in bench.worlds:
        yield (
            "One rank alone was not measured: its speed, to which efficiency refers, is that of a"
            " rank's own work without communication."
        )
    if bench.scaling == "strong":
        batch = bench.largest.samples_per_step
        yield f"The global batch of {batch:,.0f} samples stays: no more ranks than samples."
