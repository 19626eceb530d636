"""The command ``paceline verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli import command_help, completed_words, start_commands
from paceline.cli.bench_command import timeout_of
from paceline.cli.start_commands import Action


@click.command("verify", cls=start_commands.StartCommand)
@click.option(
    "--world",
    default="1,2",
    metavar="N,...",
    help="Numbers of ranks. Without 1 less can be compared. [1,2]",
)
@click.option(
    "--steps",
    type=click.IntRange(4),
    default=200,
    metavar="N",
    help="Optimizer steps of each start; two epochs and an evaluation show most. [200]",
)
@click.option(
    "--batch-option",
    default="",
    metavar="TEXT",
    help="The script's argument for the batch of a rank, '--batch-size={per_rank}': keeps the batch"
    " of all ranks together equal, so that losses and updates can be compared.",
)
@click.option(
    "--global-batch",
    type=click.IntRange(1),
    metavar="N",
    help="With --batch-option: samples of a step over all ranks. [those on the fewest ranks]",
)
@click.option(
    "--apart",
    is_flag=True,
    help="Ranks train apart on purpose: a search, an ensemble, averages after the last step.",
)
@click.option("--timeout", default="10m", metavar="TIME", help="Limit of one start. [10m]")
@click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder of the records. [paceline-runs/TIME-verify-SCRIPT]",
)
@command_help.JSON
@click.argument("script", required=False, default="", shell_complete=completed_words.files)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def VERIFY(**values: Any) -> Action:  # a constant after its decoration
    """Check that a script on several ranks does what it does on one: samples, learning rate,
    parameters, losses, evaluation.

    Starts the script as it is, in this folder, once on each number of ranks, and compares what the
    probe records. Works with every framework that uses torch's DataLoader and optimizers. What
    cannot be compared is listed as not judged.
    """
    start_commands.require_script(values["script"])
    timeout_s = timeout_of(values["timeout"])

    def action() -> int:
        from paceline.measure.bench import Request, parse_worlds
        from paceline.measure.verify import require_batch_option, verify

        require_batch_option(values["batch_option"], values["global_batch"])
        requested = Request(
            command=(values["script"], *values["arguments"]),
            worlds=parse_worlds(values["world"]),
            steps=values["steps"],
            scaling="strong",
            batch_option=values["batch_option"],
            global_batch=values["global_batch"],
            timeout_s=timeout_s,
            is_module=values["module"],
            run_dir=values["run_dir"],
        )
        return verify(requested, as_json=values["as_json"], is_apart=values["apart"])

    return action
