"""For every code a page, an input that triggers it, one that looks alike and does not, and how it is printed.

A folder for each name: ``yes.*`` and ``no.*`` are told apart by who judges them, a log by ``explain``, a script by
``lint``, recorded facts by ``doctor``; a ``slurm.conf`` beside them is the cluster's. Of a log the first finding
counts, because that is the answer. ``golden.txt`` is the rendering of the finding; after a wanted change write all of
them with ``python -m pytest tests/codes --update-goldens``, and read the difference.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paceline.codes import CODES
from paceline.diagnose.catalogue import shelf
from paceline.errors import PacelineError

HERE = Path(__file__).parent
MOST_LINES = 12
REFERENCE = re.compile(
    r"https?://\S+|`[^`]+`|\w[\w.+ -]*: \S"
)  # a link, a file, or "Slurm: sbatch(1)"


def example(name, which):
    """The one file of an example, ``yes`` or ``no``."""
    found = sorted((HERE / name).glob(f"{which}.*"))
    assert len(found) == 1, f"tests/codes/{name} has {len(found)} files {which}.*"
    return found[0]


def at(name, monkeypatch):
    """Go to an example; its cluster is the one of its ``slurm.conf``, if it has one, and no other."""
    monkeypatch.chdir(HERE / name)
    monkeypatch.setenv("SLURM_CONF", str(HERE / name / "slurm.conf"))


def findings(path):
    """What is found in an example, by whoever judges its kind; the likeliest first."""
    if path.suffix == ".log":
        from paceline.diagnose import explain

        try:
            return list(explain.explain(path.name).findings)
        except PacelineError as error:  # it cannot be read
            return [error.finding]
    if path.suffix == ".json":
        from paceline.diagnose.doctor.checks.judge import judge
        from paceline.diagnose.doctor.facts import Facts

        return list(judge(Facts.from_json(json.loads(path.read_text()))))
    assert path.suffix in (".sbatch", ".sh", ".py"), f"nobody judges {path.name}"
    from paceline.diagnose import lint

    return list(lint.lint([path.name]).findings)


def named(path, name):
    """The finding of this name in an example, None if it is not what is found."""
    found = findings(path)
    meant = found[:1] if path.suffix == ".log" else found
    return next((finding for finding in meant if finding.name == name), None)


def test_no_folder_is_left_over():
    assert {
        path.name for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"
    } <= set(CODES)


def test_no_page_is_left_over():
    texts = shelf.TEXTS
    assert {path.stem for path in texts.iterdir()} <= set(CODES)


@pytest.mark.parametrize("name", CODES)
def test_every_code_has_a_page(name):
    page = shelf.page(name)
    assert page == shelf.find(page.code)
    long = [title for title, text in page.sections() if len(text.splitlines()) > MOST_LINES]
    assert long == []
    assert [reference for reference in page.references if not REFERENCE.match(reference)] == []
    own = [
        reference.removeprefix("paceline: ")
        for reference in page.references
        if reference.startswith("paceline: ")
    ]
    assert [path for path in own if not (HERE.parents[1] / path).exists()] == []


@pytest.mark.parametrize("name", CODES)
def test_every_code_is_found_in_its_example(name, request, monkeypatch):
    at(name, monkeypatch)
    path = example(name, "yes")
    finding = named(path, name)
    assert finding is not None, f"found instead: {[each.name for each in findings(path)]}"
    golden = HERE / name / "golden.txt"
    if request.config.getoption("--update-goldens"):
        golden.write_text(finding.render() + "\n", encoding="utf-8")
    assert golden.exists(), "python -m pytest tests/codes --update-goldens"
    assert finding.render() + "\n" == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CODES)
def test_no_code_is_found_in_its_counterexample(name, monkeypatch):
    at(name, monkeypatch)
    path = example(name, "no")
    assert path.suffix == example(name, "yes").suffix
    assert named(path, name) is None
