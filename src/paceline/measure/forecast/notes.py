"""What a forecast rests on, and what it cannot know, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.measure.forecast.bench_data import Bench
from paceline.measure.forecast.fitting import LATENCY_RANGE_S, WhatIf, measured_per_node

_CONTENTION = 0.05  # longer own work that is worth a note


def describe(
    bench: Bench,
    what_if: WhatIf,  # what is different from it
    *,
    ranks_per_node: int,
    has_bounds: bool,  # points need a link that was never measured
) -> Iterator[str]:
    """Yield the notes of a forecast."""
    yield from _of_nodes(bench, ranks_per_node, has_bounds)
    yield from _of_shared_devices(bench)
    if what_if.link_bits_per_s is not None:
        yield (
            "With --link the all-reduce is assumed to fill the link. One gloo connection rarely"
            " fills more than 10 Gbit/s."
        )
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
            " those of 1 Gbit/s Ethernet. --link 100Gbit says more, or --network with what paceline"
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
        yield (
            f"At most {most} ranks were measured on one node: what {ranks_per_node} ranks take from"
            " each other there (memory, CPUs, power) is not included."
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
        yield (
            f"A rank's own work takes {excess:.0%} longer with {largest.ranks} ranks on the node"
            f" than with {smallest.ranks}: they share something. The forecast rests on the longer"
            " time."
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
    left_out = sum(world.left_out for world in bench.worlds.values())
    if left_out:
        yield f"Steps that took far longer than most were left out: {left_out}."
    if bench.scaling == "strong":
        batch = bench.largest.samples_per_step
        yield f"The global batch of {batch:,.0f} samples stays: no more ranks than samples."
