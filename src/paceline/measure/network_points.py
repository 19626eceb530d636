"""Describe measured all-reduces, and print them. Pure.

*Bus bandwidth* is defined as in nccl-tests (doc/PERFORMANCE.md): bytes divided by time, times
2(N-1)/N for an all-reduce over N ranks. It is what the slowest link carries in each direction, for
any N, and can be compared with the rate of the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.measure import intervals
from paceline.measure.intervals import Blocks
from paceline.text import wording

VERSION = 1
_RATES = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
_WIDE = 0.2  # an interval of more than this share on each side is pointed out


def describe(
    # seconds of all-reduces, a block for each round, by size in bytes
    blocks: Mapping[int, Blocks],
    *,
    backend: str,  # "nccl" or "gloo"
    hosts: Sequence[str],  # of each rank
    num_nodes: int,
) -> dict[str, Any]:
    """Return what ``bench network --json`` prints."""
    world = len(hosts)
    return {
        "version": VERSION,
        "kind": "network",
        "backend": backend,
        "world": world,
        "num_nodes": num_nodes,
        "hosts": {str(rank): host for rank, host in enumerate(hosts)},
        "points": [_point(size, times, world) for size, times in sorted(blocks.items())],
    }


def _point(size: int, times: Blocks, world: int) -> dict[str, Any]:
    seconds = intervals.median(times)
    return {
        "bytes": size,
        "seconds": seconds.value,
        "low": seconds.low,
        "high": seconds.high,
        "bus_bytes_per_s": bus_bytes_per_s(size, seconds.value, world),
        "rounds": len(times),
        "repeats": len(times[0]),
    }


def bus_bytes_per_s(size: int, seconds: float, world: int) -> float:
    """Return the bus bandwidth of an all-reduce, as nccl-tests defines it."""
    return size / seconds * 2 * (world - 1) / world


def render(result: Mapping[str, Any]) -> str:
    """Return the table of ``bench network`` of what ``describe`` returned, for 80 columns."""
    points = result["points"]
    nodes = wording.count(result["num_nodes"], "node")
    lines = [
        f"all_reduce over {result['world']} ranks on {nodes}, {result['backend']}",
        "",
        f"{'size':>10}{'time':>12}{'95 % interval':>24}{'bus bandwidth':>17}",
    ]
    lines += [_row(point) for point in points]
    best = max(points, key=lambda point: point["bus_bytes_per_s"])
    lines += [
        "",
        f"latency {duration_text(points[0]['seconds'])} ({wording.size(points[0]['bytes'])}),"
        f" highest bus bandwidth {rate_text(best['bus_bytes_per_s'])}"
        f" ({wording.size(best['bytes'])})",
        "bus bandwidth: bytes / time x 2(N-1)/N, what a link carries in each direction",
    ]
    if points[-1]["bytes"] < 256 << 20:
        lines.append("larger sizes did not fit into the time: --seconds 120 measures more")
    if any((point["high"] - point["low"]) / 2 > _WIDE * point["seconds"] for point in points):
        lines.append("wide intervals: something else used this network or these CPUs")
    return "\n".join(lines)


def _row(point: Mapping[str, Any]) -> str:
    interval = f"{duration_text(point['low'])} - {duration_text(point['high'])}"
    return (
        f"{wording.size(point['bytes']):>10}{duration_text(point['seconds']):>12}{interval:>24}"
        f"{rate_text(point['bus_bytes_per_s']):>17}"
    )


def rate_text(bytes_per_s: float) -> str:
    """Return a rate in a decimal unit, as rates of links are: ``11.6 MB/s``."""
    for unit, name in _RATES:
        if bytes_per_s >= unit:
            return f"{bytes_per_s / unit:.3g} {name}"
    return f"{bytes_per_s:.3g} B/s"


def duration_text(seconds: float) -> str:
    """Return a time with three digits: ``1.45 s``, ``21.5 ms``, ``780 us``."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"
