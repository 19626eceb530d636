"""Decide which plots of the network a report shows: an all-reduce by size. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.measure.report.facts import NetworkPoint, Run
from paceline.measure.report.plots import Axis, Curve, Plot

_MOST_TICKS = 6
_KIB = 1024


def plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return bandwidth and time of an all-reduce by size, of all runs that measured them."""
    measured = {
        place: run.bench.network
        for place, run in enumerate(runs)
        if run.bench is not None and run.bench.network
    }
    if not measured:
        return []
    labels = ["all-reduce"] if len(runs) == 1 else names
    axis = _size_axis(sorted({p.size_bytes for points in measured.values() for p in points}))
    return [
        Plot(
            title="Bus bandwidth of an all-reduce",
            subtitle="bytes / time x 2(N-1)/N, what a link carries each way; bars: 95 % intervals",
            x=axis,
            y=Axis("GB/s", is_log=True),
            curves=tuple(_bandwidth(labels[place], place, measured[place]) for place in measured),
        ),
        Plot(
            title="Time of an all-reduce",
            subtitle="small sizes show the latency; bars: 95 % intervals",
            x=axis,
            y=Axis("ms", is_log=True),
            curves=tuple(_time(labels[place], place, measured[place]) for place in measured),
        ),
    ]


def _bandwidth(name: str, place: int, points: Sequence[NetworkPoint]) -> Curve:
    # For one size, time and bandwidth have a constant product.
    products = [point.bus_bytes_per_s * point.seconds / 1e9 for point in points]
    return Curve(
        name,
        [point.size_bytes for point in points],
        [point.bus_bytes_per_s / 1e9 for point in points],
        f"run-{place}",
        low=[product / point.high_s for product, point in zip(products, points, strict=True)],
        high=[product / point.low_s for product, point in zip(products, points, strict=True)],
    )


def _time(name: str, place: int, points: Sequence[NetworkPoint]) -> Curve:
    return Curve(
        name,
        [point.size_bytes for point in points],
        [point.seconds * 1000 for point in points],
        f"run-{place}",
        low=[point.low_s * 1000 for point in points],
        high=[point.high_s * 1000 for point in points],
    )


def _size_axis(sizes: Sequence[int]) -> Axis:
    every = -(-len(sizes) // _MOST_TICKS)
    ticks = sizes[::every]
    return Axis("size", is_log=True, ticks=ticks, labels=[size_text(size) for size in ticks])


def size_text(size_bytes: int) -> str:
    """Return a size in a binary unit: ``256 MiB``."""
    for exponent, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= _KIB**exponent:
            return f"{size_bytes / _KIB**exponent:.3g} {unit}"
    return f"{size_bytes} B"
