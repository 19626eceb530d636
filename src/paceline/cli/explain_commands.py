"""The commands that explain what they read: ``explain`` and ``lint``."""

from __future__ import annotations

import os
from typing import Any

import click

from paceline.cli import command_help, completed_words
from paceline.cli.command_help import show
from paceline.cli.start_commands import Action
from paceline.errors import EXIT_OK, PacelineError, option_contradicted
from paceline.text.json_text import print_json


@click.command("explain", cls=command_help.HelpedCommand)
@click.argument(
    "subject", metavar="LOGFILE|CODE|NAME|-", shell_complete=completed_words.findings_or_files
)
@command_help.JSON
def EXPLAIN(subject: str, as_json: bool) -> Action:
    """Explain a log file, a finding, or a variable of NCCL or torch.

    LOGFILE is the output of a run under any framework and launcher (- for standard input), or a run
    folder: the likely cause comes first. CODE or NAME, port-in-use or NET001, is what a finding is
    called; or NAME is a variable such as NCCL_IB_HCA.
    """

    def action() -> int:
        from paceline.diagnose import explain

        # A folder or log may be called as a finding is: what exists is what was meant.
        page = None if os.path.exists(subject) else _described(subject)
        if page is not None:
            show(page, as_json)
            return EXIT_OK
        try:
            answer = explain.explain(subject)
        except PacelineError as error:
            if as_json:
                print_json({"findings": [error.finding]})
            raise
        show(answer, as_json)
        return answer.exit_status

    return action


def _described(name: str) -> Any:
    """Return the page of a finding, or the description of a variable; None if it is neither."""
    from paceline.diagnose import catalogue

    page = catalogue.find(name)
    if page is not None:
        return page
    from paceline.diagnose import variables  # only now: a code is answered without the tables

    return variables.describe(name)


@click.command("lint", cls=command_help.HelpedCommand)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", shell_complete=completed_words.files
)
@click.option("--sarif", "as_sarif", is_flag=True, help="Print SARIF 2.1.0, for code scanning.")
@command_help.JSON
def LINT(files: tuple[str, ...], as_sarif: bool, as_json: bool) -> Action:
    """Look for mistakes in job scripts (sbatch) and training scripts (Python), without running
    them.
    """
    if as_sarif and as_json:
        raise option_contradicted("--sarif and --json exclude each other", fix="--sarif, or --json")

    def action() -> int:
        from paceline.diagnose import lint

        report = lint.lint(files)
        if as_sarif:
            from paceline.diagnose.lint import sarif

            print_json(sarif.to_sarif(report, os.getcwd()))
        else:
            show(report, as_json)
        return report.exit_status

    return action
