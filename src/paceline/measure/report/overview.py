"""Decide what a report says of a run in words: its figures, and a sentence for each plot. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from paceline.launch.monitor import step_parts
from paceline.measure.report import metrics, speed
from paceline.measure.report.facts import ReportedRun, Scaling, StepSplit
from paceline.text.quoting import printable
from paceline.text.wording import count, few, size

_FEW = 4  # intervals of a run
# The first of these that a run logged is its loss; see also slurm.jobs.run_rows.
_LOSSES = ("loss", "train/loss", "train_loss", "loss/train")
_LEAST_SHARE = 0.005  # of a step; smaller parts are not mentioned


def figures(run: ReportedRun) -> dict[str, str]:
    """Return the most important figures of a run, text by name; only what is known."""
    values = {
        "state": run.state if run.attempts else "",
        "ranks": _ranks(run),
        "steps": "" if run.steps is None else f"{run.steps:,}",
        "running time": time_text(run.seconds) if run.seconds >= 1 else "",
        "step": milliseconds(run.split.seconds) if run.split else "",
        "throughput": _throughput(run),
        "loss": _loss(run),
        **_bench_figures(run),
    }
    return {name: value for name, value in values.items() if value}


def _bench_figures(run: ReportedRun) -> dict[str, str]:
    rows = run.scaling
    if not rows:
        return {}
    last = rows[-1]
    return {
        "measured with": _sizes([f"{row.ranks:,}" for row in rows]),
        "throughput": f"{significant(last.samples_per_s.value)} samples/s",
        "efficiency": f"{last.efficiency.value:.0%} with {last.ranks:,}" if len(rows) > 1 else "",
    }


def _sizes(sizes: Sequence[str]) -> str:
    """Return ``1 rank``, ``1, 2 and 4 ranks``, or the first six with the number of the others."""
    if len(sizes) == 1:
        return "1 rank" if sizes[0] == "1" else f"{sizes[0]} ranks"
    listed = few(sizes, 6) if len(sizes) > 6 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    return f"{listed} ranks"


def _ranks(run: ReportedRun) -> str:
    if not run.world_size:
        return ""
    if len(run.hosts) > 1:
        return f"{run.world_size:,} on {len(run.hosts):,} hosts"
    return f"{run.world_size:,}"


def _throughput(run: ReportedRun) -> str:
    """Return the median throughput, so that an evaluation or a pause does not count.

    Of few intervals the first, with the start in it, would weigh much: then it is the last one that
    the launcher measured from step to step.
    """
    rates = speed.rates(run.attempts, run.speed)
    if not rates:
        return ""
    if len(rates) < _FEW and run.speed[-1].steps_per_s:
        steps_per_s = run.speed[-1].steps_per_s
        samples_per_s = steps_per_s * run.speed[-1].samples_per_step
    else:
        steps_per_s = statistics.median(rate.steps_per_s for rate in rates)
        samples_per_s = statistics.median(rate.samples_per_s for rate in rates)
    if samples_per_s > 0:
        return f"{significant(samples_per_s)} samples/s"
    return f"{significant(steps_per_s)} steps/s"


def _loss(run: ReportedRun) -> str:
    """Return the last finite loss that was logged.

    What the probe saw is of one batch of one rank, so that two equal runs would differ in it.
    """
    names = [name for name in _LOSSES if name in run.metrics]
    names += [name for name in run.metrics if name.endswith("loss") and "val" not in name]
    value = metrics.last_finite(run.metrics[names[0]]) if names else None
    return "" if value is None else f"{value:.4g}"


def time_text(seconds: float) -> str:
    """Return a time in two units: ``46 s``, ``12 min 05 s``, ``3 h 20 min``, ``2 d 04 h``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour:02d} h"
    if hours:
        return f"{hours} h {minute:02d} min"
    return f"{minutes} min {second:02d} s"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with three digits."""
    return f"{significant(seconds * 1000)} ms"


def significant(value: float) -> str:
    """Return a number with three significant digits, and all those before the decimal point."""
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:#.3g}"


def step_sentences(split: StepSplit | None) -> list[str]:
    """Return where the time of a step goes, and which rank is late."""
    if split is None:
        return []
    shares = {part: seconds / split.seconds for part, seconds in split.parts.items()}
    ordered = sorted(shares, key=lambda part: shares[part], reverse=True)
    words = [f"{part} {shares[part]:.0%}" for part in ordered if shares[part] >= _LEAST_SHARE]
    sentence = f"A step takes {milliseconds(split.seconds)}: {', '.join(words)}."
    if split.mean_s > step_parts.LONGER * split.seconds:
        sentence += f" The mean of all steps is {milliseconds(split.mean_s)}."
    return [sentence, *(f"{remark[0].upper()}{remark[1:]}." for remark in split.sentences)]


def rank_sentences(run: ReportedRun) -> list[str]:
    """Return which rank works longest, compared with the median of all."""
    if len(run.ranks) < 2:
        return []
    slowest = max(run.ranks, key=lambda rank: rank.own_s)
    # The mean would contain the slow rank itself, which among few is much of it.
    median_s = statistics.median(rank.own_s for rank in run.ranks)
    if median_s <= 0:
        return []
    return [
        f"Rank {slowest.rank} on {printable(slowest.host)} works longest, "
        f"{milliseconds(slowest.own_s)} a step; the median is {milliseconds(median_s)}."
    ]


def scaling_sentences(run: ReportedRun) -> list[str]:
    """Return the speed-up of the largest world, and from where on more ranks bring little."""
    sentences = []
    rows = run.scaling
    if len(rows) > 1:
        sentences.append(_speed_up(rows))
    if run.bench is not None:
        sentences.append(
            f"{run.bench.scaling.capitalize()} scaling on {printable(run.bench.backend)};"
            f" {run.bench.warmup_steps} warm-up steps of each round are left out."
        )
    if run.forecast is not None:
        if run.forecast.half_worth_at is not None:
            at = run.forecast.half_worth_at
            sentences.append(f"From {at:,} ranks on, another one brings less than half of itself.")
        sentences += [printable(note) for note in run.forecast.notes]
    return sentences


def _speed_up(rows: Sequence[Scaling]) -> str:
    base, largest = rows[0], rows[-1]
    growth = largest.ranks / base.ranks
    efficiency = largest.efficiency
    of_base = count(base.ranks, "rank")
    speed_up = f"{largest.ranks} ranks are {efficiency.value * growth:.2f}x as fast as {of_base}"
    if efficiency.low != efficiency.high:  # equal ends are those of a single window of steps
        speed_up += f" ({efficiency.low * growth:.2f} to {efficiency.high * growth:.2f})"
    return f"{speed_up}: {efficiency.value:.0%} of ideal."


def network_sentences(run: ReportedRun) -> list[str]:
    """Return latency and best bandwidth of an all-reduce."""
    points = run.bench.network if run.bench is not None else ()
    if not points:
        return []
    best = max(points, key=lambda point: point.bus_bytes_per_s)
    return [
        f"An all-reduce of {size(points[0].size_bytes)} takes"
        f" {milliseconds(points[0].seconds)}; the best bus bandwidth is"
        f" {significant(best.bus_bytes_per_s / 1e9)} GB/s at {size(best.size_bytes)}."
    ]
