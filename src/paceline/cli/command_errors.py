"""Report errors of the command line: unknown options, wrong usage, and errors of the commands."""

from __future__ import annotations

import contextlib
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import click

from paceline import env
from paceline.errors import EXIT_MISUSE, PacelineError, UsageError, closest, option_invalid
from paceline.text import terminal
from paceline.text.wording import few, has_or_have

_TOGETHER_S = 1.0  # the tasks of a Slurm step reach this point within this time
# Findings that depend on the command line and the start alone, which all tasks have in common.
_ALIKE = ("option-", "double-launch", "torchrun-", "rank-env-missing")
# What mpirun, srun, accelerate, deepspeed, fabric run and others call the number of ranks.
_NUM_RANKS = (
    *("-n", "-np", "-g", "--num-processes", "--gpus", "--num-gpus"),
    *("--devices", "--world-size", "--ranks"),
)
_MOST_COMMANDS = 4  # an option of more of them, such as --json, does not say which is meant


def unknown_option(
    error: click.exceptions.NoSuchOption,
    words: Sequence[str],  # the command line, without the program's name
) -> UsageError:
    """Return the error for an unknown option, with the option or the line that may be meant."""
    if error.ctx is None:
        return misused(error)
    typed, path = error.option_name.split("=")[0], error.ctx.command_path
    what, fix, root = f"{path} has no option {typed}", "", error.ctx.find_root()
    names = path.removeprefix(str(root.info_name)).split()
    if names == ["submit"]:
        from paceline.slurm import request

        why, fix = request.instead_of_sbatchs(typed)
        what += why and f": {why}"
    forms = _forms(error.ctx.command, typed)
    if "--nproc-per-node" in forms and typed.replace("_", "-") in _NUM_RANKS:
        fix = f"paceline {' '.join(names)} --nproc-per-node N"
    fix = fix or _question(form for form in forms if form.startswith(typed))
    others = {} if fix else _commands_with(typed, root.command)
    if 0 < len(others) <= _MOST_COMMANDS:
        what += f"; {few(list(others))} {has_or_have(others)} it"
        fix = _line_of(others, typed, words[len(names) :])
    every = "--help-all" if "--help-all" in forms else "--help"
    fix = fix or _question(filter(None, [closest(typed, forms)])) or f"{path} {every} lists them"
    return UsageError.of("option-unknown", what, where="command line", fix=fix)


def _forms(command: click.Command, typed: str) -> list[str]:
    """Return the options of a command, those with underscores only if one is typed so."""
    forms = [form for parameter in command.params for form in parameter.opts if form[0] == "-"]
    return [form for form in forms if "_" in typed or "_" not in form]


def _question(forms: Iterable[str]) -> str:
    near = " or ".join(forms)
    return f"did you mean {near}?" if near else ""


def _commands_with(option: str, group: click.Command, path: str = "") -> dict[str, click.Command]:
    """Return the commands that have an option, by what follows ``paceline``."""
    having: dict[str, click.Command] = {}
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            having |= {path + name: command} if option in _forms(command, option) else {}
            having |= _commands_with(option, command, f"{path}{name} ")
    return having


def _line_of(commands: Mapping[str, click.Command], option: str, words: Sequence[str]) -> str:
    """Return the line of the first command that knows all typed options."""
    for name, command in commands.items():
        # A parser alone calls nothing and looks for no file, as the command itself would.
        parser = command.make_parser(click.Context(command, allow_interspersed_args=False))
        with contextlib.suppress(click.UsageError):
            parser.parse_args(list(words))
            return shlex.join(["paceline", *name.split(), *words])
    return f"paceline {next(iter(commands))} {option} ..."


def misused(error: click.ClickException) -> UsageError:
    """Return the error for any other wrong usage."""
    command = getattr(getattr(error, "ctx", None), "command_path", "paceline")
    what = error.format_message()
    script = re.fullmatch(r"No such command '(.+\.py)'\.", what)
    fix = f"paceline run {script[1]}" if script else f"{command} --help"
    return option_invalid(what, fix=fix)


def refuse_line(error: PacelineError) -> NoReturn:
    """Exit for an error of the command line, which all tasks of a start find: the first prints it.

    What may be wrong on one node only, such as a missing script, each task prints.
    """
    task = _task_of_several()
    if task is not None and error.finding.name.startswith(_ALIKE):
        error.found_by_all, error.reported_elsewhere = True, task > 0
    refuse(error)


def _task_of_several() -> int | None:
    """Return which of several tasks of mpirun or a Slurm step this process is; None if of none."""
    # imported here, since a command without an error answers sooner
    from paceline.launch.plan import slurm_step
    from paceline.world import read_mpi_task

    environ = env.snapshot()
    try:
        task = read_mpi_task(environ)
        step = slurm_step.read_step(environ, in_terminal=env.in_terminal())
    except UsageError:
        return None  # its variables contradict each other, so every task prints the error
    if task is not None and task.size > 1:
        return task.rank
    return step.task if step is not None and sum(step.tasks) > 1 else None


def refuse(error: PacelineError) -> NoReturn:
    """Print an error and exit with its status."""
    status = error.exit_status if error.exit_status else EXIT_MISUSE
    if not error.reported_elsewhere:
        terminal.show(error.finding.render(), sys.stderr)
    if error.found_by_all:
        # When the first task fails, srun may end the others before they print this, or with the
        # status of SIGTERM.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(status))
        sys.stderr.flush()
        time.sleep(_TOGETHER_S)
    sys.exit(status)
