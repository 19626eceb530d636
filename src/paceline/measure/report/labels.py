"""Choose the names of runs and metrics in plots: short, and different from each other. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.measure.report.facts import Run
from paceline.text.quoting import printable
from paceline.text.wording import shorten

_LONGEST = 28
_PARTS_OF_DATA = frozenset(
    {"train", "training", "val", "valid", "validation", "eval", "evaluation", "test"}
)


def of_runs(runs: Sequence[Run]) -> list[str]:
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
