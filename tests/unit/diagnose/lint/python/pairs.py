"""Tables of scripts for one check: each row is a way to make the mistake, beside the same script without it."""

from __future__ import annotations

from paceline.diagnose.lint.python.judging import judge


def found(source: str) -> set[str]:
    """The names of what is found in a script."""
    return {finding.name for finding in judge(source, "train.py")}


def severity(source: str, name: str) -> str:
    """The severity with which a name is found, or an empty string."""
    return next(
        (finding.severity for finding in judge(source, "train.py") if finding.name == name), ""
    )
