"""Convert a report of ``paceline lint`` to SARIF 2.1.0, the format of code scanning.

Findings become results, with their pages as rules. A file that was not judged is a notification:
code scanning accepts no result without a line.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from paceline.diagnose import catalogue
from paceline.diagnose.lint.ignore import line_of
from paceline.diagnose.lint.report import CheckedFile, LintReport
from paceline.errors import Finding
from paceline.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"error": "error", "warning": "warning", "hint": "note"}
# What the server of GitHub calls the severity of a rule that is not about security.
_PROBLEM_SEVERITIES = {"error": "error", "warning": "warning", "hint": "recommendation"}
_NOT_JUDGED = "input-unreadable"
# A viewer shows this as a link. In code it is an index and a call: layers[0](x).
_LINK = re.compile(r"\[([^\[\]]*)\]\(")


def to_sarif(report: LintReport, folder: str) -> dict[str, Any]:
    """Return a report as a SARIF log.

    Fingerprints are left out: the action that uploads a log makes them from the files. ``folder``
    is where lint was started. Paths inside it are relative, as code scanning needs them: it is the
    root of the repository there.
    """
    placed = [(file, finding) for file in report.files for finding in file.sorted_findings]
    judged = [pair for pair in placed if pair[1].name != _NOT_JUDGED]
    names = list(dict.fromkeys(finding.name for _, finding in judged))
    readable = not any(file.unreadable for file in report.files)
    notifications = [
        _notification(file, finding, folder)
        for file, finding in placed
        if finding.name == _NOT_JUDGED
    ]
    driver = {
        "name": "paceline",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(name, _gravest(name, judged)) for name in names],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [
            {
                "executionSuccessful": readable,
                "exitCode": report.exit_status,
                "toolExecutionNotifications": notifications,
            }
        ],
        "columnKind": "unicodeCodePoints",
        "results": [_result(file, finding, names, folder) for file, finding in judged],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _gravest(name: str, placed: Iterable[tuple[CheckedFile, Finding]]) -> str:
    severities = {finding.severity for _, finding in placed if finding.name == name}
    return next(severity for severity in LEVELS if severity in severities)


def _rule(name: str, severity: str) -> dict[str, Any]:
    """Return the description of a finding; it has no ``helpUri``, the page is in it as a whole."""
    page = catalogue.find(name)
    if page is None:
        raise KeyError(name)
    what = " ".join(page.what.split())
    return {
        "id": page.code,
        "name": name,
        "shortDescription": {"text": name.replace("-", " ")},
        "fullDescription": {"text": _plain(what)},
        "help": {"text": page.render(), "markdown": page.markdown()},
        "defaultConfiguration": {"level": LEVELS[severity]},
        "properties": {
            "tags": ["distributed-training"],
            "problem.severity": _PROBLEM_SEVERITIES[severity],
        },
    }


def _result(
    file: CheckedFile, finding: Finding, names: Sequence[str], folder: str
) -> dict[str, Any]:
    return {
        "ruleId": finding.code,
        "ruleIndex": names.index(finding.name),
        "level": LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_location(file, finding, folder)],
    }


def _notification(file: CheckedFile, finding: Finding, folder: str) -> dict[str, Any]:
    return {
        "level": LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [_location(file, finding, folder)],
    }


def _message(finding: Finding) -> str:
    why = f"Why: {finding.why}" if finding.why else ""
    return _plain("\n".join(filter(None, (finding.what, why, finding.advice, finding.more))))


def _plain(text: str) -> str:
    """Keep a viewer from taking an index and a call for a link.

    Braces are left single. The standard asks for double ones, for the sake of placeholders such as
    ``{0}``, but a message without arguments has none, and viewers that read it literally would show
    another shell variable than the script has.
    """
    return _LINK.sub(r"\\[\1\\](", text)


def _location(file: CheckedFile, finding: Finding, folder: str) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri_of(file.name, folder)},
            "region": {"startLine": max(1, line_of(finding))},
        }
    }


def uri_of(name: str, folder: str) -> str:
    """Return the path of a file as a URI: relative inside the folder (absolute), else absolute."""
    if name == "-":
        return "stdin"
    path = os.path.normpath(os.path.join(folder, name))
    relative = os.path.relpath(path, folder)
    if relative.startswith(".."):
        return Path(path).as_uri()
    return quote(relative)
