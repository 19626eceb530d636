"""How long an all-reduce takes, and how much of it backward hides. Pure; standard library only.

A message of n bytes takes a + n/B on a link with latency a and bandwidth B (Hockney, Parallel
Computing 20(3), 1994). A ring over N ranks sends 2(N-1) messages of n/N bytes one after the other
(Patarasuk and Yuan, J. Parallel Distrib. Comput. 69(2), 2009)::

    ring = 2(N-1) a + 2(N-1)/N n / B

gloo's all-reduce is such a ring over all ranks: with torch 2.13, 2 to 8 ranks and a link of 100
Mbit/s, its bus bandwidth is 11.3 to 11.8 MB/s for 1 to 16 MiB. Across nodes each of its steps waits
for the slowest link. NCCL crosses between nodes in 2(M-1) of the steps, for M nodes, and takes a
tree where that is faster (NCCL, src/graph/tuning.cc)::

    tree = 2 (G-1) a_inside + 2 log2(M) a_between + 2 n / B
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_MIB = 1 << 20
# DistributedDataParallel's buckets (torch/nn/parallel/distributed.py): the first one is small, so
# that communication begins early.
_FIRST_BUCKET, _BUCKET = _MIB, 25 * _MIB


@dataclass(frozen=True)
class MeasuredLink:
    """A link between two ranks."""

    latency_s: float  # seconds of a message without bytes
    bytes_per_s: float  # bandwidth in each direction

    def slowed(self, factor: float) -> MeasuredLink:
        """Return the link on which everything takes ``factor`` times as long."""
        return MeasuredLink(self.latency_s * factor, self.bytes_per_s / factor)


@dataclass(frozen=True)
class Network:
    """The links of a run."""

    inside: MeasuredLink  # link between ranks of one node
    between: MeasuredLink  # link between nodes, which all ranks of a node share
    ranks_per_node: int  # ranks of a full node
    has_trees: bool = False  # whether the backend chooses a tree where it is faster, as NCCL does

    def num_nodes(self, world: int) -> int:
        """Return the number of nodes of ``world`` ranks."""
        return -(-world // self.ranks_per_node)

    def all_reduce_s(self, num_bytes: float, world: int) -> float:
        """Return the seconds of an all-reduce of ``num_bytes`` over ``world`` ranks."""
        nodes = self.num_nodes(world)
        if nodes == 1:
            return _ring_s(self.inside, num_bytes, world)
        bytes_per_s = self.between.bytes_per_s
        if self.ranks_per_node > 1:
            bytes_per_s = min(bytes_per_s, self.inside.bytes_per_s)
        if not self.has_trees:
            latency_s = max(self.between.latency_s, self.inside.latency_s)
            return _ring_s(MeasuredLink(latency_s, bytes_per_s), num_bytes, world)
        steps_between = 2 * (nodes - 1)
        steps_inside = 2 * (world - 1) - steps_between
        ring_latency_s = (
            steps_between * self.between.latency_s + steps_inside * self.inside.latency_s
        )
        ring_s = ring_latency_s + 2 * (world - 1) / world * num_bytes / bytes_per_s
        tree_latency_s = 2 * (
            (self.ranks_per_node - 1) * self.inside.latency_s
            + math.log2(nodes) * self.between.latency_s
        )
        return min(ring_s, tree_latency_s + 2 * num_bytes / bytes_per_s)


def _ring_s(link: MeasuredLink, num_bytes: float, world: int) -> float:
    steps = 2 * (world - 1)
    return steps * (link.latency_s + num_bytes / world / link.bytes_per_s)


@dataclass(frozen=True)
class Exchange:
    """The gradients that a step exchanges."""

    # bytes of each all-reduce, in the order in which backward completes them. A single 1.0 if the
    # bytes are unknown; bandwidths are then in exchanges per second.
    buckets: tuple[float, ...]
    # seconds of communication that backward hides, if the bytes are unknown; None if it follows
    # from the buckets
    hidden_s: float | None = None

    def exposed_s(self, network: Network, world: int, backward_s: float) -> float:
        """Return the seconds of communication that a rank's own backward does not hide.

        A bucket is sent when backward has computed its gradients and the bucket before is sent.
        Gradients are taken to be computed at a constant rate.
        """
        if world == 1:
            return 0.0
        if self.hidden_s is not None:
            return max(0.0, network.all_reduce_s(self.buckets[0], world) - self.hidden_s)
        times_s = {size: network.all_reduce_s(size, world) for size in set(self.buckets)}
        s_per_byte, ready, end_s = backward_s / sum(self.buckets), 0.0, 0.0
        for bucket in self.buckets:
            ready += bucket
            end_s = max(end_s, s_per_byte * ready) + times_s[bucket]
        return max(0.0, end_s - backward_s)


def default_buckets(gradient_bytes: float) -> tuple[float, ...]:
    """Return the buckets of DistributedDataParallel without options, for these gradients."""
    first = min(float(_FIRST_BUCKET), gradient_bytes)
    whole, rest = divmod(gradient_bytes - first, _BUCKET)
    return (first, *[float(_BUCKET)] * int(whole), *([rest] if rest else []))


def fit_link(points: Sequence[tuple[float, float]], world: int) -> tuple[MeasuredLink, float]:
    """Fit a link to measured all-reduces: least squares of relative errors; return their RMS too.

    Relative errors, because times span five orders of magnitude and the small sizes determine the
    latency. ``points`` are bytes and seconds of each all-reduce, of two or more sizes.
    """
    rows = [(2 * (world - 1) / t, 2 * (world - 1) / world * size / t) for size, t in points]
    latency_s, s_per_byte = _least_squares(rows)
    if latency_s <= 0 or s_per_byte <= 0:  # noise: bounds from single sizes
        latency_s, s_per_byte = min(1 / x for x, _ in rows), min(1 / y for _, y in rows)
    errors = [(x * latency_s + y * s_per_byte - 1) ** 2 for x, y in rows]
    return MeasuredLink(latency_s, 1 / s_per_byte), math.sqrt(sum(errors) / len(errors))


def _least_squares(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return a and b for which a x + b y is closest to 1; zeros if that is not determined."""
    xx, xy = sum(x * x for x, _ in rows), sum(x * y for x, y in rows)
    yy = sum(y * y for _, y in rows)
    x_sum, y_sum = sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = xx * yy - xy * xy
    if not determinant:
        return 0.0, 0.0
    return (yy * x_sum - xy * y_sum) / determinant, (xx * y_sum - xy * x_sum) / determinant
