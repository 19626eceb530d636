"""Decide what a plot is, in a terminal or in a browser: curves, axes with units, names. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.measure.report.facts import ReportedRun
from paceline.text.quoting import printable
from paceline.text.wording import shorten

_MOST_POINTS = 1200  # of a curve, more than a screen has columns
_LOG_RANGE = 100.0  # values that span more than this factor are shown on a logarithmic axis

Value = float | None  # None is a gap


@dataclass(frozen=True)
class Curve:
    """The values of one name."""

    name: str  # its name, for the label at its end and the legend
    x: Sequence[float]  # positions
    y: Sequence[Value]  # a value for each
    # its role in the palette: ``run-0`` and so on, ``data`` and the other parts of a step,
    # ``ideal``, ``forecast``, ``marked``
    colour: str
    # ``"line"``, ``"dashed"``, ``"dotted"``, ``"dots"``, ``"area"`` (stacked) or ``"bar"``
    form: str = "line"
    low: Sequence[float] = ()  # lower ends of the values' intervals, empty without intervals
    high: Sequence[float] = ()  # upper ends
    label: str | None = None  # text at its end; None for the name, empty for none


@dataclass(frozen=True)
class Axis:
    """An axis."""

    title: str  # what it shows, with the unit
    is_log: bool = False  # whether it is logarithmic
    format: str = ""  # format of its values in d3's notation, empty for the usual one
    ticks: Sequence[float] = ()  # the only values to mark, empty for the usual choice
    labels: Sequence[str] = ()  # texts of the ticks
    from_zero: bool = False  # whether it begins at 0


@dataclass(frozen=True)
class Plot:
    """A plot."""

    title: str  # what it shows
    subtitle: str  # how to read it, with units; empty if the axes say it
    x: Axis  # horizontal axis
    y: Axis  # vertical axis
    curves: tuple[Curve, ...]  # what is drawn


def key(text: str) -> str:
    """Return an identifier for a page: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "plot"


def spans_decades(values: Sequence[Value]) -> bool:
    """Return whether values are positive and span more than two decades."""
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    return bool(numbers) and min(numbers) > 0 and max(numbers) > _LOG_RANGE * min(numbers)


def thinned(
    x: Sequence[float], y: Sequence[float], most: int = _MOST_POINTS
) -> tuple[list[float], list[Value]]:
    """Return at most about ``most`` points that look like all of them, and gaps where y is not
    finite.

    Of each of ``most`` / 2 groups of neighbours the smallest and the largest value are kept, so no
    peak is lost.
    """
    points = list(zip(x, (value if math.isfinite(value) else None for value in y), strict=True))
    if len(points) > most:
        size = math.ceil(len(points) / (most // 2))
        groups = [points[place : place + size] for place in range(0, len(points), size)]
        points = [point for group in groups for point in _extremes(group)]
    return [point[0] for point in points], [point[1] for point in points]


def _extremes(group: Sequence[tuple[float, Value]]) -> list[tuple[float, Value]]:
    """Return the smallest and the largest value of some points and a gap, in their order."""
    values = [(value, place) for place, (_, value) in enumerate(group) if value is not None]
    gaps = [place for place, (_, value) in enumerate(group) if value is None]
    places = {*gaps[:1]}
    if values:
        places |= {min(values)[1], max(values)[1]}
    return [group[place] for place in sorted(places)]


_LONGEST = 28
_PARTS_OF_DATA = frozenset(
    {"train", "training", "val", "valid", "validation", "eval", "evaluation", "test"}
)


def of_runs(runs: Sequence[ReportedRun]) -> list[str]:
    """Return a short label for each run: the arguments in which it differs, else its name."""
    if len(runs) == 1:
        return [printable(runs[0].name)]
    options = [_options(run.command) for run in runs]
    shared = set(options[0]).intersection(*map(set, options[1:]))
    differing = [" ".join(word for word in words if word not in shared) for words in options]
    labels = [shorten(printable(text), _LONGEST) for text in differing]
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    names = [shorten(printable(run.name), _LONGEST) for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"run {place + 1}" for place in range(len(runs))]


def _options(command: Sequence[str]) -> list[str]:
    """Return the words of a command, the value of an option together with its name."""
    options: list[str] = []
    for word in command:
        # Whether an option takes a value is unknown. For labels it is enough that the command lines
        # of all runs are read alike.
        follows_option = bool(options) and options[-1].startswith("-") and " " not in options[-1]
        if follows_option and not word.startswith("-"):
            options[-1] += f" {word}"
        else:
            options.append(word)
    return options


def metric_group(name: str) -> str:
    """Return what a metric measures, without the part of the data: ``val/loss`` is ``loss``.

    Metrics of one group share a plot.
    """
    words = [word for word in re.split(r"[/_.:\s-]+", name) if word]
    others = [word for word in words if word.lower() not in _PARTS_OF_DATA]
    return " ".join(others) or name
