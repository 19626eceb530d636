"""Completion: what each shell is asked to offer, without starting one."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.shell_completion import ShellComplete

from paceline.cli import completed_words, completion, main

FILE, FOLDER = ("", "file"), ("", "dir")


def offered(*words):
    """Values and types that click gives to a shell for the last word; of files the type only."""
    asked = ShellComplete(main.cli, {}, "paceline", "_PACELINE_COMPLETE")
    items = asked.get_completions(list(words[:-1]), words[-1])
    return [(item.value if item.type == "plain" else "", item.type) for item in items]


@pytest.mark.parametrize(
    "words",
    [
        ["run", "tra"],
        ["run", "--nproc-per-node", "2", ""],
        ["run", "train.py", "data"],
        ["submit", "--nodes", "2", ""],
        ["lint", "job.sh", ""],
        ["explain", ""],
        ["tune", ""],
        ["bench", ""],
        ["verify", ""],
        ["run", "--secret-file", ""],
        ["checkpoint", "list", ""],
    ],
)
def test_files_are_left_to_the_shell(words):
    assert offered(*words) == [FILE]


def test_folders_are_left_to_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert offered("run", "--run-dir", "") == [FOLDER]
    assert offered("top", "") == [FOLDER]


@pytest.mark.parametrize("words", [["run", "train.py", "--"], ["submit", "train.py", "--no"]])
def test_options_behind_the_script_are_its_own(words):
    assert offered(*words) == []


def test_an_option_is_offered_in_one_form():
    names = [value for value, _ in offered("run", "--")]
    assert "--nproc-per-node" in names
    assert [name for name in names if "_" in name] == []
    assert offered("run", "--nproc_") == [("--nproc_per_node", "plain")]


def test_a_line_that_is_not_finished_raises_nothing():
    assert offered("run", "--nproc-per-node", "2", "--no-such", "--nn")
    assert offered("run", "--n", "2", "tra") in ([FILE], [])


def test_findings_are_found_by_name_and_by_code_in_any_case():
    assert ("NET001", "plain") in offered("explain", "net00")
    assert offered("explain", "port-in")[0] == FILE  # bash forgets what comes before
    assert ("port-in-use", "plain") in offered("explain", "port-in")


@pytest.mark.parametrize(
    ("metavar", "word", "values"),
    [("report|stop|off", "", ["report", "stop", "off"]), ("a-b|c", "a", ["a-b"])],
)
def test_a_placeholder_with_choices_offers_them(metavar, word, values):
    complete = completed_words.of_placeholder(metavar)
    context = click.Context(main.cli)
    assert [item.value for item in complete(context, main.cli.params[0], word)] == values


@pytest.mark.parametrize("metavar", ["N", "N|MIN:MAX", "TEXT", "HOST"])
def test_other_placeholders_offer_nothing(metavar):
    assert completed_words.of_placeholder(metavar) is None


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell, capsys):
    context = click.Context(main.cli, info_name="paceline")
    with context:
        action = context.invoke(completion.COMPLETION, shell=shell)
    assert action() == 0
    script = capsys.readouterr().out
    assert f"_PACELINE_COMPLETE={shell}_complete" in script


def test_completion_imports_no_torch():
    code = (
        "import sys; from click.shell_completion import ShellComplete; from paceline.cli import main;"
        "ShellComplete(main.cli, {}, 'paceline', 'X').get_completions(['run'], '--n');"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=50, check=False).returncode == 0
