"""Fit the model of a step's time to a bench. Pure.

step = mean of the slowest rank's own work + communication that backward does not hide
     + what it waits for CPUs, where more ranks of a node share them than in the bench

The links are fitted so that the communication of the measured world sizes is reproduced. Several of
them determine latency and bandwidth; with one, the latency comes from ``bench network`` if it was
measured, else from a plausible range. The bandwidth is not taken from ``bench network`` then: on
busy CPUs an all-reduce alone takes longer than it does in training. A link that no world size used
is what ``bench network`` says.

What a bench does not determine is drawn from its plausible range in each draw of the bootstrap, so
that it widens the interval.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.measure.forecast import collectives
from paceline.measure.forecast.bench_data import Bench, TimedStep
from paceline.measure.forecast.collectives import Exchange, MeasuredLink, Network

_MOST_DEVIATIONS = 2000  # in one draw


class Draw:
    """Choices of one draw of the bootstrap; of the estimate itself without a generator."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._source = source

    def blocks(self, count: int) -> list[int]:
        """Return numbers of blocks."""
        if self._source is None:
            return list(range(count))
        return self._source.choices(range(count), k=count)

    def within(self, low: float, high: float) -> float:
        """Return a value of a range; its middle for the estimate."""
        return (low + high) / 2 if self._source is None else self._source.uniform(low, high)

    def within_log(self, low: float, high: float) -> float:
        """Return a value of a range whose logarithm is uniform."""
        return math.exp(self.within(math.log(low), math.log(high)))

    def about(self, value: float, error: float) -> float:
        """Return a value with a normally distributed error."""
        return value if self._source is None else self._source.gauss(value, error)

    def deviations(self, values: Sequence[float]) -> Sequence[float]:
        """Return a sample of values."""
        if self._source is None:
            return values
        return self._source.choices(values, k=min(len(values), _MOST_DEVIATIONS))


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
    shared_cpus: SharedCpus  # CPUs of a node

    def step_s(self, world: int) -> float:
        """Return the mean time of a step of ``world`` ranks."""
        if world == 1 and self.single_step_s is not None:
            return self.single_step_s
        factor = self._work_factor(world)
        spread_factor = factor + (1 - factor) * self.steady_share
        own_s = self.work.mean_s * factor + self.work.differences.excess_s(world) * spread_factor
        alone_s = own_s + self.exchange.exposed_s(self.network, world, self.backward_s * factor)
        return self.shared_cpus.step_s(alone_s, min(world, self.network.ranks_per_node), factor)

    def samples(self, world: int) -> float:
        """Return the samples of a step of ``world`` ranks."""
        if self.fixed_s is not None:
            return self.global_batch
        if world == 1 and self.single_step_s is not None:
            return self.single_samples
        return self.samples_per_rank * world

    def samples_per_s(self, world: int) -> float:
        """Return the throughput of ``world`` ranks."""
        return self.samples(world) / self.step_s(world)

    def _work_factor(self, world: int) -> float:
        """Return a rank's own work relative to that of the largest measured world."""
        if self.fixed_s is None:
            return 1.0
        share = self.fixed_s / self.work.mean_s
        return share + (1 - share) * self.global_batch / world / self.samples_per_rank


@dataclass(frozen=True)
class SharedCpus:
    """The CPUs of a node, for which ranks wait if there are more ranks than CPUs."""

    cpus: int  # of a node; 0 if unknown
    measured: int  # most ranks of a node that were measured
    cpu_s: float  # CPU time that a rank takes in a step
    # share of their CPU time that ranks need at the same moment: 1 if all of it, as after an
    # exchange, which releases them together
    together: float

    def step_s(self, alone_s: float, ranks: int, factor: float) -> float:
        """Return the seconds of a step, of ``alone_s`` if each rank of a node had its own CPU."""
        if ranks <= self.measured or not self.cpus:
            return alone_s
        waiting = max(0, ranks - max(self.measured, self.cpus)) / self.cpus
        needed_s = self.cpu_s * factor
        return max(alone_s + self.together * waiting * needed_s, needed_s * ranks / self.cpus)


# Seconds of a message without bytes, where nothing determines it: NVLink to TCP between threads.
LATENCY_RANGE_S = (5e-6, 5e-4)
# Of an Ethernet link's rate, what its headers leave to data with frames of 1500 bytes.
PAYLOAD_SHARE = 1448 / 1538
# What the formulas leave out, as a standard deviation of the logarithm of all communication:
# forecasts for 3 to 8 ranks differed by up to 5 % from what was measured (benchmarks/forecast.py).
MODEL_ERROR = 0.05
_LEAST_TIME_SHARE = 1e-6  # that the bandwidth takes of an exchange; less makes no difference
_LEAST_LATENCY_SHARE = 1e-4  # of an exchange; less makes no difference
_LATENCY_BISECTIONS = 12
_LEAST_EXCHANGE_S = 1e-7  # the search works on logarithms


@dataclass(frozen=True)
class WorldMeans:
    """Mean times of a world's steps, in seconds."""

    ranks: int
    step_s: float
    own_s: float
    exchange_s: float
    backward_s: float


class Fitter:
    """Fits models to a bench: one estimate, and one for each draw of the bootstrap."""

    def __init__(self, bench: Bench, ranks_per_node: int | None) -> None:
        self._bench = bench
        self._measured_per_node = measured_per_node(bench)
        self._per_node = ranks_per_node or self._measured_per_node
        self._spread = spread([[step.own_s for step in steps] for steps in bench.largest.rounds])
        self._block_means = {
            ranks: [_means_of(world.ranks, block) for block in world.blocks]
            for ranks, world in bench.worlds.items()
        }

    def fit(self, draw: Draw) -> Model:
        """Return the model of one draw."""
        bench = self._bench
        means = {ranks: self._drawn_means(ranks, draw) for ranks in bench.worlds}
        largest = means[bench.largest.ranks]
        exchange = self._exchange(largest, draw)
        single = means.get(1)
        return Model(
            work=self._work(largest.own_s, draw),
            backward_s=largest.backward_s,
            exchange=exchange,
            network=self._network(means, exchange, draw),
            samples_per_rank=(bench.largest.samples_per_step or largest.ranks) / largest.ranks,
            fixed_s=_fixed_s(bench, means) if bench.scaling == "strong" else None,
            global_batch=bench.largest.samples_per_step,
            single_step_s=single.step_s if single else None,
            single_samples=bench.worlds[1].samples_per_step or 1.0 if single else 0.0,
            steady_share=draw.within(0.0, 1.0),
            shared_cpus=SharedCpus(
                bench.cpus, self._measured_per_node, bench.largest.cpu_s, draw.within(0.0, 1.0)
            ),
        )

    def _drawn_means(self, ranks: int, draw: Draw) -> WorldMeans:
        blocks = self._block_means[ranks]
        drawn = [blocks[number] for number in draw.blocks(len(blocks))]
        return WorldMeans(
            ranks,
            step_s=statistics.fmean(block.step_s for block in drawn),
            own_s=statistics.fmean(block.own_s for block in drawn),
            exchange_s=statistics.fmean(block.exchange_s for block in drawn),
            backward_s=statistics.fmean(block.backward_s for block in drawn),
        )

    def _work(self, mean_s: float, draw: Draw) -> OwnWork:
        shared = draw.about(self._spread.shared, self._spread.shared_error)
        deviations_s = draw.deviations(self._spread.deviations_s(shared))
        # Between a tail that ends with the sample and one that is twice as heavy as in it.
        return OwnWork(mean_s, Differences(deviations_s, tail_factor=draw.within(0.0, 2.0)))

    def _exchange(self, largest: WorldMeans, draw: Draw) -> Exchange:
        bench = self._bench
        if bench.bucket_bytes:
            return Exchange(bench.bucket_bytes)
        if bench.gradient_bytes:
            return Exchange(collectives.default_buckets(bench.gradient_bytes))
        return Exchange((1.0,), hidden_s=draw.within(0.0, largest.backward_s))

    def _network(self, means: dict[int, WorldMeans], exchange: Exchange, draw: Draw) -> Network:
        """Fit the links to the worlds on one node, and to those on several."""
        bench = self._bench
        has_trees = bench.backend == "nccl"
        largest_node = max((*bench.worlds, *(network.ranks for network in bench.networks)))

        def with_inside(link: MeasuredLink) -> Network:
            return Network(link, link, largest_node, has_trees)

        inside = self._link(with_inside, means, exchange, draw, on_one_node=True)

        def with_between(link: MeasuredLink) -> Network:
            return Network(inside or link, link, self._measured_per_node, has_trees)

        between = self._link(with_between, means, exchange, draw, on_one_node=False)
        inside = inside or between
        between = between or inside
        assert inside is not None and between is not None  # checked before a fit
        error = math.exp(draw.about(0.0, MODEL_ERROR))
        return Network(inside.slowed(error), between.slowed(error), self._per_node, has_trees)

    def _link(
        self,
        network_with: Callable[[MeasuredLink], Network],
        means: dict[int, WorldMeans],
        exchange: Exchange,
        draw: Draw,
        *,
        on_one_node: bool,
    ) -> MeasuredLink | None:
        """Fit a link to what was measured on one node, or on several; None if nothing was."""
        bench = self._bench
        worlds = [
            means[ranks]
            for ranks, world in bench.worlds.items()
            if ranks > 1 and (world.num_nodes == 1) == on_one_node
        ]

        def exposed_s(link: MeasuredLink, world: WorldMeans) -> float:
            return exchange.exposed_s(network_with(link), world.ranks, world.backward_s)

        measured = None
        networks = [n for n in bench.networks if (n.num_nodes == 1) == on_one_node]
        if networks and exchange.hidden_s is None:
            network = networks[-1]
            link, error = collectives.fit_link(network.points, network.ranks)
            # A small message waits for a busy CPU much longer than for the network, and noise only
            # adds to a time. In training the CPU is awake when gradients come.
            least, _ = collectives.fit_link(network.least, network.ranks)
            measured = MeasuredLink(min(least.latency_s, link.latency_s), link.bytes_per_s)
            measured = measured.slowed(
                math.exp(draw.about(0.0, error / len(network.points) ** 0.5))
            )
        if not worlds:
            return measured
        return _fitted(worlds, exposed_s, draw, sum(exchange.buckets), measured)


_Exposed = Callable[[MeasuredLink, WorldMeans], float]


def _fitted(
    worlds: Sequence[WorldMeans],
    exposed_s: _Exposed,
    draw: Draw,
    num_bytes: float,
    measured: MeasuredLink | None,
) -> MeasuredLink:
    """Fit latency and bandwidth to the exchanges.

    Latency grows with the number of ranks, and what the bandwidth takes hardly does. So the latency
    follows from the largest world, once the bandwidth fits all of them together. A single exchange
    does not determine both: the latency is then that of the measured link, or without one drawn
    from its plausible range.
    """
    most_s = min(world.exchange_s / (2 * (world.ranks - 1)) for world in worlds)
    if len(worlds) == 1 and measured is not None:
        latency_s = min(measured.latency_s, most_s * (1 - _LEAST_TIME_SHARE))
        return _with_latency(latency_s, worlds, exposed_s, num_bytes)
    if len(worlds) == 1:
        low_s, high_s = LATENCY_RANGE_S
        latency_s = min(draw.within_log(low_s, high_s), most_s / 2)
        return _with_latency(latency_s, worlds, exposed_s, num_bytes)
    largest = worlds[-1]

    def excess_s(latency_s: float) -> float:
        link = _with_latency(latency_s, worlds, exposed_s, num_bytes)
        return exposed_s(link, largest) - largest.exchange_s

    latency_s = _root(excess_s, most_s * _LEAST_LATENCY_SHARE, most_s, _LATENCY_BISECTIONS)
    return _with_latency(latency_s, worlds, exposed_s, num_bytes)


def _with_latency(
    latency_s: float, worlds: Sequence[WorldMeans], exposed_s: _Exposed, num_bytes: float
) -> MeasuredLink:
    """Return the link of this latency on which the worlds together exchange as long as measured."""
    measured_s = sum(world.exchange_s for world in worlds)
    # All of an exchange takes at most what is exposed of it, and backward.
    most_s = max(world.exchange_s + world.backward_s for world in worlds)

    def excess_s(s_per_byte: float) -> float:
        link = MeasuredLink(latency_s, 1 / s_per_byte)
        return sum(exposed_s(link, world) for world in worlds) - measured_s

    highest = 1.01 * most_s / num_bytes
    return MeasuredLink(latency_s, 1 / _root(excess_s, highest * _LEAST_TIME_SHARE, highest))


def _root(
    function: Callable[[float], float], low: float, high: float, bisections: int = 18
) -> float:
    """Return where an increasing function is zero, by bisection of the logarithm."""
    for _ in range(bisections):
        middle = math.sqrt(low * high)
        if function(middle) > 0:
            high = middle
        else:
            low = middle
    return math.sqrt(low * high)


def measured_per_node(bench: Bench) -> int:
    """Return the most ranks that were measured on one node."""
    sizes = [(world.ranks, world.num_nodes) for world in bench.worlds.values()]
    sizes += [(network.ranks, network.num_nodes) for network in bench.networks]
    return max(-(-ranks // num_nodes) for ranks, num_nodes in sizes)


def _means_of(ranks: int, steps: Sequence[TimedStep]) -> WorldMeans:
    return WorldMeans(
        ranks,
        step_s=statistics.fmean(step.seconds for step in steps),
        own_s=statistics.fmean(own_s for step in steps for own_s in step.own_s),
        exchange_s=max(_LEAST_EXCHANGE_S, statistics.fmean(step.exchange_s for step in steps)),
        backward_s=statistics.fmean(step.backward_s for step in steps),
    )


def _fixed_s(bench: Bench, means: dict[int, WorldMeans]) -> float:
    """Return the own work of an empty batch: a straight line through own work by rows per rank.

    Negative values of a noisy fit are taken as 0.
    """
    rows = [bench.worlds[ranks].samples_per_step / ranks for ranks in means]
    own_s = [world.own_s for world in means.values()]
    line = statistics.linear_regression(rows, own_s)
    return min(max(line.intercept, 0.0), *own_s)


# How long ranks work before they meet in the exchange, and how long the slowest of N does


# N draws from a sample would never exceed its maximum, however large N is. So the distribution is
# continued exponentially from the largest few values on, with the mean excess of this share.
_TAIL_SHARE = 0.1
_CONTINUED = 5
_NODES = [(number + 0.5) / 64 for number in range(64)]


@dataclass(frozen=True)
class OwnWork:
    """The distribution of a rank's own work in a step: everything before the exchange."""

    mean_s: float  # mean over ranks and steps, in seconds
    differences: Differences  # what differs between ranks

    def longest_s(self, world: int) -> float:
        """Return the mean time of the slowest of ``world`` ranks."""
        return self.mean_s + self.differences.excess_s(world)


class Differences:
    """The distribution of what differs between ranks in a step."""

    def __init__(
        self,
        deviations_s: Sequence[float],  # from the mean, in any order
        # by how much the upper tail is stretched: 1 as in the sample, 0 to end with it
        tail_factor: float,
    ) -> None:
        self._ordered = sorted(deviations_s)
        self._tail_begin_s = self._tail_s = 0.0
        if len(self._ordered) >= 2 * _CONTINUED:
            self._tail_begin_s = self._middle(_CONTINUED)
            self._tail_s = tail_factor * self._mean_excess_s()
        self._means: dict[int, float] = {}

    def excess_s(self, world: int) -> float:
        """Return by how much the slowest of ``world`` ranks takes longer than a rank, on average.

        The tail is exponential with the mean excess of the sample's.
        """
        return self._mean_of_maximum(world) - self._mean_of_maximum(1)

    def _middle(self, above: int) -> float:
        """Return the value that ``above`` values exceed."""
        return (self._ordered[-above - 1] + self._ordered[-above]) / 2

    def _mean_excess_s(self) -> float:
        above = max(_CONTINUED, int(len(self._ordered) * _TAIL_SHARE))
        begin_s = self._middle(above)
        return statistics.fmean(value - begin_s for value in self._ordered[-above:])

    def _mean_of_maximum(self, world: int) -> float:
        # The maximum of N draws is the quantile at u^(1/N), with u uniform in (0, 1).
        if world not in self._means:
            quantiles = [self._quantile(node ** (1 / world)) for node in _NODES]
            self._means[world] = math.fsum(quantiles) / len(_NODES)
        return self._means[world]

    def _quantile(self, share: float) -> float:
        count = len(self._ordered)
        over = (1 - share) * count
        if self._tail_s and over < _CONTINUED:
            return self._tail_begin_s + self._tail_s * math.log(_CONTINUED / over)
        place = min(max(share * count - 0.5, 0.0), count - 1.0)
        low = int(place)
        high = min(low + 1, count - 1)
        weight = place - low
        return self._ordered[low] * (1 - weight) + self._ordered[high] * weight


@dataclass(frozen=True)
class Spread:
    """How the own work of ranks varies."""

    # deviation of each rank from the mean of all ranks, over all steps
    persistent_s: tuple[float, ...]
    # what is left of each rank and step, without the rank's mean in its round
    passing_s: tuple[tuple[float, ...], ...]
    shared: float  # share of the variance of ``passing_s`` that all ranks have in common, 0 to 1
    shared_error: float  # standard error of ``shared``

    def deviations_s(self, shared: float) -> list[float]:
        """Return deviations that differ between ranks, for a share that they have in common."""
        factor = math.sqrt(1 - min(max(shared, 0.0), 1.0))
        return [
            offset + factor * value
            for step in self.passing_s
            for offset, value in zip(self.persistent_s, step, strict=True)
        ]


def spread(rounds: Sequence[Sequence[Sequence[float]]]) -> Spread:
    """Take the variation of own work apart.

    ``rounds`` are seconds by round, step and rank; two or more steps in each round.
    """
    ranks = range(len(rounds[0][0]))
    round_means = [[statistics.fmean(s[rank] for s in steps) for rank in ranks] for steps in rounds]
    rank_means = [statistics.fmean(means[rank] for means in round_means) for rank in ranks]
    mean = statistics.fmean(rank_means)
    passing = []
    for steps, means in zip(rounds, round_means, strict=True):
        # Deviations from a mean of n values are too small by this factor (Bessel's correction).
        factor = math.sqrt(len(steps) / (len(steps) - 1))
        passing += [tuple(factor * (step[rank] - means[rank]) for rank in ranks) for step in steps]
    shared = _shared(passing)
    error = (1 - shared) / math.sqrt(len(passing)) if len(ranks) > 1 else 0.0
    return Spread(tuple(value - mean for value in rank_means), tuple(passing), shared, error)


def _shared(steps: Sequence[Sequence[float]]) -> float:
    """Return the intraclass correlation of ranks within a step (Fisher 1925); 0 for one rank."""
    ranks = len(steps[0])
    variance = statistics.fmean(value * value for step in steps for value in step)
    if ranks == 1 or not variance:
        return 0.0
    of_means = statistics.fmean(statistics.fmean(step) ** 2 for step in steps)
    return max(0.0, (ranks * of_means / variance - 1) / (ranks - 1))
