"""Render a report as one HTML page that needs no network: styles, scripts and data are in it.

plotly's JavaScript draws the plots and is embedded once; of plotly's Python nothing else is used.
Jinja2 escapes all texts of users. The page forbids itself every connection by a content security
policy.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.errors import SetupError
from paceline.measure.report import drawing, overview, plots
from paceline.measure.report.drawing import palettes
from paceline.measure.report.facts import Run
from paceline.measure.report.plots import Plot, key
from paceline.measure.report.sections import Section, sections
from paceline.text.quoting import printable

_ASSETS = Path(__file__).parent / "assets"
_NEEDED = ("jinja2", "plotly")


def require() -> None:
    """Check that the packages of the extra ``[report]`` are installed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError.of(
            "module-not-found",
            f"an HTML report needs {' and '.join(missing)}, which is not installed",
            evidence=("paceline report --text prints the report without it",),
            fix='pip install "paceline[report]"',
        )


def render(runs: Sequence[Run], *, text: str, now_s: float) -> str:
    """Return the page.

    Args:
        runs: The runs, at least one.
        text: The report as text, for browsers without JavaScript.
        now_s: The time, in seconds since the epoch.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    drawn = sections(runs)
    environment = Environment(
        loader=FileSystemLoader(_ASSETS), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html").render(
        **_head(runs),
        sections=[_section(section) for section in drawn],
        findings=[finding for run in runs for finding in run.findings],
        notes=notes(runs),
        environments=[{"name": run.name, "facts": facts(run)} for run in runs],
        text=text,
        footer=f"paceline {__version__}, {time.strftime('%Y-%m-%d %H:%M', time.localtime(now_s))}",
        figures={
            _plot_key(section, place): drawing.figure(plot)
            for section in drawn
            for place, plot in enumerate(section.plots)
        },
        palettes=palettes(),
        style=Markup((_ASSETS / "page.css").read_text(encoding="utf-8")),
        script=Markup((_ASSETS / "page.js").read_text(encoding="utf-8")),
        plotly=Markup(get_plotlyjs()),
    )


def _head(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the title, and the figures: tiles of one run, or a table of several."""
    names = plots.of_runs(runs)
    if len(runs) == 1:
        run = runs[0]
        title = printable(" ".join(run.command)) or run.name
        return {
            "title": title,
            "subtitle": run.folder,
            "tiles": overview.figures(run),
            "table": None,
        }
    figures = [overview.figures(run) for run in runs]
    columns = list(dict.fromkeys(name for values in figures for name in values))
    rows = [
        {
            "name": name,
            "colour": drawing.colour(f"run-{place}"),
            "cells": [values.get(column, "–") for column in columns],
        }
        for place, (name, values) in enumerate(zip(names, figures, strict=True))
    ]
    scripts = dict.fromkeys(printable(run.command[0]) for run in runs if run.command)
    return {
        "title": f"{len(runs)} runs" + (f" of {', '.join(scripts)}" if scripts else ""),
        "subtitle": ", ".join(run.name for run in runs),
        "tiles": {},
        "table": {"columns": columns, "rows": rows},
    }


def notes(runs: Sequence[Run]) -> list[str]:
    """Return what is missing, with the name of its run if there are several."""
    if len(runs) == 1:
        return list(runs[0].notes)
    return [f"{run.name}: {note}" for run in runs for note in run.notes]


def facts(run: Run) -> dict[str, str]:
    """Return the environment of a run, text by name."""
    values = {
        "command": printable(" ".join(run.command)),
        "run folder": run.folder,
        "hosts": ", ".join(map(printable, run.hosts)),
        "starts": str(len(run.attempts)) if run.attempts else "",
        **run.environment,
    }
    return {name: value for name, value in values.items() if value}


def _section(section: Section) -> dict[str, Any]:
    return {
        "key": key(section.title),
        "title": section.title,
        "sentences": section.sentences,
        "is_wide": _is_wide(section),
        "plots": [
            _plot(plot, _plot_key(section, place)) for place, plot in enumerate(section.plots)
        ],
    }


def _is_wide(section: Section) -> bool:
    """Return whether a section has one plot that gains by the whole width: not a few bars."""
    curves = [curve for plot in section.plots for curve in plot.curves]
    return len(section.plots) == 1 and all(curve.form != "bar" for curve in curves)


def _plot_key(section: Section, place: int) -> str:
    return f"plot-{key(section.title)}-{place}"


def _plot(plot: Plot, identifier: str) -> dict[str, Any]:
    return {
        "key": identifier,
        "title": plot.title,
        "subtitle": plot.subtitle,
        "unit": "" if plot.y.title == plot.title else plot.y.title,
        "has_labels": bool(drawing.figure(plot)["layout"]["annotations"]),
        "legend": [
            {"name": curve.name, "colour": drawing.colour(curve.colour), "form": curve.form}
            for curve in plot.curves
        ],
    }
