"""``paceline report``: write the page of one or several runs, and print the same as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.errors import SetupError, option_contradicted
from paceline.measure.report import collect, metrics, overview, page, text
from paceline.measure.report.facts import Run
from paceline.rundir import files
from paceline.text import terminal

ONE, SEVERAL = "report.html", "comparison.html"


def report(names: Sequence[str], *, output: Path | None, as_text: bool, as_json: bool) -> None:
    """Print the report of some runs, and write its page.

    Args:
        names: Run folders or sweeps, or their names; without one the latest run.
        output: The page; None for ``report.html`` in the folder of the run, and
            ``comparison.html`` in that of the sweep, or of the first of several runs.
        as_text: Whether only the text is wanted.
        as_json: Whether only data for a program are wanted.

    Raises:
        UsageError: A page is wanted, and not.
        SetupError: There is nothing to report, a package is missing, or the page cannot be written.
    """
    if output is not None and (as_text or as_json):
        option = "--text" if as_text else "--json"
        raise option_contradicted(
            f"--output names a page, which {option} does not write",
            where=option,
            fix=f"paceline report {' '.join(names)} --output {output}",
        )
    runs = collect.collect(names)
    if as_json:
        import json

        print(json.dumps({"runs": [to_json(run) for run in runs]}, indent=1))
        return
    rendered = text.render(runs)
    if as_text:
        terminal.show(rendered)
        return
    page.require()
    path = output or _default_page(runs, is_one=len(names) < 2)
    # before the text, of which a reader such as head may not want all
    write(path, page.render(runs, text=rendered, now_s=time.time()))
    terminal.show(f"{rendered}\n\nreport: {files.display_path(path)}")


def _default_page(runs: Sequence[Run], *, is_one: bool) -> Path:
    """Return where a page is written if the user does not say it.

    Args:
        runs: The runs.
        is_one: Whether the user has named one folder; several runs are those in it.
    """
    folder = Path(runs[0].folder)
    if len(runs) == 1:
        return folder / ONE
    return (folder.parent if is_one else folder) / SEVERAL


def write(path: Path, html: str) -> None:
    """Write a page.

    Raises:
        SetupError: The folder does not exist or cannot be written.
    """
    try:
        files.write_whole(path, html)
    except OSError as error:
        raise SetupError.of(
            "folder-not-writable",
            f"{path} cannot be written: {error.strerror or error}",
            fix="paceline report RUN --output FILE, in a folder of your own",
        ) from None


def to_json(run: Run) -> dict[str, Any]:
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
        "findings": [finding.to_json() for finding in run.findings],
        "environment": dict(run.environment),
        "notes": list(run.notes),
    }
