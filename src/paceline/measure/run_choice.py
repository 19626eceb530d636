"""Find the run folder that a user names, or the latest one."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import Finding, SetupError
from paceline.rundir import files
from paceline.rundir.files import RunDir


def named(run: str, *, advice: Finding) -> RunDir:
    """Return the folder of a run: a run folder, or the name of one below ``paceline-runs``.

    Raises ``advice``, with another ``what``, if the folder does not exist.
    """
    places = [Path(run), *(folder / run for folder in files.run_folders())]
    for place in places:
        if place.is_dir():
            return RunDir(place)
    raise SetupError(_about(advice, f"there is no run folder {run}"))


def latest(*names: str, advice: Finding) -> RunDir:
    """Return the run in ``paceline-runs`` in which one of some files was written last.

    Names may be patterns of ``glob``. Raises ``advice`` with another ``what`` if no run has one
    of them.
    """
    written = [
        (path.stat().st_mtime, folder / path.relative_to(folder).parts[0])
        for folder in files.run_folders()
        for name in names
        for path in folder.glob(f"*/{name}")
    ]
    if not written:
        raise SetupError(advice)
    return RunDir(max(written)[1])


def _about(finding: Finding, what: str) -> Finding:
    return Finding(finding.name, what, evidence=finding.evidence, fix=finding.fix)
