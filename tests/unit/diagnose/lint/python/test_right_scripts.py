"""Whole scripts in which nothing is wrong, each with idioms that are easily misjudged: lint says nothing at all."""

from pathlib import Path

import pytest

from paceline.diagnose.lint.python.judging import judge

RIGHT = sorted((Path(__file__).parent / "right").glob("*.py"))


def test_there_are_many():
    assert len(RIGHT) >= 20


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in RIGHT])
def test_nothing_is_found_in_a_script_that_is_right(path):
    assert [finding.render() for finding in judge(path.read_text(), path.name)] == []
