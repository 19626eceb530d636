"""What programs that call paceline are given: JSON Schemas, and a text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import fastjsonschema
import pytest

from paceline.cli import json_schema, json_types
from paceline.cli.main import cli
from printed_json import read_json

TESTS = Path(__file__).parents[2]


def with_json(group: click.Group, *words: str):
    """Yield the commands that have the option ``--json``."""
    for name, command in group.commands.items():
        if any("--json" in parameter.opts for parameter in command.params):
            yield " ".join((*words, name))
        if hasattr(command, "commands"):
            yield from with_json(command, *words, name)


def test_each_command_with_json_has_a_schema_and_a_test_that_compares_its_output():
    commands = set(with_json(cli)) | {"run", "submit"}  # whose options are in tables
    assert commands == set(json_types.COMMANDS)
    files = [*TESTS.rglob("test_*.py"), *TESTS.rglob("launched.py"), *TESTS.rglob("conftest.py")]
    texts = "".join(file.read_text() for file in files)
    assert commands - set(re.findall(r'read_json\(\s*"([a-z ]+)"', texts)) == set()


@pytest.mark.parametrize("command", json_types.COMMANDS)
def test_a_schema_is_one_and_describes_its_fields(typed, command):
    status, out, _ = typed("schema", *command.split())
    schema = json.loads(out)
    assert status == 0 and schema["$schema"].endswith("2020-12/schema")
    for described in schema["$defs"].values():
        assert described["description"] and described["additionalProperties"] is False
        assert set(described["required"]) <= set(described["properties"])
    with pytest.raises(fastjsonschema.JsonSchemaException):
        fastjsonschema.compile(schema)(7)


def test_a_command_without_json_is_refused(typed):
    status, _, err = typed("schema", "follow")
    assert status == 2 and "follow prints no JSON; these do: bench, " in err


def test_another_field_and_a_missing_one_are_noticed():
    finding = dict.fromkeys(("code", "name", "what", "where", "why", "fix"), "")
    finding |= {"evidence": [], "severity": "hint"}
    assert read_json("lint", json.dumps({"findings": [finding]}))["findings"] == [finding]
    for wrong in ({**finding, "more": ""}, {**finding, "severity": "grave"}, {"code": ""}):
        with pytest.raises(fastjsonschema.JsonSchemaException):
            read_json("lint", json.dumps({"findings": [wrong]}))


def test_pages_of_findings_and_variables_are_described(typed):
    assert read_json("explain", typed("explain", "--json", "NET001")[1])["name"] == "port-in-use"
    assert read_json("explain", typed("explain", "--json", "NCCL_IB_HCA")[1])["read by"] == "NCCL"
    schema = json_schema.schema("doctor")
    assert schema["$defs"]["Disk"]["properties"]["free_bytes"]["description"]


def test_the_skill_is_short_and_names_commands_and_options_that_exist(typed):
    text = typed("skill")[1]
    assert len(text.splitlines()) <= 150
    for line in re.findall(r"`paceline ([a-z][^`]*)`", text):
        words = line.split()
        command = cli
        while words and words[0] in getattr(command, "commands", ()):
            command = command.commands[words.pop(0)]
        options = {form for parameter in command.params for form in parameter.opts}
        given = [word for word in words if word.startswith("--") and word != "--"]
        assert set(given) <= options | {"--help"}, line


def test_assistants_find_their_file():
    text = (TESTS.parent / "AGENTS.md").read_text()
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (TESTS.parent / target).exists()
