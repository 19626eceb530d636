"""Check a training script: parse it once, run each check, sort the findings by line."""

from __future__ import annotations

from paceline.diagnose.lint.program import Program
from paceline.diagnose.lint.python.checks import CHECKS
from paceline.diagnose.lint.python.expectations import expectations
from paceline.diagnose.lint.python.reading import read
from paceline.diagnose.lint.python.script import Script
from paceline.errors import Finding


def judge(source: str, name: str) -> list[Finding]:
    """Return the findings of a training script by line; a single one if it is not Python."""
    return examine(source, name)[0]


def examine(source: str, name: str) -> tuple[list[Finding], Program | None]:
    """Return the findings of a training script, and what the script expects of the job that starts
    it; None if the text is not a training script.
    """
    script = read(source, name)
    if isinstance(script, Finding):
        return [script], None
    if script is None:
        return [], None
    return _findings(script), expectations(script)


def _findings(script: Script) -> list[Finding]:
    findings = {
        (finding.name, finding.where): finding for check in CHECKS for finding in check(script)
    }
    return sorted(findings.values(), key=lambda finding: int(finding.where.rpartition(":")[2]))
