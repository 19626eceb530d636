"""``--help``: one form for each option, nothing twice and nothing forgotten, and examples that can be typed."""

from __future__ import annotations

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from paceline.cli.command_help import COMMANDS as SECTIONS
from paceline.cli.command_help import EXAMPLES, FIRST, GROUPS
from paceline.cli.main import cli


def commands(group=cli, path="paceline"):
    yield path, group
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from commands(each, f"{path} {name}")
        else:
            yield f"{path} {name}", each


COMMANDS = dict(commands())


def shown(path, option="--help"):
    result = CliRunner().invoke(
        cli, [*path.split()[1:], option], terminal_width=80, prog_name="paceline"
    )
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("path", COMMANDS)
def test_a_help_fits_80_columns_and_is_whole(path):
    text = shown(path)
    assert max(map(len, text.splitlines())) <= 80
    summaries = text.partition("Commands:")[2].partition("Examples:")[0]
    assert "..." not in summaries, "a summary was cut off"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_shown_once(path):
    command = COMMANDS[path]
    all_of_them = "--help-all" if command.name in FIRST else "--help"
    text = shown(path, all_of_them).partition("Examples:")[0]
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
    options = {
        each.opts[-1].replace("_", "-") for each in command.params if isinstance(each, click.Option)
    }
    assert sorted(listed) == sorted({*options, "--help"})
    assert not re.search(r"^ +(?:-\w, )?--\w+_\w+", text, re.MULTILINE)


@pytest.mark.parametrize("name", FIRST)
def test_ten_options_are_shown_first(name):
    text = shown(f"paceline {name}")
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.partition("Examples:")[0], re.MULTILINE)
    assert len(listed) == len(FIRST[name]) + 2 == 12
    assert {"--help", "--help-all"} < {*listed}


def test_every_command_that_people_type_is_listed_under_one_of_five_headings():
    text = shown("paceline").partition("Examples:")[0]
    parts = re.split(r"^(\w.*):\n", text, flags=re.MULTILINE)[3:]
    listed = {
        heading: re.findall(r"^  (\w+) ", part, re.MULTILINE)
        for heading, part in zip(parts[::2], parts[1::2], strict=True)
    }
    assert listed == {heading: list(names) for heading, names in SECTIONS.items()}
    assert len(listed) == 5
    names = [name for part in listed.values() for name in part]
    assert sorted([*names, "endpoint", "requeue"]) == sorted(cli.commands)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_has_two_examples_that_can_be_typed(path):
    assert len(EXAMPLES[path]) == (1 if path == "paceline skill" else 2)  # it takes nothing
    for example in EXAMPLES[path]:
        assert f"\n  {example}\n" in shown(path)
        words = shlex.split(example.replace("$status", "75"))
        cli.make_context("paceline", words[1:]).close()
        group, rest = cli, words[1:]
        while isinstance(group, click.Group):
            group, rest = group.commands[rest[0]], rest[1:]
        context = group.make_context(group.name, rest)
        assert path == "paceline" or words[1] == path.split()[1], example
        context.close()


@pytest.mark.parametrize("name", GROUPS)
def test_groups_name_options_that_exist(name):
    known = {each.name for each in cli.commands[name].params}
    named = [option for names in GROUPS[name].values() for option in names]
    assert len(named) == len(set(named))
    assert set(named) <= known
