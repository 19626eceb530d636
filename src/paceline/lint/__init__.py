"""Mistakes in job scripts and training scripts, found without running them."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

from paceline.errors import Finding
from paceline.lint.files import Source, is_job, is_python, not_judged, read
from paceline.lint.ignore import wanted
from paceline.lint.report import Judged, Report

__all__ = ["Report", "lint", "sbatch_option", "sbatch_options"]


def lint(files: Sequence[str]) -> Report:
    """Judge job scripts and training scripts.

    Args:
        files: Their paths, ``-`` for standard input; what each of them is shows in its name or text.

    Returns:
        The findings; a file that cannot be read is one.
    """
    once: dict[str, str] = {}
    for name in files:
        once.setdefault(os.path.normpath(name), name)
    return Report(tuple(_judged(read(name)) for name in once.values()))


def _judged(source: Source) -> Judged:
    if source.finding is not None:
        return Judged(source.name, (source.finding,), unreadable=True)
    found = _findings(source)
    if (hint := not_judged(source)) is not None:
        found.append(hint)
    return Judged(source.name, tuple(wanted(found, source.text)))


def _findings(source: Source) -> list[Finding]:
    if is_python(source):
        from paceline.lint.python import judge as judge_script

        return judge_script(source.text, source.name)
    if not is_job(source):
        return []
    from paceline.lint.job import judge as judge_job

    return judge_job(source.text, source.name)


def sbatch_option(typed: str) -> tuple[str, str]:
    """Return what sbatch understands by an option.

    Args:
        typed: Its long or short name without dashes.

    Returns:
        Its long name, empty if Slurm has none, and its kind: ``"value"``, ``"flag"`` or ``"maybe"`` (a value only
        with ``=``). Options that plugins of many sites add are of kind ``"maybe"``.
    """
    from paceline.lint.job.sbatch_options import PLUGIN_OPTIONS, SBATCH, canonical

    if name := canonical(typed):
        return name, SBATCH[name][1]
    return (typed, "maybe") if typed in PLUGIN_OPTIONS else ("", "maybe")


def sbatch_options() -> tuple[str, ...]:
    """Return the long names of sbatch's options."""
    from paceline.lint.job.sbatch_options import SBATCH

    return tuple(SBATCH)
