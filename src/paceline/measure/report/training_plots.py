"""Decide which curves of the training a report shows: losses and other metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline.measure.report import speed
from paceline.measure.report.facts import Run
from paceline.measure.report.plots import Axis, Curve, Plot, metric_group, spans_decades, thinned
from paceline.text.quoting import printable

# The second metric of a plot in which colours stand for runs.
_FORMS = ("line", "dashed", "dotted")
_FIRST = ("loss", "accuracy")  # these are shown before other metrics


def plots(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return a plot for each group of metrics, losses first."""
    groups: dict[str, None] = {}
    for run in runs:
        groups |= {metric_group(metric): None for metric in run.metrics}
    ordered = sorted(groups, key=_order)
    drawn = [_plot(group, runs, names) for group in ordered]
    return [*drawn, *_unlogged(runs, names)]


def _order(group: str) -> tuple[int, str]:
    for place, word in enumerate(_FIRST):
        if word in group.lower():
            return place, group
    return len(_FIRST), group


def _plot(group: str, runs: Sequence[Run], names: Sequence[str]) -> Plot:
    members = _members(group, runs)
    curves = [
        _curve(run, place, members, number, run_name=names[place] if len(runs) > 1 else "")
        for place, run in enumerate(runs)
        for number, metric in enumerate(members)
        if metric in run.metrics
    ]
    is_log = spans_decades([value for curve in curves for value in curve.y])
    title = printable(members[0] if len(members) == 1 else group)
    forms = _forms(members) if len(runs) > 1 and len(members) > 1 else ""
    return Plot(
        title=title,
        subtitle="; ".join(filter(None, (forms, _not_finite(group, runs)))),
        x=Axis("step, as it was logged"),
        y=Axis("logarithmic" if is_log else title, is_log=is_log),
        curves=tuple(curves),
    )


def _members(group: str, runs: Sequence[Run]) -> list[str]:
    """Return the metrics of a group in the order in which the runs logged them."""
    metrics = dict.fromkeys(metric for run in runs for metric in run.metrics)
    return [metric for metric in metrics if metric_group(metric) == group]


def _curve(run: Run, place: int, members: Sequence[str], number: int, *, run_name: str) -> Curve:
    """Return the curve of a metric: of one run colours stand for metrics, of several for runs."""
    metric = members[number]
    x, y = thinned(run.metrics[metric].steps, run.metrics[metric].values)
    form = "dots" if len(x) == 1 else "line"
    if not run_name:
        return Curve(printable(metric), x, y, f"run-{number}", form)
    if len(x) > 1:
        form = _FORMS[min(number, len(_FORMS) - 1)]
    name = run_name if len(members) == 1 else f"{run_name} · {printable(metric)}"
    return Curve(name, x, y, f"run-{place}", form, label="" if number else run_name)


def _forms(members: Sequence[str]) -> str:
    """Return which kind of line is which metric."""
    words = {"line": "solid", "dashed": "dashed", "dotted": "dotted"}
    forms = [_FORMS[min(number, len(_FORMS) - 1)] for number in range(len(members))]
    pairs = zip(forms, members, strict=True)
    return ", ".join(f"{words[form]}: {printable(metric)}" for form, metric in pairs)


def _not_finite(group: str, runs: Sequence[Run]) -> str:
    """Return a sentence about the first value that is not a number, empty if all are."""
    for run in runs:
        for metric in _members(group, [run]):
            series = run.metrics[metric]
            for step, value in zip(series.steps, series.values, strict=True):
                if value - value != 0:  # an infinity or NaN
                    return f"{printable(metric)} is not finite from step {step:,} on"
    return ""


def _unlogged(runs: Sequence[Run], names: Sequence[str]) -> list[Plot]:
    """Return the loss that the probe saw, of runs that have logged no numbers."""
    curves = []
    for place, run in enumerate(runs):
        losses = _probed_losses(run)
        if losses and not run.metrics:
            x, y = thinned(list(losses), list(losses.values()))
            form = "dots" if len(x) == 1 else "line"
            curves.append(Curve(names[place], x, y, f"run-{place}", form))
    if not curves:
        return []
    is_log = spans_decades([value for curve in curves for value in curve.y])
    return [
        Plot(
            title="loss of single batches",
            subtitle="what rank 0 called backward on when the speed was written",
            x=Axis("seconds of running"),
            y=Axis("logarithmic" if is_log else "loss", is_log=is_log),
            curves=tuple(curves),
        )
    ]


def _probed_losses(run: Run) -> Mapping[float, float]:
    """Return the losses that the probe saw, by seconds of running."""
    times_s = speed.elapsed(run.attempts, run.speed)
    return {
        time_s: point.loss
        for time_s, point in zip(times_s, run.speed, strict=True)
        if point.loss is not None
    }
