"""Predict the throughput of more ranks from a bench. Pure.

The estimate is the fitted model's. The interval comes from a bootstrap in which blocks of steps,
the deviations between ranks, and what the bench does not determine are drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from paceline.errors import Finding, SetupError, UsageError
from paceline.measure.forecast import bench_data
from paceline.measure.forecast import changes as changes_of
from paceline.measure.forecast.bench_data import Bench
from paceline.measure.forecast.changes import Change, ends
from paceline.measure.forecast.collectives import Link
from paceline.measure.forecast.model import (
    LATENCY_RANGE_S,
    PAYLOAD_RANGE,
    Draw,
    Fitter,
    Model,
    WhatIf,
    measured_per_node,
)

WORLDS = tuple(2**power for power in range(1, 13))
DRAWS = 100
_SEED = 0  # the same bench gives the same forecast
_LEAST_STEPS = 16
# Where no second node was measured: the slowest link that clusters have today, for the lower end.
SLOWEST_LINK_BITS_PER_S = 1e9
_CONTENTION = 0.05  # longer own work that is worth a note


@dataclass(frozen=True)
class Point:
    """The forecast for one world size.

    Attributes:
        world: Number of ranks.
        num_nodes: Number of nodes.
        samples_per_s: Throughput.
        low: Lower end of its interval.
        high: Upper end.
        efficiency: Throughput relative to ``world`` times that of one rank.
        is_bound: Whether ``samples_per_s`` is what it can be at most, because no link between
            nodes was measured.
    """

    world: int
    num_nodes: int
    samples_per_s: float
    low: float
    high: float
    efficiency: float
    is_bound: bool = False


@dataclass(frozen=True)
class Forecast:
    """What is forecast from a bench.

    Attributes:
        command: Words of the script.
        unit: ``"samples"``, or ``"batches"`` if the bench could not count samples.
        single_per_s: Throughput of one rank.
        points: By world size, the smallest first.
        half_worth_at: Number of ranks from which another rank brings less than half of what one
            rank does alone; None if that is beyond the largest point.
        changes_world: World size of ``changes``.
        changes: What changes of the training are worth there.
        ranks_per_node: Ranks of a node.
        link_bits_per_s: Rate of the link between nodes, if another one than measured was assumed.
        notes: What the forecast rests on, and what it cannot know.
    """

    command: tuple[str, ...]
    unit: str
    single_per_s: float
    points: tuple[Point, ...]
    half_worth_at: int | None
    changes_world: int
    changes: tuple[Change, ...]
    ranks_per_node: int
    link_bits_per_s: float | None
    notes: tuple[str, ...]

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
    values: Mapping[str, Any],
    *,
    worlds: Sequence[int] = WORLDS,
    ranks_per_node: int | None = None,
    link_bits_per_s: float | None = None,
) -> Forecast:
    """Predict the throughput of other world sizes.

    Args:
        values: What ``bench.json`` contains.
        worlds: World sizes.
        ranks_per_node: Ranks of a node; None as in the bench.
        link_bits_per_s: Rate of the link between nodes; None as measured.

    Raises:
        SetupError: The values are not those of a bench, or not enough for a forecast.
        UsageError: ``link_bits_per_s`` is given, and the bench does not know the gradients' bytes.
    """
    bench = bench_data.parse(values)
    check(bench)
    what_if = WhatIf(ranks_per_node, link_bits_per_s)
    if link_bits_per_s is not None and not _knows_bytes(bench):
        raise UsageError(_unknown_bytes())
    possible = [world for world in sorted(set(worlds)) if _is_possible(bench, world)]
    fitter = Fitter(bench, what_if)
    source = random.Random(_SEED)
    ensemble = _Ensemble(
        fitter.fit(Draw()), [fitter.fit(Draw(source)) for _ in range(DRAWS)], bench, what_if
    )
    half_worth_at = _half_worth_at(ensemble.estimate, possible)
    changes_world = _reference(possible, half_worth_at)
    return Forecast(
        command=bench.command,
        unit="samples" if bench.largest.samples_per_step else "batches",
        single_per_s=ensemble.estimate.samples_per_s(1),
        points=tuple(ensemble.point(world) for world in possible),
        half_worth_at=half_worth_at,
        changes_world=changes_world,
        changes=tuple(ensemble.changes(changes_world)),
        ranks_per_node=ensemble.estimate.network.ranks_per_node,
        link_bits_per_s=link_bits_per_s,
        notes=tuple(_notes(bench, what_if, ensemble, possible)),
    )


def check(bench: Bench) -> None:
    """Check that a bench is enough for a forecast.

    Raises:
        SetupError: It is not; says what is missing.
    """
    sizes = ", ".join(map(str, bench.worlds)) or "none"
    exchanging = [ranks for ranks in bench.worlds if ranks > 1]
    if not bench.worlds or min(len(world.steps) for world in bench.worlds.values()) < _LEAST_STEPS:
        raise SetupError(
            _insufficient(f"fewer than {_LEAST_STEPS} steps of each world size", sizes)
        )
    if len(bench.worlds) == 1 and bench.network is None:
        raise SetupError(_insufficient("one world size, and no measurement of the network", sizes))
    if not exchanging and not _knows_bytes(bench):
        what = "no exchange was measured, and the bytes of the gradients are unknown"
        raise SetupError(_insufficient(what, sizes))
    if bench.scaling == "strong" and len(bench.worlds) == 1:
        raise SetupError(_insufficient("strong scaling needs two sizes of the batch", sizes))
    if bench.scaling == "strong" and not bench.largest.samples_per_step:
        raise SetupError(_insufficient("strong scaling needs the number of samples", sizes))


def _insufficient(what: str, sizes: str) -> Finding:
    return Finding(
        "bench-insufficient",
        f"this bench is not enough for a forecast: {what}",
        evidence=(f"measured world sizes: {sizes}",),
        why="latency, bandwidth and the spread between ranks would be guesses",
        fix="paceline bench train.py --world 1,2",
    )


def _unknown_bytes() -> Finding:
    return Finding(
        "option-contradicted",
        "--link has no effect here: the bench does not know the bytes of the gradients",
        where="--link",
        fix="a bench of a script that uses DistributedDataParallel has them",
    )


def _knows_bytes(bench: Bench) -> bool:
    return bool(bench.gradient_bytes or bench.bucket_bytes)


def _is_possible(bench: Bench, world: int) -> bool:
    """Return whether each rank has a sample."""
    return bench.scaling == "weak" or world <= bench.largest.samples_per_step


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


def _reference(worlds: Sequence[int], half_worth_at: int | None) -> int:
    """Return the world size for which changes are compared: where scaling begins to fail."""
    if half_worth_at is None:
        return worlds[-1]
    return next((world for world in worlds if world >= half_worth_at), worlds[-1])


class _Ensemble:
    """The estimate, and the models of the bootstrap's draws."""

    def __init__(
        self, estimate: Model, draws: Sequence[Model], bench: Bench, what_if: WhatIf
    ) -> None:
        self.estimate, self._draws = estimate, draws
        has_between = any(world.num_nodes > 1 for world in bench.worlds.values())
        has_between |= bench.network is not None and bench.network.num_nodes > 1
        self._knows_between = has_between or what_if.link_bits_per_s is not None

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

    def changes(self, world: int) -> list[Change]:
        """Return what changes are worth for ``world`` ranks."""
        return changes_of.compare(self.estimate, self._draws, world)


def _on_slowest_link(model: Model) -> Model:
    """Return the model with the slowest link between nodes that clusters have."""
    network = model.network
    slowest = min(network.inside.bytes_per_s, SLOWEST_LINK_BITS_PER_S / 8 * PAYLOAD_RANGE[0])
    latency_s = max(network.inside.latency_s, LATENCY_RANGE_S[1])
    return replace(model, network=replace(network, between=Link(latency_s, slowest)))


def _notes(bench: Bench, what_if: WhatIf, ensemble: _Ensemble, worlds: Sequence[int]) -> list[str]:
    """Return what the forecast rests on, and what it cannot know."""
    notes = []
    per_node = ensemble.estimate.network.ranks_per_node
    if any(ensemble.is_bound(world) for world in worlds):
        notes.append(
            f"No second node was measured: beyond {per_node} ranks per node the figures are upper"
            " bounds, as if the link between nodes were as fast as the one inside. Lower ends are"
            " those of 1 Gbit/s Ethernet. --link 100Gbit, or paceline bench network on two nodes,"
            " says more."
        )
    if per_node > measured_per_node(bench):
        notes.append(
            f"At most {measured_per_node(bench)} ranks were measured on one node: what {per_node}"
            " ranks take from each other there (memory, CPUs, power) is not included."
        )
    if len(bench.worlds) > 1:
        notes += _contention(bench)
    if what_if.link_bits_per_s is not None:
        notes.append(
            "With --link the all-reduce is assumed to fill the link. One gloo connection rarely"
            " fills more than 10 Gbit/s."
        )
    if not _knows_bytes(bench):
        notes.append(
            "The bytes of the gradients are unknown, so that it is open how much communication"
            " backward hides: the intervals cover all of it and nothing."
        )
    exchanging = [world for world in bench.worlds.values() if world.ranks > 1]
    if bench.network is None and len(exchanging) == 1:
        low_s, high_s = LATENCY_RANGE_S
        notes.append(
            "One exchange does not show latency and bandwidth apart: the intervals hold for"
            f" latencies of {low_s * 1e6:g} us to {high_s * 1e3:g} ms. paceline bench network, or"
            " one more world size, narrows them."
        )
    left_out = sum(world.left_out for world in bench.worlds.values())
    if left_out:
        notes.append(f"{left_out} steps that took far longer than most were left out.")
    limit = bench.largest.samples_per_step
    if bench.scaling == "strong":
        notes.append(f"The global batch of {limit:g} samples stays: no more ranks than samples.")
    notes.append(
        "It cannot know: other jobs on the network, storage that more ranks read from, slow ranks"
        " and nodes that the bench has not met."
    )
    return notes


def _contention(bench: Bench) -> list[str]:
    """Return a note if ranks on one node slow each other."""
    worlds = [world for world in bench.worlds.values() if world.num_nodes == 1]
    if len(worlds) < 2 or bench.scaling == "strong":
        return []
    smallest, largest = worlds[0], worlds[-1]
    excess = largest.own_mean_s / smallest.own_mean_s - 1
    if excess < _CONTENTION:
        return []
    return [
        f"A rank's own work takes {excess:.0%} longer with {largest.ranks} ranks on the node than"
        f" with {smallest.ranks}: they share something. The forecast rests on the longer time."
    ]
