"""The commands for programs that call paceline: ``schema`` and ``skill``."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli import command_help
from paceline.errors import EXIT_OK, option_invalid
from paceline.text.json_text import print_json


@click.command("schema", cls=command_help.PlainCommand)
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...")
def SCHEMA(command: tuple[str, ...]) -> int:
    """Print the JSON Schema of what a command prints with --json."""
    from paceline.cli import json_schema, json_types

    name = " ".join(command)
    if name not in json_types.COMMANDS:
        what = f"{name} prints no JSON; these do: {', '.join(sorted(json_types.COMMANDS))}"
        raise option_invalid(what, fix="paceline schema lint")
    print_json(json_schema.schema(name))
    return EXIT_OK


@click.command("skill", cls=command_help.PlainCommand)
def SKILL() -> int:
    """Print what a program, such as a coding assistant, has to know: what to call when, how to
    read it, and what never to do.
    """
    print((Path(__file__).parent / "skill.md").read_text(encoding="utf-8"), end="")
    return EXIT_OK
