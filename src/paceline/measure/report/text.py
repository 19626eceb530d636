"""Render a report as text for a terminal of 80 columns. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from paceline.launch.monitor import step_parts
from paceline.measure.intervals import Interval
from paceline.measure.report import overview, plots
from paceline.measure.report.facts import ReportedRun, Series
from paceline.text.quoting import printable
from paceline.text.wording import aligned, shorten, size, wrapped

_COLUMNS = 80
_BAR = 30  # columns of a whole step
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 24  # columns of a curve
_MOST_METRICS, _MOST_RANKS, _MOST_RUNS = 12, 8, 8


def render(runs: Sequence[ReportedRun]) -> str:
    """Return the report of each run, one below the other; of many runs their comparison."""
    if len(runs) > _MOST_RUNS:
        return "\n".join([*_comparison(runs), "", "each of them: paceline report RUN"])
    blocks = ["\n".join(_run(run)) for run in runs]
    if len(runs) > 1:
        blocks.insert(0, "\n".join(_comparison(runs)))
    rule = "\n\n" + "─" * _COLUMNS + "\n\n"
    return rule.join(blocks)


def _comparison(runs: Sequence[ReportedRun]) -> list[str]:
    """Return a table with a line for each run."""
    columns = ("run", "state", "steps", "step", "samples/s", "loss")
    rows = []
    for run, name in zip(runs, plots.of_runs(runs), strict=True):
        values = {"run": name, **overview.figures(run)}
        values["samples/s"] = values.get("throughput", "-").removesuffix(" samples/s")
        rows.append([values.get(column, "-") for column in columns])
    return aligned(columns, rows, right=columns[2:])


def _run(run: ReportedRun) -> list[str]:
    lines = [printable(" ".join(run.command)) or printable(run.name)]
    lines += _wrapped(_summary(run))
    parts = (
        _findings(run),
        _metrics(run),
        _step(run),
        _ranks(run),
        _scaling(run),
        _forecast(run),
        _network(run),
        _environment(run),
        [f"note: {note}" for note in run.notes],
    )
    for part in parts:
        if part:
            lines += ["", *(line for long in part for line in _wrapped(long))]
    return lines


def _wrapped(line: str) -> list[str]:
    """Break a line; words such as paths stay whole for copying."""
    indent = " " * (len(line) - len(line.lstrip()))
    return wrapped(line, _COLUMNS, rest=f"{indent}  ") or [""]


def _summary(run: ReportedRun) -> str:
    forms = {
        "step": "{} a step",
        "loss": "loss {}",
        "measured with": "measured with {}",
        "efficiency": "efficiency {}",
    }
    values = overview.figures(run)
    parts = [
        _counted(value, name) if name in ("ranks", "steps") else forms.get(name, "{}").format(value)
        for name, value in values.items()
    ]
    return " · ".join([printable(run.name), *parts])


def _counted(value: str, noun: str) -> str:
    """Return ``1 rank`` of ``1`` and ``4 ranks on 2 hosts`` of ``4 on 2 hosts``."""
    count, _, rest = value.partition(" ")
    counted = f"{count} {noun.removesuffix('s') if count == '1' else noun}"
    return f"{counted} {rest}".rstrip()


def _findings(run: ReportedRun) -> list[str]:
    return [line for finding in run.findings for line in finding.render().splitlines()]


def _metrics(run: ReportedRun) -> list[str]:
    """Return a line for each metric: first and last value, its curve, and its range."""
    if not run.metrics:
        return []
    lines = [f"{'metric':22}{'first':>10}{'last':>10}  {'curve':{_SPARKS}}{'lowest':>11}"]
    for name, series in list(run.metrics.items())[:_MOST_METRICS]:
        finite = [value for value in series.values if math.isfinite(value)]
        lowest = f"{min(finite):.4g}" if finite else "-"
        lines.append(
            f"{shorten(printable(name), 21):22}{series.values[0]:>10.4g}{series.values[-1]:>10.4g}"
            f"  {sparkline(series):{_SPARKS}}{lowest:>11}"
        )
    if len(run.metrics) > _MOST_METRICS:
        lines.append(f"and {len(run.metrics) - _MOST_METRICS} more metrics")
    return lines


def sparkline(series: Series, columns: int = _SPARKS) -> str:
    """Return the curve of a metric in one line: the means of at most ``columns`` ranges of steps.

    A range without a value is blank, and one with a value that is not finite has a ``!``. Values
    that are few and evenly spaced have no blanks between them.
    """
    first, last = series.steps[0], series.steps[-1]
    gaps = [later - earlier for earlier, later in pairwise(series.steps) if later > earlier]
    if gaps:
        columns = min(columns, (last - first) // min(gaps) + 1)
    width = max(1, last - first + 1) / columns
    ranges: list[list[float]] = [[] for _ in range(columns)]
    for step, value in zip(series.steps, series.values, strict=True):
        ranges[min(columns - 1, int((step - first) / width))].append(value)
    means = [_mean(values) for values in ranges]
    finite = [mean for mean in means if mean is not None and math.isfinite(mean)]
    if not finite:
        return ""
    return "".join(_spark(mean, min(finite), max(finite)) for mean in means).rstrip()


def _mean(values: Sequence[float]) -> float | None:
    """Return the mean: None without values, NaN if one of them is not finite."""
    if not values:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    return math.fsum(value / len(values) for value in values)  # the sum itself may be no float


def _spark(value: float | None, low: float, high: float) -> str:
    if value is None:
        return " "
    if not math.isfinite(value):
        return "!"
    size = max(abs(low), abs(high)) or 1.0  # so that the difference is a float
    share = (value / size - low / size) / (high / size - low / size) if high > low else 0.0
    return _BARS[round(share * (len(_BARS) - 1))]


def _step(run: ReportedRun) -> list[str]:
    if run.split is None:
        return []
    lines = [f"step {overview.milliseconds(run.split.seconds)}"]
    if run.split.mean_s > step_parts.LONGER * run.split.seconds:
        lines[0] += f" (mean {overview.milliseconds(run.split.mean_s)})"
    for part, seconds in run.split.parts.items():
        share = seconds / run.split.seconds
        lines.append(
            f"  {part:14}{overview.milliseconds(seconds):>10}{share:>6.0%}"
            f"  {'█' * round(share * _BAR)}".rstrip()
        )
    return [*lines, *(f"  {remark}" for remark in run.split.sentences)]


def _ranks(run: ReportedRun) -> list[str]:
    if len(run.ranks) < 2:
        return []
    rows = sorted(run.ranks, key=lambda rank: rank.own_s, reverse=True)
    lines = [f"{'rank':>6}  {'host':24}{'own work a step':>18}{'of it data':>14}"]
    for row in rows[:_MOST_RANKS]:
        lines.append(
            f"{row.rank:>6}  {shorten(printable(row.host), 23):24}"
            f"{overview.milliseconds(row.own_s):>18}{overview.milliseconds(row.data_s):>14}"
        )
    if len(rows) > _MOST_RANKS:
        lines.append(f"{'':8}and {len(rows) - _MOST_RANKS} more, which need less")
    return lines


def _scaling(run: ReportedRun) -> list[str]:
    rows = run.scaling
    if not rows:
        return []
    lines = [f"{'ranks':>6}{'step':>12}{'samples/s':>14}{'95 % interval':>24}{'efficiency':>12}"]
    for row in rows:
        lines.append(
            f"{row.ranks:>6}{overview.milliseconds(row.step_s.value):>12}"
            f"{overview.significant(row.samples_per_s.value):>14}"
            f"{_interval(row.samples_per_s):>24}{row.efficiency.value:>12.0%}"
        )
    return [*lines, *overview.scaling_sentences(run)]


def _interval(interval: Interval) -> str:
    """Return both ends; a dash for an interval of no width, as that of a single window of steps."""
    if interval.low == interval.high:
        return "-"
    return f"{overview.significant(interval.low)} to {overview.significant(interval.high)}"


def _forecast(run: ReportedRun) -> list[str]:
    if run.forecast is None:
        return []
    lines = [f"{'ranks':>6}{'forecast samples/s':>26}{'95 % interval':>24}"]
    for point in run.forecast.points:
        interval = _interval(Interval(point.samples_per_s, point.low, point.high))
        lines.append(
            f"{point.ranks:>6,}{overview.significant(point.samples_per_s):>26}{interval:>24}"
        )
    return lines if run.bench else [*lines, *overview.scaling_sentences(run)]


def _network(run: ReportedRun) -> list[str]:
    points = run.bench.network if run.bench is not None else ()
    if not points:
        return []
    lines = [f"{'size':>10}{'all-reduce':>14}{'bus bandwidth':>18}"]
    for point in points:
        rate = f"{overview.significant(point.bus_bytes_per_s / 1e9)} GB/s"
        time = overview.milliseconds(point.seconds)
        lines.append(f"{size(point.size_bytes):>10}{time:>14}{rate:>18}")
    return lines


def _environment(run: ReportedRun) -> list[str]:
    return [f"{name}: {printable(value)}" for name, value in run.environment.items()]
