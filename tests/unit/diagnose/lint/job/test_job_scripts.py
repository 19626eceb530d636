"""Whole job scripts, half of them right: each says in its second line what is to be found beside hints."""

from pathlib import Path

import pytest

from paceline.diagnose.lint.job import judge
from paceline.diagnose.lint.job.judging import read

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.sbatch"))


def expected(path):
    line = path.read_text().split("\n")[1]
    names = [part.strip() for part in line.removeprefix("# expected:").split(",")]
    return sorted(name for name in names if name != "none")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_judged_as_it_says(path):
    found = judge(path.read_text(), path.name)
    assert sorted(f"{f.severity} {f.name}" for f in found if f.severity != "hint") == expected(path)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_finding_names_a_line_shows_it_and_says_what_to_do(path):
    lines = path.read_text().split("\n")
    for finding in judge(path.read_text(), path.name):
        file, _, line = finding.where.partition(":")
        assert (file, 0 < int(line.split(",")[0]) <= len(lines)) == (path.name, True)
        assert finding.evidence and finding.why and finding.fix, finding
        assert "\n" not in finding.fix


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_windows_line_ends_are_told_and_hide_nothing(path):
    text = path.read_text()
    told = ["dos-line-ends"] if read(text, "x").job.directives.any else []
    names = sorted([*told, *(finding.name for finding in judge(text, "x"))])
    assert sorted(finding.name for finding in judge(text.replace("\n", "\r\n"), "x")) == names


def test_there_are_enough_scripts_and_many_are_right():
    right = [path for path in SCRIPTS if expected(path) == []]
    assert len(SCRIPTS) >= 60
    assert len(right) >= 28
