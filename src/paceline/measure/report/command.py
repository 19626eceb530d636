"""``paceline report``: write the page of one or several runs, and print the same as text.

The HTML page needs no network: styles, scripts and data are in it. plotly's JavaScript draws the
plots and is embedded once; of plotly's Python nothing else is used. Jinja2 escapes all texts of
users. The page forbids itself every connection by a content security policy.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.errors import (
    EXIT_FAILED,
    EXIT_MISUSE,
    EXIT_OK,
    Finding,
    SetupError,
    option_contradicted,
    option_invalid,
)
from paceline.measure.report import collect, drawing, metrics, overview, plots, regression, text
from paceline.measure.report.drawing import palettes
from paceline.measure.report.facts import ReportedRun
from paceline.measure.report.plots import Plot, key
from paceline.measure.report.regression import RunComparison
from paceline.measure.report.sections import Section, sections
from paceline.rundir import files, owned
from paceline.text import terminal
from paceline.text.json_text import print_json
from paceline.text.quoting import printable
from paceline.version import __version__

ONE, SEVERAL = "report.html", "comparison.html"


def report(
    names: Sequence[str],  # run folders or sweeps, or their names; without one the latest run
    *,
    # the page; None for ``report.html`` in the folder of the run, and ``comparison.html``
    # in that of the sweep, or of the first of several runs
    output: Path | None,
    as_text: bool,  # whether only the text is wanted
    as_json: bool,  # whether only data for a program are wanted
    # share by which the second of two runs may be slower (``regression.SPEED``), or its
    # loss higher (``regression.LOSS``); empty if nothing is compared
    most_grown: Mapping[str, float],
) -> int:
    """Print the report of some runs, and write its page; return the exit status.

    Raises UsageError if a page is named and not wanted, or other than two runs are to be compared,
    and SetupError if there is nothing to report, a package is missing, or the page cannot be
    written.
    """
    if output is not None and (as_text or as_json):
        option = "--text" if as_text else "--json"
        raise option_contradicted(
            f"--output names a page, which {option} does not write",
            where=option,
            fix=f"paceline report {' '.join(names)} --output {output}",
        )
    runs = collect.collect(names)
    comparisons, findings = _compared(runs, most_grown)
    status = _exit_status(findings)
    if as_json:
        compared = {"comparisons": comparisons, "findings": findings}
        written = {"runs": [to_json(run) for run in runs], **(compared if most_grown else {})}
        print_json(written)
        return status
    rendered = "\n\n".join([text.render(runs), *(finding.render() for finding in findings)])
    if as_text:
        terminal.show(rendered)
        return status
    require()
    path = output or _default_page(runs, is_one=len(names) < 2)
    # before the text, of which a reader such as head may not want all
    write(path, render(runs, text=rendered, now_s=time.time()))
    terminal.show(f"{rendered}\n\nreport: {files.display_path(path)}")
    return status


def _compared(
    runs: Sequence[ReportedRun], most_grown: Mapping[str, float]
) -> tuple[list[RunComparison], list[Finding]]:
    """Return how the second run compares with the first in what was asked for, and findings."""
    if most_grown and len(runs) != 2:
        raise option_invalid(
            f"--max-regression and --max-loss-increase compare two runs, and not {len(runs)}",
            fix="paceline report BEFORE AFTER --max-regression 5%",
        )
    compare = {
        regression.SPEED: regression.compare_speed,
        regression.LOSS: regression.compare_losses,
    }
    names = plots.of_runs(runs)
    comparisons = [compare[name](*runs) for name in most_grown]
    findings = [
        regression.judge(comparison, most_grown[comparison.name], runs=(names[0], names[1]))
        for comparison in comparisons
    ]
    return comparisons, [finding for finding in findings if finding is not None]


def _exit_status(findings: Sequence[Finding]) -> int:
    """Return 1 if something is proven to be worse, 2 if something is not known, else 0."""
    if any(finding.name != regression.UNDECIDED for finding in findings):
        return EXIT_FAILED
    return EXIT_MISUSE if findings else EXIT_OK


def _default_page(
    runs: Sequence[ReportedRun],
    *,
    is_one: bool,  # whether the user has named one folder; several runs are those in it
) -> Path:
    """Return where a page is written if the user does not say it."""
    folder = Path(runs[0].folder)
    if len(runs) == 1:
        return folder / ONE
    return (folder.parent if is_one else folder) / SEVERAL


def write(path: Path, html: str) -> None:
    """Write a page.

    Raises SetupError if the folder does not exist or cannot be written.
    """
    try:
        owned.write_whole(path, html)
    except OSError as error:
        raise SetupError.of(
            "folder-not-writable",
            f"{path} cannot be written: {error.strerror or error}",
            fix="paceline report RUN --output FILE, in a folder of your own",
        ) from None


def to_json(run: ReportedRun) -> dict[str, Any]:
    """Return what ``--json`` prints of a run. Pure; a number that is not finite is left out."""
    rows = run.scaling
    split = run.split
    return {
        "name": run.name,
        "folder": run.folder,
        "command": list(run.command),
        "state": run.state,
        "world_size": run.world_size,
        "hosts": list(run.hosts),
        "seconds": run.seconds,
        "steps": run.steps,
        "figures": overview.figures(run),
        "metrics": {
            name: {"step": series.steps[-1], "last": last}
            for name, series in run.metrics.items()
            if (last := metrics.last_finite(series)) is not None
        },
        "step": split and {"seconds": split.seconds, "parts": dict(split.parts)},
        "late_rank": split.late_rank if split else "",
        "mean_step_s": split.mean_s if split else 0.0,
        "remarks": list(split.remarks) if split else [],
        "scaling": [
            {
                "world": row.ranks,
                "samples_per_s": row.samples_per_s.value,
                "low": row.samples_per_s.low,
                "high": row.samples_per_s.high,
                "efficiency": row.efficiency.value,
            }
            for row in rows
        ],
        "findings": list(run.findings),
        "environment": dict(run.environment),
        "notes": list(run.notes),
    }


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


def render(
    runs: Sequence[ReportedRun],  # the runs, at least one
    *,
    text: str,  # the report as text, for browsers without JavaScript
    now_s: float,  # the time, in seconds since the epoch
) -> str:
    """Return the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    drawn = sections(runs)
    # Strict: a name that a template misspells would leave a hole in the page.
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


def _head(runs: Sequence[ReportedRun]) -> dict[str, Any]:
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


def notes(runs: Sequence[ReportedRun]) -> list[str]:
    """Return what is missing, with the name of its run if there are several."""
    if len(runs) == 1:
        return list(runs[0].notes)
    return [f"{run.name}: {note}" for run in runs for note in run.notes]


def facts(run: ReportedRun) -> dict[str, str]:
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
