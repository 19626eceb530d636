"""The words of ``paceline bench``: a script, or the name of another command."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from paceline.cli import bench_command
from paceline.cli.main import cli
from paceline.errors import UsageError


@pytest.fixture
def another(monkeypatch):
    """A second command of ``bench``, as ``network``."""
    monkeypatch.setattr(bench_command.BENCH, "commands", {})

    @bench_command.BENCH.command("links")
    @click.option("--seconds", default=1)
    def links(seconds):
        return seconds

    return links


def parse(*words):
    return cli.main(list(words), standalone_mode=False)


def test_the_name_of_another_command_is_not_a_script(another):
    assert parse("bench", "links", "--seconds", "3")() == 3


def test_a_script_of_that_name_is_meant_by_its_path(another, monkeypatch):
    requested = []
    monkeypatch.setattr(
        "paceline.measure.bench.bench", lambda request, as_json: requested.append(request)
    )
    parse("bench", "--world", "2,1", "./links", "--world", "7")()
    assert requested[0].command == ("./links", "--world", "7")
    assert requested[0].worlds == (1, 2)


def test_help_of_another_command_names_it(another):
    result = CliRunner().invoke(cli, ["bench", "links", "--help"], prog_name="paceline")
    assert result.output.startswith("Usage: paceline bench links")


def test_a_time_that_is_none_is_refused():
    with pytest.raises(UsageError, match="--timeout is a time"):
        parse("bench", "--timeout", "soon", "train.py")
