"""Decide how a stopped run is resumed: from which checkpoint, by which command. Pure.

A command to paste follows its label on one line, complete and never shortened.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.errors import EXIT_UNFINISHED
from paceline.launch.plan import command_line
from paceline.launch.plan.options import Options
from paceline.launch.plan.slurm_step import srun
from paceline.launch.plan.starter_defaults import LSF, MPI, POD

_PLACES = {MPI: "by the same mpirun", LSF: "by the same blaunch", POD: "in every pod"}


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint."""

    path: str  # its folder
    number: int  # the count in its name; the larger one was committed later
    step: int  # number of optimizer steps that it holds
    seconds: float = 0.0  # how long it took to save; 0 if unknown


@dataclass(frozen=True)
class ResumeCommand:
    """How the run is started again."""

    line: str = ""  # the command to type; empty if unknown
    shell: bool = True  # whether it is a shell command and not a call in a program
    nodes: int = 1  # number of launchers that must be started
    numbered: bool = False  # whether each launcher has its own node rank
    slurm: bool = False  # whether the run was inside a Slurm job
    step: bool = False  # whether the run was inside a Slurm step, and not in the job script's shell
    # whether the script of ``paceline submit`` started it, which requeues it automatically
    submitted: bool = False
    place: str = ""  # who types the command or where, as a phrase; empty for a person on each node


def plan(
    options: Options,
    *,
    run_dir: str,
    function: bool,  # whether the run executed a function of a program
    numbered: bool,  # whether its nodes were given node ranks
    environ: Mapping[str, str],
    # arguments of sbatch that submit the run again: the script of ``paceline submit``,
    # after an option that names one element of an array; empty without a script
    submission: Sequence[str] = (),
) -> ResumeCommand:
    """Return how a run is started again."""
    slurm = bool(environ.get(env.JOB_ID))
    if slurm and submission and not function:
        return ResumeCommand(
            line=shlex.join(["sbatch", *submission]), slurm=True, step=True, submitted=True
        )
    line = recall(options.script, run_dir=run_dir) if function else repeat(options, run_dir=run_dir)
    starter = options.starter_defaults.starter
    if starter in _PLACES and options.max_nodes > 1:
        return ResumeCommand(line=line, nodes=options.max_nodes, place=_PLACES[starter])
    if options.starter_defaults.shared_output:  # one command for all nodes; each finds its rank
        return ResumeCommand(line=srun(options.max_nodes, words=line), slurm=True, step=True)
    return ResumeCommand(
        line=line,
        shell=not function,
        nodes=options.max_nodes,
        numbered=numbered,
        slurm=slurm,
        step=bool(environ.get(env.STEP_ID)),
    )


def repeat(options: Options, *, run_dir: str) -> str:
    """Return the command that continues in a run folder, with all other options as typed."""
    typed = [(name, value) for name, value in options.typed if name != "run_dir"]
    program = (options.script, *options.script_args)
    return command_line.write([*typed, ("run_dir", run_dir)], program)


def recall(name: str, *, run_dir: str) -> str:
    """Return the call that continues in a run folder, for a run of a function."""
    return f"paceline.launch({name}, ..., run_dir={run_dir!r})"


def after_stop(last: Checkpoint | None, command: ResumeCommand) -> list[str]:
    """Return the lines about resuming a run that stopped before its end without a failure."""
    newest = f"step {last.step}, {last.path}" if last else "none in the run folder"
    loop = ""
    if command.slurm and not command.submitted:
        # The script keeps the run's status: Slurm must show whether the job finished or failed.
        requeue = f"[ $status -ne {EXIT_UNFINISHED} ] || scontrol requeue $SLURM_JOB_ID"
        loop = f"in the job script, after that line: status=$?; {requeue}; exit $status"
    elif _may_loop(command):
        loop = _loop(command.line, f"[ $? -eq {EXIT_UNFINISHED} ] || break")
    label = "the job script queues it again; if it does not" if command.submitted else "resume"
    return [f"last checkpoint: {newest}", *_lines(label, command, loop)]


def after_failure(last: Checkpoint | None, command: ResumeCommand) -> list[str]:
    """Return the lines about resuming a run that failed; none if nothing was saved.

    No loop is suggested: the same failure would happen again and again.
    """
    return _lines(f"resume from step {last.step}", command, "") if last else []


def after_loss(last: Checkpoint | None, command: ResumeCommand) -> list[str]:
    """Return the lines about resuming a run that lost a node, where another try may help."""
    loop = _loop(command.line, "sleep 10") if _may_loop(command) else ""
    if command.slurm and not command.submitted:
        loop = (
            "sbatch --requeue, or in the job script after that line: scontrol requeue $SLURM_JOB_ID"
        )
    return _lines(f"resume from step {last.step}" if last else "start again", command, loop)


def _may_loop(command: ResumeCommand) -> bool:
    """Return whether a shell on one node can repeat the command."""
    return command.shell and not command.slurm and not command.place


def _loop(line: str, between: str) -> str:
    # The launcher handles Ctrl-C, so without the trap the shell would continue the loop after it.
    return f"(trap exit INT; until {line}; do {between}; done)"


def _lines(label: str, command: ResumeCommand, loop: str) -> list[str]:
    if not command.line:
        return []
    if command.place:
        label += f", {command.place}"
    elif command.nodes > 1:
        label += f", on all {command.nodes} nodes"
        if command.numbered:
            label += ", each with its own --node-rank"
    line = f"{label}: {command.line}"
    return [line, f"auto-resume: {loop}"] if loop else [line]


def describe_short_grace(
    grace_s: int,  # the current grace period, in seconds
    command: ResumeCommand,  # the resume command of the run
    *,
    needed_s: float = 0.0,  # how long a save takes, in seconds; 0 if it was not measured
) -> str:
    """Return the fix for a grace period that is too short to save: a longer one, at all senders."""
    wanted_s = 30 * math.ceil(2 * needed_s / 30) if needed_s else 2 * grace_s
    longer = max(60, wanted_s)
    if command.submitted:
        return f"paceline submit --grace-s {longer} ..., which sets the signal of the job too"
    if not command.slurm:
        return f"--grace-s {longer}; the sender of the signal must allow at least as long"
    # Slurm signals the steps; it signals the job script's shell only with B:
    where = "" if command.step else "B:"
    return f"--grace-s {longer}, and #SBATCH --signal={where}TERM@{longer + 30}"
