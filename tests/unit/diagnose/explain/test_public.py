"""Public logs, and the errors that troubleshooting pages list, get the finding that a reader would give."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.codes import CODES
from paceline.diagnose.explain import judge

HERE = Path(__file__).parent


def logs():
    """Findings, origin and text of each log."""
    _, *parts = (HERE / "public-logs.txt").read_text(encoding="utf-8").split("\n#### ")
    for part in parts:
        head, _, text = part.partition("\n")
        names, _, origin = head.partition(" | ")
        yield pytest.param(names.split(", "), text.partition("\n%% ")[0], id=origin)


def headlines():
    """Findings and text of each line."""
    for line in (HERE / "headlines.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            _, names, text = line.split(" | ", 2)
            yield pytest.param(names.split(", "), text, id=text[:60])


@pytest.mark.parametrize(("names", "text"), list(logs()))
def test_a_public_log_gets_its_finding(names, text):
    assert judge([text]).findings[0].name in names


@pytest.mark.parametrize(("names", "text"), list(headlines()))
def test_a_headline_gets_its_finding(names, text):
    assert judge([text]).findings[0].name in names


def test_labels_are_findings():
    labels = {name for case in (*logs(), *headlines()) for name in case.values[0]}
    assert labels <= CODES.keys()
    assert len(list(logs())) >= 100
    assert len(list(headlines())) >= 100
