"""``paceline tune``: its options, and what they start."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import click

from paceline.cli import command_help, completed_words, start_commands
from paceline.cli.start_commands import Action
from paceline.errors import EXIT_OK, UsageError, option_contradicted

_DATASET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@click.command("tune", cls=start_commands.StartCommand)
@click.option(
    "--nproc-per-node", metavar="N", default="", help="Ranks, as for paceline run. [one per GPU]"
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples of a batch, for MODULE:DATASET. [32]",
)
@click.option(
    "--batch-option",
    metavar="TEXT",
    default="",
    help="The script's option for its batch size, with {batch} in it: find the largest batch that"
    " fits and the smallest that is about as fast, within --seconds once more.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(10, 3600),
    default=60.0,
    metavar="S",
    help="Limit of the measurement. [60]",
)
@command_help.JSON
@click.argument("subject", metavar="SCRIPT|MODULE:DATASET", shell_complete=completed_words.files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def TUNE(subject: str, arguments: tuple[str, ...], **options: Any) -> Action:
    """Find the fastest settings of a script's DataLoader, and say first whether data is what holds
    it back.

    The script is started on this node as paceline run would start it, and ended after the
    measurement. Its loader is changed from outside while it trains. With MODULE:DATASET only the
    loading of a dataset is measured.
    """
    # A path may have a colon too: what exists as a file is a script.
    is_dataset = bool(_DATASET.fullmatch(subject)) and not os.path.exists(subject)
    words = _words_of(subject, arguments, batch_size=options["batch_size"], is_dataset=is_dataset)
    ranks = options["nproc_per_node"]
    of_run = ["--nproc-per-node", ranks] if ranks else []
    of_run += ["--module"] if is_dataset else []
    seconds = options["seconds"]

    batch_option = options["batch_option"]
    if batch_option and is_dataset:
        raise _contradicted("--batch-option is for a script; a dataset takes --batch-size")

    def action() -> int:
        from paceline.measure import files_as_before
        from paceline.measure.tune import (
            BatchTuning,
            TrialStart,
            Tuning,
            TuningProgress,
            require_place,
        )

        if batch_option:
            require_place(batch_option)  # before the first measurement, which takes a minute
        start = TrialStart(words, of_run)
        with files_as_before.keeping():
            with TuningProgress(seconds) as progress:
                answer = Tuning(start, subject, seconds, has_steps=not is_dataset).run(progress)
            if batch_option:
                with TuningProgress(seconds) as progress:
                    tuning = BatchTuning(start, batch_option, answer, seconds)
                    answer = replace(answer, batches=tuning.run(progress))
        command_help.show(answer, options["as_json"])
        return EXIT_OK

    return action


def _words_of(
    subject: str, arguments: tuple[str, ...], *, batch_size: int | None, is_dataset: bool
) -> tuple[str, ...]:
    """Return what ``paceline run`` starts; refuse options without effect and a missing script."""
    if is_dataset:
        if arguments:
            raise _contradicted(f"a dataset takes no arguments: {' '.join(arguments)}")
        return "paceline.measure.tune.bare_loader", subject, str(batch_size or 32)
    # A script chooses its batch itself; --batch-option tells it another one.
    if batch_size is not None:
        raise _contradicted("--batch-size is for MODULE:DATASET; a script has its own")
    if not os.path.isfile(subject):
        raise UsageError.of(
            "script-missing",
            f"the script {subject} does not exist",
            where=os.getcwd(),
            fix="paceline tune train.py, or paceline tune mypackage.data:train_set",
        )
    return subject, *arguments


def _contradicted(what: str) -> UsageError:
    return option_contradicted(what, fix="paceline tune --help")
