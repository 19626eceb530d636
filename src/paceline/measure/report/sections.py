"""Decide what is in a report, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.measure.report import (
    labels,
    network_plots,
    overview,
    scaling_plots,
    time_plots,
    training_plots,
)
from paceline.measure.report.facts import Run
from paceline.measure.report.plots import Plot


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    title: str  # its heading
    sentences: tuple[str, ...]  # what can be read from the plots, in words
    plots: tuple[Plot, ...]  # the plots


def sections(runs: Sequence[Run]) -> list[Section]:
    """Return the sections that have a plot."""
    names = labels.of_runs(runs)
    drawn = [
        Section("Training", (), tuple(training_plots.plots(runs, names))),
        _with_sentences("Time", time_plots.plots, _time_sentences, runs, names),
        _with_sentences("Ranks", time_plots.rank_plots, overview.rank_sentences, runs, names),
        _with_sentences("Scaling", scaling_plots.plots, overview.scaling_sentences, runs, names),
        _with_sentences("Network", network_plots.plots, overview.network_sentences, runs, names),
    ]
    return [section for section in drawn if section.plots]


def _time_sentences(run: Run) -> list[str]:
    return overview.step_sentences(run.split)


def _with_sentences(
    title: str,
    plots: Callable[[Sequence[Run], Sequence[str]], list[Plot]],
    sentences_of: Callable[[Run], list[str]],
    runs: Sequence[Run],
    names: Sequence[str],
) -> Section:
    sentences: list[str] = []
    for run, name in zip(runs, names, strict=True):
        text = " ".join(sentences_of(run))
        if text:
            sentences.append(text if len(runs) == 1 else f"{name}: {text}")
    return Section(title, tuple(sentences), tuple(plots(runs, names)))
