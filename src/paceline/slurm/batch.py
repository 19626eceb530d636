"""Render the job script of a request. Pure.

The script is meant to be read and kept: its resources are ``#SBATCH`` lines, and plain ``sbatch``
submits it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.errors import EXIT_UNFINISHED
from paceline.launch.plan.option import as_words
from paceline.slurm.request import Request
from paceline.text.quoting import comment, directive, pattern, word

_WIDTH = 110
_JOB_VARIABLE = re.compile(r"\$(?:\{(SLURM\w+)\}|(SLURM\w+))")  # set inside a job only


@dataclass(frozen=True)
class Place:
    """Where a job is submitted from and what it uses there.

    Attributes:
        folder: Working folder of the job.
        run_dir: Absolute path of the run folder.
        script: Path of the job script.
        output: Path of the job's output.
        paceline: Command that starts paceline, in words; the job script uses it too.
        when: Time of submission as text.
        printed: Whether the script is printed and not submitted: the job then creates the run
            folder.
    """

    folder: str
    run_dir: str
    script: str
    output: str
    paceline: tuple[str, ...]
    when: str
    printed: bool = False


def render(request: Request, place: Place) -> str:
    """Return the text of the script for sbatch."""
    blocks = (
        _head(request, place),
        list(_set_up(request, place)),
        [*_start(request, place), *_end(request, place)],
    )
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(request: Request, place: Place) -> list[str]:
    lines = ["#!/bin/bash", f"# paceline submit, {place.when}: {word(request.script)}"]
    if request.profile.name:
        lines.append(f"# with the profile {word(request.profile.name)}")
    if place.printed:
        lines += ["# saved as job.sh, it is submitted by:", "#   sbatch job.sh"]
    else:
        lines += ["# to submit it again as it is:", f"#   sbatch {word(place.script)}"]
    return [*lines, *_resources(request), *_conduct(request, place)]


def _resources(request: Request) -> Iterator[str]:
    yield directive("job-name", request.job_name)
    for name, value in request.directives():
        if name == "ntasks-per-node":
            yield "# one task on each node: it starts the ranks of its node"
        if name == "cpus-per-task" and request.cpus_per_gpu:
            yield (
                f"# {request.cpus_per_gpu} for each GPU, as CPUs of the task: every version of"
                " Slurm has these right"
            )
        elif name == "cpus-per-task" and request.cpus_why:
            yield f"# {request.cpus_why}"
        yield directive(name, value)


def _conduct(request: Request, place: Place) -> Iterator[str]:
    yield (
        f"# sent to the steps {request.signal_s} s before the time limit: the run saves and ends"
    )
    yield directive("signal", f"{request.signal}@{request.signal_s}")
    by_slurm = request.requeue and request.on_node_loss == "requeue"
    if by_slurm:
        yield (
            "# after preemption, the time limit or the loss of a node the job is queued again, and"
            " continues"
        )
    elif request.requeue:
        yield (
            "# never by Slurm itself, so the loss of a node ends the job: an unfinished run is"
            " submitted again"
        )
    yield directive("requeue" if by_slurm else "no-requeue")
    yield directive("open-mode", "append")
    if _by_directive(place.folder):
        yield directive("chdir", place.folder)
    if place.printed:
        # Slurm opens this file before the job creates the run folder, where slurm.out links to it
        yield directive("output", "slurm-%j.out")
    else:
        yield directive("output", pattern(place.output))


def _by_directive(folder: str) -> bool:
    """Return whether ``--chdir`` can name a folder: ``%`` and ``\\`` depend on Slurm's version."""
    return "%" not in folder and "\\" not in folder


def _set_up(request: Request, place: Place) -> Iterator[str]:
    profile = request.profile
    if not _by_directive(place.folder):
        yield f"cd -- {word(place.folder)} || exit"
    for module in profile.modules:
        yield f"module load {word(module)} || exit"
    yield from profile.lines
    for setting in profile.environment:
        yield from comment(setting.why)
        yield f"export {setting.name}={word(setting.value)}"
    if profile.tmp:
        folder = _with_job_variables(profile.tmp)
        yield (
            "# on each node, and before the variable is set: Slurm complains of a TMPDIR that is"
            " not there"
        )
        yield f"srun --export=ALL --ntasks-per-node=1 mkdir -p -- {folder} || exit"
        yield f"export TMPDIR={folder}"
    if request.requeue:
        yield "# if the latest checkpoint is damaged: continue from the latest one that is complete"
        yield f"export {env.DAMAGED}=skip"


def _with_job_variables(text: str) -> str:
    """Quote a path for bash, and leave Slurm's variables in it for the job to expand."""
    quoted, position = "", 0
    for match in _JOB_VARIABLE.finditer(text):
        quoted += _quoted(text[position : match.start()])
        quoted += f'"${{{match[1] or match[2]}}}"'
        position = match.end()
    return quoted + _quoted(text[position:])


def _quoted(text: str) -> str:
    return word(text) if text else ""


def _start(request: Request, place: Place) -> list[str]:
    # only before the run: the other two commands call Slurm, which a container does not have
    prefix = request.profile.prefix
    command = [word(part) for part in ((*prefix, "paceline") if prefix else place.paceline)]
    # after --export=NONE for the job, srun would start the tasks without an environment
    srun = ["srun", "--export=ALL", "--kill-on-bad-exit=1", "--ntasks-per-node=1"]
    if request.cpus:
        # since Slurm 22.05 srun does not take this from the job
        srun.append(f"--cpus-per-task={request.cpus}")
    # long words get separate lines, so that the layout does not depend on the length of paths
    run_command = " ".join(
        [*command, "run", '--rdzv-endpoint "$endpoint"', f"--grace-s {request.grace_s}"]
    )
    options = _filled(
        [" ".join(map(word, as_words(name, value))) for name, value in request.forwarded]
    )
    run_dir = f"--run-dir {word(place.run_dir)}"
    # a name that starts with a dash would be parsed as an option
    script = ["--"] if request.script.startswith("-") else []
    script += [word(argument) for argument in (request.script, *request.script_args)]
    return [
        *_secret_lines(request),
        (
            "# this script runs on the first node of the job: its address, and a port that is free"
            " there"
        ),
        (
            f"endpoint=$({_own_command(place)} endpoint --run-dir"
            f" {word(place.run_dir)}{_record(request, place)}) || exit"
        ),
        "status=0",
        # in the same line as the command: after a profile's "set -e" the next line would not run
        *_wrapped(
            [" ".join(srun), run_command, run_dir, *options, *_filled([*script, "|| status=$?"])]
        ),
    ]


def _record(request: Request, place: Place) -> str:
    """Return the options with which the job of a printed script stores its record."""
    if not place.printed:
        return ""
    ends = " --on-node-loss fail" if request.on_node_loss == "fail" else ""
    return f' --job-script "$0"{ends}'


def _secret_lines(request: Request) -> list[str]:
    """Return the lines that create the secret of this start, which Slurm passes to all tasks."""
    if request.max_nodes == 1:
        return []
    return [
        (
            "# a secret by which the launchers of the nodes know each other: new at each start, and"
            " written to no file"
        ),
        f"export {env.RUN_SECRET}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
    ]


def _own_command(place: Place) -> str:
    return " ".join(word(part) for part in place.paceline)


def _filled(words: Sequence[str]) -> list[str]:
    """Join words into lines of at most ``_WIDTH`` characters."""
    lines: list[str] = []
    for piece in words:
        if lines and len(lines[-1]) + 1 + len(piece) <= _WIDTH:
            lines[-1] += f" {piece}"
        else:
            lines.append(piece)
    return lines


def _wrapped(lines: Sequence[str]) -> list[str]:
    """Return lines as one shell command, with backslashes at their ends."""
    head, *rest = lines
    listed = [head, *(f"    {line}" for line in rest)]
    return [*(f"{line} \\" for line in listed[:-1]), listed[-1]]


def _end(request: Request, place: Place) -> list[str]:
    lines = []
    if request.requeue:
        lines += [
            (
                f"# {EXIT_UNFINISHED}: stopped unfinished, with a checkpoint; queued again, the job"
                " continues from there"
            ),
            f'{_own_command(place)} requeue {word(place.run_dir)} --status "$status"',
        ]
    return [*lines, 'exit "$status"']
