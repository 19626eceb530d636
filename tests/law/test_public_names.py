"""What users type is listed on one page and does not grow by itself: docs/reference/public-names.md."""

import re
from pathlib import Path

import click
import pytest

import paceline
from paceline import callbacks, data, errors, loggers, logging
from paceline.cli.main import cli
from paceline.codes import CODES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "public-names.md"


def commands(group, path=("paceline",)):
    """Every command with its subcommands, as it is typed."""
    yield " ".join(path)
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def python_names():
    """Every name that a public module shows."""
    yield from (f"paceline.{name}" for name in dir(paceline))
    for module in (callbacks, data, loggers, logging):
        yield from (f"{module.__name__}.{name}" for name in module.__all__)


NAMES = {
    "Commands": lambda: commands(cli),
    "Python": python_names,
    "Exit statuses": lambda: [
        f"{number} {name}" for name, number in vars(errors).items() if name.startswith("EXIT_")
    ],
    "Findings": lambda: [f"{code} {name}" for name, code in CODES.items()],
}


@pytest.mark.parametrize("kind", NAMES)
def test_public_names_are_those_of_the_page(kind):
    """A new one needs a design page (docs/design) and its line here; one that goes breaks users."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^    (.+)$", section, re.MULTILINE))
    names = {str(name) for name in NAMES[kind]()}
    assert (names - listed, listed - names) == (set(), set())


def test_the_walk_finds_commands():
    """Otherwise the list of commands could be empty on both sides."""
    assert isinstance(cli, click.Group)
    assert "paceline checkpoint list" in set(commands(cli))
