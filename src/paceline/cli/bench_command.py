"""The commands ``paceline bench`` and ``paceline verify``, which start a script again and again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from paceline.cli import command_help, completed_words, start_commands
from paceline.cli.start_commands import Action
from paceline.errors import option_invalid
from paceline.launch.plan.option_values import seconds_of

# What both commands take
_TIMEOUT = click.option(
    "--timeout", default="10m", metavar="TIME", help="Limit of one start. [10m]"
)
_MODULE = click.option("-m", "--module", is_flag=True, help="Run a module, as python -m does.")
_SCRIPT = click.argument("script", required=False, default="", shell_complete=completed_words.files)
_ARGUMENTS = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)


class BenchCommand(start_commands.StartCommand):
    """A command that starts a script, unless its first word is the name of another command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands: dict[str, click.Command] = {}  # those commands, by name

    def command(self, name: str) -> Callable[[Any], click.Command]:
        """Return a decorator that adds a command, as that of a click group."""

        def add(function: Any) -> click.Command:
            self.commands[name] = click.command(name, cls=command_help.PlainCommand)(function)
            return self.commands[name]

        return add

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the words of this command, or those of the command that the first names."""
        # A click.Group would take the name of every script for that of a command.
        other = self.commands.get(args[0]) if args else None
        if other is None:
            return super().make_context(info_name, args, parent, **extra)
        return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


def timeout_of(text: str) -> float:
    """Return the seconds of ``--timeout``.

    Raises UsageError if it is not a time above 0.
    """
    timeout_s = seconds_of(text)
    if timeout_s <= 0:
        what = f"--timeout is a time such as 90s, 10m or 1h, and not {text!r}"
        raise option_invalid(what, where="--timeout", fix="--timeout 10m")
    return timeout_s


@click.command("bench", cls=BenchCommand)
@click.option(
    "--world",
    default="",
    metavar="N,...",
    help="Numbers of ranks. [1, 2, 4 ... and all GPUs or CPUs of this node]",
)
@click.option(
    "--steps",
    type=int,
    default=40,
    metavar="N",
    help="Optimizer steps of a start, with the warm-up; at least 12. [40]",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    metavar="N",
    help="How often the script is started on each number of ranks. [3]",
)
@click.option(
    "--scaling",
    type=click.Choice(["weak", "strong"]),
    default="weak",
    help="weak: the batch of a rank stays; strong: that of all ranks together. [weak]",
)
@click.option(
    "--batch-option",
    default="",
    metavar="TEXT",
    help="For strong: the script's argument for the batch of a rank, '--batch-size={per_rank}'.",
)
@click.option(
    "--global-batch",
    type=click.IntRange(1),
    metavar="N",
    help="For strong: samples of a step over all ranks. [those on the fewest ranks]",
)
@click.option(
    "--settings",
    default="",
    metavar="all|NAME,...",
    help="Also try settings of DistributedDataParallel and variables: what is each worth?",
)
@_TIMEOUT
@click.option("--oversubscribe", is_flag=True, help="Allow more ranks than GPUs or CPUs.")
@_MODULE
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder of the result. [paceline-runs/TIME-bench-SCRIPT]",
)
@command_help.JSON
@_SCRIPT
@_ARGUMENTS
def BENCH(**values: Any) -> Action:  # a constant after its decoration
    """Measure a script on several numbers of ranks: samples/s, speed-up, efficiency, where the time
    goes, and what holds scaling back.

    Starts the script as it is, in this folder, for a few dozen optimizer steps at a time; the end
    of the script does not run. Writes bench.json into a run folder. paceline bench network measures
    the network between ranks.
    """
    start_commands.require_script(values["script"])
    timeout_s = timeout_of(values["timeout"])

    def action() -> int:
        from paceline.measure.bench import BenchRequest, bench, parse_worlds

        requested = BenchRequest(
            command=(values["script"], *values["arguments"]),
            worlds=parse_worlds(values["world"]) if values["world"] else (),
            steps=values["steps"],
            rounds=values["rounds"],
            scaling=values["scaling"],
            batch_option=values["batch_option"],
            global_batch=values["global_batch"],
            settings=values["settings"],
            timeout_s=timeout_s,
            oversubscribe=values["oversubscribe"],
            is_module=values["module"],
            run_dir=values["run_dir"],
        )
        return bench(requested, as_json=values["as_json"])

    return action


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
@_TIMEOUT
@_MODULE
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="Folder of the records. [paceline-runs/TIME-verify-SCRIPT]",
)
@command_help.JSON
@_SCRIPT
@_ARGUMENTS
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
        from paceline.measure.bench import BenchRequest, parse_worlds
        from paceline.measure.verify import require_batch_option, verify

        require_batch_option(values["batch_option"], values["global_batch"])
        requested = BenchRequest(
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
