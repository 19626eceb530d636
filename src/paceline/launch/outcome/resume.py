"""How a run goes on after it has stopped: from which checkpoint, by which line, and who types it. Pure.

What can be pasted stands alone behind its label, whole, and is never shortened.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from paceline import env
from paceline.errors import EXIT_UNFINISHED
from paceline.launch.plan.options import Options
from paceline.launch.plan.slurm_step import srun


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was committed.

    Attributes:
        path: Its folder.
        number: The count in its name: of two, the larger was committed later.
        step: Optimizer steps that it holds.
        seconds: How long it took to save; 0 where that is not known.
    """

    path: str
    number: int
    step: int
    seconds: float = 0.0


@dataclass(frozen=True)
class ResumeCommand:
    """How the run is started again.

    Attributes:
        line: What to type; empty if nothing is known.
        shell: It is a command of the shell, and not a call in a program.
        nodes: Launchers that it takes.
        numbered: Each of them has a node rank of its own.
        slurm: It ran inside a Slurm job.
        step: It ran inside a step of one, and not in the job script's own shell.
        submitted: It was started by the script of ``paceline submit``, which queues it again by itself.
    """

    line: str = ""
    shell: bool = True
    nodes: int = 1
    numbered: bool = False
    slurm: bool = False
    step: bool = False
    submitted: bool = False


def plan(
    options: Options, *, run_dir: str, function: bool, numbered: bool, environ: Mapping[str, str], job_script: str = ""
) -> ResumeCommand:
    """Return how a run is started again.

    Args:
        options: What was asked for.
        run_dir: Its run folder.
        function: It ran a function of a program.
        numbered: Its nodes were given node ranks.
        environ: The environment.
        job_script: The script of ``paceline submit`` that started it; empty if there is none.
    """
    slurm = bool(environ.get(env.JOB_ID))
    if slurm and job_script and not function:
        return ResumeCommand(line=shlex.join(["sbatch", job_script]), slurm=True, step=True, submitted=True)
    line = recall(options.script, run_dir=run_dir) if function else retype(options, run_dir=run_dir)
    if options.placed.one_voice:  # one line for all nodes, each of which finds its own rank
        return ResumeCommand(line=srun(options.max_nodes, words=line), slurm=True, step=True)
    return ResumeCommand(
        line=line,
        shell=not function,
        nodes=options.max_nodes,
        numbered=numbered,
        slurm=slurm,
        step=bool(environ.get(env.STEP_ID)),
    )


def retype(options: Options, *, run_dir: str) -> str:
    """Return the command that goes on in a run folder, with all else as it was typed."""
    words = ["paceline", "run"]
    for name, value in (*((n, v) for n, v in options.typed if n != "run_dir"), ("run_dir", run_dir)):
        option = "--" + name.replace("_", "-")
        # a value with a dash in front would be taken for an option
        words += [f"{option}={value}"] if value.startswith("-") else [option, value] if value else [option]
    return shlex.join([*words, options.script, *options.script_args])


def recall(name: str, *, run_dir: str) -> str:
    """Return the call that goes on in a run folder, for a run of a function."""
    return f"paceline.launch({name}, ..., run_dir={run_dir!r})"


def after_stop(last: Checkpoint | None, again: ResumeCommand) -> list[str]:
    """Return the lines about going on for a run that stopped before its end, unfinished and not broken."""
    kept = f"last checkpoint: step {last.step}, {last.path}" if last else "last checkpoint: none in the run folder"
    loop = ""
    if again.slurm and not again.submitted:
        # the script's own status stays that of the run: a finished job must not show as failed, nor the reverse
        requeue = f"[ $status -ne {EXIT_UNFINISHED} ] || scontrol requeue $SLURM_JOB_ID"
        loop = f"in the job script, after that line: status=$?; {requeue}; exit $status"
    elif again.shell and not again.slurm:
        loop = _loop(again.line, f"[ $? -eq {EXIT_UNFINISHED} ] || break")
    label = "the job script queues it again; if it does not" if again.submitted else "resume"
    return [kept, *_lines(label, again, loop)]


def after_failure(last: Checkpoint | None, again: ResumeCommand) -> list[str]:
    """Return the lines about going on for a run that failed: none where nothing was saved.

    No loop is named: what failed by itself would fail in it again and again.
    """
    return _lines(f"resume from step {last.step}", again, "") if last else []


def after_loss(last: Checkpoint | None, again: ResumeCommand) -> list[str]:
    """Return the lines about going on for a run that lost a node, which may help at the next try."""
    loop = _loop(again.line, "sleep 10") if again.shell and not again.slurm else ""
    if again.slurm and not again.submitted:
        loop = "sbatch --requeue, or in the job script after that line: scontrol requeue $SLURM_JOB_ID"
    return _lines(f"resume from step {last.step}" if last else "start again", again, loop)


def _loop(line: str, between: str) -> str:
    # The trap: without it the shell would go on after Ctrl-C, because the launcher has seen to that by itself.
    return f"(trap exit INT; until {line}; do {between}; done)"


def _lines(label: str, again: ResumeCommand, loop: str) -> list[str]:
    if not again.line:
        return []
    if again.nodes > 1:
        label += f", on all {again.nodes} nodes" + (", each with its own --node-rank" if again.numbered else "")
    return [f"{label}: {again.line}", *([f"auto-resume: {loop}"] if loop else [])]


def describe_short_grace(grace_s: int, again: ResumeCommand, *, needed_s: float = 0.0) -> str:
    """Return the fix for ranks that were killed while they saved, or will be: longer, from all who count it.

    Args:
        grace_s: Seconds that they had, or have.
        again: How the run is started.
        needed_s: Seconds that a save takes; 0 where it was not measured.
    """
    longer = max(60, 30 * math.ceil(2 * needed_s / 30) if needed_s else 2 * grace_s)
    if again.submitted:
        return f"paceline submit --grace-s {longer} ..., which sets the signal of the job too"
    if not again.slurm:
        return f"--grace-s {longer}, and no shorter time at whoever sends the signal"
    # Slurm sends to the steps; to the job script's own shell only with B:
    where = "" if again.step else "B:"
    return f"--grace-s {longer}, and #SBATCH --signal={where}TERM@{longer + 30}"
