"""Find the run folder that a user names, or the latest one."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import Finding, SetupError
from paceline.rundir import files
from paceline.rundir.files import RunDir


def named(run: str, *, advice: Finding) -> RunDir:
    """Return the folder of a run.

    Args:
        run: A run folder, or the name of one below ``paceline-runs``.
        advice: The finding to raise; its ``what`` is replaced.

    Raises:
        SetupError: The folder does not exist.
    """
    places = [Path(run), *(folder / run for folder in files.run_folders())]
    for place in places:
        if place.is_dir():
            return RunDir(place)
    raise SetupError(_about(advice, f"there is no run folder {run}"))


def latest(file: str, *, advice: Finding) -> RunDir:
    """Return the run in ``paceline-runs`` in which a file was written last.

    Args:
        file: Name of the file in a run folder.
        advice: The finding to raise; its ``what`` says that no run has the file.

    Raises:
        SetupError: No run has such a file.
    """
    written = [
        (path.stat().st_mtime, path.parent)
        for folder in files.run_folders()
        for path in folder.glob(f"*/{file}")
    ]
    if not written:
        raise SetupError(advice)
    return RunDir(max(written)[1])


def _about(finding: Finding, what: str) -> Finding:
    return Finding(finding.name, what, evidence=finding.evidence, fix=finding.fix)
