"""Render the job script of a request. Pure.

The script is meant to be read and kept: its resources are ``#SBATCH`` lines, and plain ``sbatch``
submits it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline import env
from paceline.errors import EXIT_UNFINISHED
from paceline.launch.plan.option import as_words
from paceline.slurm.profile import PYXIS, Container
from paceline.slurm.request import SubmitRequest
from paceline.slurm.sweep import definition
from paceline.text.quoting import comment, directive, pattern, word

_WIDTH = 110
_JOB_VARIABLE = re.compile(r"\$(?:\{(SLURM\w+)\}|(SLURM\w+))")  # set inside a job only


@dataclass(frozen=True)
class JobPlace:
    """Where a job is submitted from and what it uses there."""

    folder: str  # working folder of the job
    # absolute path of the run folder; of a sweep, the folder that has those of its elements
    run_dir: str
    script: str  # path of the job script
    output: str  # path of the job's output
    paceline: tuple[str, ...]  # command that starts paceline, in words; the job script uses it too
    when: str  # time of submission as text
    # whether the script is printed and not submitted: the job then creates the run folder
    printed: bool = False


def render(request: SubmitRequest, place: JobPlace) -> str:
    """Return the text of the script for sbatch."""
    blocks = (
        _head(request, place),
        list(_set_up(request, place)),
        list(_element(request, place)),
        [*_program(request, place), *_end(request, place)],
    )
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _head(request: SubmitRequest, place: JobPlace) -> list[str]:
    lines = ["#!/bin/bash", f"# paceline submit, {place.when}: {word(request.script)}"]
    if request.profile.name:
        lines.append(f"# with the profile {word(request.profile.name)}")
    if place.printed:
        lines += ["# saved as job.sh, it is submitted by:", "#   sbatch job.sh"]
    else:
        lines += ["# to submit it again as it is:", f"#   sbatch {word(place.script)}"]
    return [*lines, *_resources(request), *_conduct(request, place)]


def _resources(request: SubmitRequest) -> Iterator[str]:
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


def _conduct(request: SubmitRequest, place: JobPlace) -> Iterator[str]:
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
    # A job that is queued again would begin its output anew, and the first start's would be gone.
    yield directive("open-mode", "append")
    if _by_directive(place.folder):
        yield directive("chdir", place.folder)
    yield directive("output", _output(request, place))


def _output(request: SubmitRequest, place: JobPlace) -> str:
    if place.printed:
        # Slurm opens this file before the job creates the run folder, where slurm.out links to it
        return "slurm-%A_%a.out" if request.sweep else "slurm-%j.out"
    if request.sweep:
        return f"{pattern(place.run_dir)}/%a/{os.path.basename(place.output)}"
    return pattern(place.output)


def _by_directive(folder: str) -> bool:
    """Return whether ``--chdir`` can name a folder: ``%`` and ``\\`` depend on Slurm's version."""
    return "%" not in folder and "\\" not in folder


def _set_up(request: SubmitRequest, place: JobPlace) -> Iterator[str]:
    profile = request.profile
    if not _by_directive(place.folder):
        yield f"cd -- {word(place.folder)} || exit"
    for module in profile.modules:
        yield f"module load {word(module)} || exit"
    if profile.conda:
        yield "# activate is a function of the shell, which only conda's hook defines"
        yield 'eval "$(conda shell.bash hook)" || exit'
        yield f"conda activate {word(profile.conda)} || exit"
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
    # shlex alone would keep bash from filling the variables in.
    quoted, position = "", 0
    for match in _JOB_VARIABLE.finditer(text):
        quoted += _quoted(text[position : match.start()])
        quoted += f'"${{{match[1] or match[2]}}}"'
        position = match.end()
    return quoted + _quoted(text[position:])


def _quoted(text: str) -> str:
    return word(text) if text else ""


def _element(request: SubmitRequest, place: JobPlace) -> Iterator[str]:
    """Return the lines that choose the folder and the arguments of an element of an array."""
    if request.sweep is None:
        return
    if place.printed:
        yield "# the values of each element, for the record that the job makes"
        yield definition.comment(request.sweep)
    number = f'"${env.ARRAY_TASK_ID}"'
    yield "# each element of the array has its own run folder and arguments"
    yield f"run_dir={word(place.run_dir)}/{number}"
    yield f"case {number} in"
    for element in request.sweep.elements:
        words = " ".join(map(word, (request.script, *element.arguments)))
        yield f"{element.index}) program=({words}) ;;"
    yield f'*) echo "the sweep has no element ${env.ARRAY_TASK_ID}" >&2; exit 2 ;;'
    yield "esac"


def _run_dir(request: SubmitRequest, place: JobPlace) -> str:
    return '"$run_dir"' if request.sweep else word(place.run_dir)


def _program(request: SubmitRequest, place: JobPlace) -> list[str]:
    return _call(request, place) if request.direct else _start(request, place)


def _call(request: SubmitRequest, place: JobPlace) -> list[str]:
    """Return the lines that make the call of a function in one process."""
    folders = _folders(place)
    command = " ".join(map(word, _command(request, place, folders)))
    container_options = container_srun_options(request.profile.container, folders)
    return [
        "status=0",
        *_wrapped(
            [
                " ".join(_srun(request)),
                *_filled([word(option) for option in container_options]),
                f"{command} call {_run_dir(request, place)} || status=$?",
            ]
        ),
    ]


def _srun(request: SubmitRequest) -> list[str]:
    # after --export=NONE for the job, srun would start the tasks without an environment
    srun = ["srun", "--export=ALL", "--kill-on-bad-exit=1", "--ntasks-per-node=1"]
    if request.cpus:
        # since Slurm 22.05 srun does not take this from the job
        srun.append(f"--cpus-per-task={request.cpus}")
    return srun


def _start(request: SubmitRequest, place: JobPlace) -> list[str]:
    folders = _folders(place)
    command = [word(part) for part in _command(request, place, folders)]
    container_options = container_srun_options(request.profile.container, folders)
    # long words get separate lines, so that the layout does not depend on the length of paths
    run_command = " ".join(
        [*command, "run", '--rdzv-endpoint "$endpoint"', f"--grace-s {request.grace_s}"]
    )
    options = _filled(
        [" ".join(map(word, as_words(name, value))) for name, value in request.forwarded]
    )
    run_dir = f"--run-dir {_run_dir(request, place)}"
    # a name that starts with a dash would be parsed as an option
    script = ["--"] if request.script.startswith("-") else []
    if request.sweep:
        script += ['"${program[@]}"']
    else:
        script += [word(argument) for argument in (request.script, *request.script_args)]
    return [
        *_secret_lines(request),
        (
            "# this script runs on the first node of the job: its address, and a port that is free"
            " there"
        ),
        (
            f"endpoint=$({_own_command(place)} endpoint --run-dir"
            f" {_run_dir(request, place)}{_record(request, place)}) || exit"
        ),
        "status=0",
        # in the same line as the command: after a profile's "set -e" the next line would not run
        *_wrapped(
            [
                " ".join(_srun(request)),
                *_filled([word(option) for option in container_options]),
                run_command,
                run_dir,
                *options,
                *_filled([*script, "|| status=$?"]),
            ]
        ),
    ]


def _folders(place: JobPlace) -> list[str]:
    """Return the folders that a container needs: where the job works, and where its runs are."""
    # Not the run folder itself: the job may create it, and a mount has to exist.
    runs = os.path.dirname(place.run_dir)
    is_below = os.path.commonpath([runs, place.folder]) == place.folder
    return [place.folder] if is_below else [place.folder, runs]


def _command(request: SubmitRequest, place: JobPlace, folders: Sequence[str]) -> list[str]:
    """Return the command that starts ``paceline`` for the run.

    Only the run has a prefix, a container or the paceline of a conda environment: the other
    commands of the script call Slurm, which a container does not have.
    """
    site = request.profile
    if not site.prefix and not site.conda and site.container is None:
        return list(place.paceline)
    outer = container_command(site.container, folders, gpus=bool(request.num_gpus))
    return [*outer, *site.prefix, "paceline"]


def _record(request: SubmitRequest, place: JobPlace) -> str:
    """Return the options with which the job of a printed script stores its record."""
    if not place.printed:
        return ""
    ends = " --on-node-loss fail" if request.on_node_loss == "fail" else ""
    return f' --job-script "$0"{ends}'


def _secret_lines(request: SubmitRequest) -> list[str]:
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


def _own_command(place: JobPlace) -> str:
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


def _end(request: SubmitRequest, place: JobPlace) -> list[str]:
    lines = []
    # the command takes a quarter of a second, which is long beside many functions
    unless_done = '[ "$status" -eq 0 ] || ' if request.direct else ""
    if request.requeue:
        lines += [
            (
                f"# {EXIT_UNFINISHED}: stopped unfinished, with a checkpoint; queued again, the job"
                " continues from there"
            ),
            f"{unless_done}{_own_command(place)} requeue {_run_dir(request, place)}"
            ' --status "$status"',
        ]
    return [*lines, 'exit "$status"']


def container_srun_options(
    container: Container | None,  # the container, None without one
    folders: Sequence[str],  # folders that the run needs, the working folder first
) -> list[str]:
    """Return the options of srun."""
    if container is None or container.runtime != PYXIS:
        return []
    # pyxis documents SRC:DST only; apptainer takes one path for both.
    mounts = [
        mount if ":" in mount else f"{mount}:{mount}" for mount in _mounts(container, folders)
    ]
    return [
        f"--container-image={container.image}",
        f"--container-mounts={','.join(mounts)}",
        f"--container-workdir={folders[0]}",
        *container.options,
    ]


def container_command(
    container: Container | None,  # the container, None without one
    folders: Sequence[str],  # folders that the run needs, the working folder first
    *,
    gpus: bool,  # whether the job has GPUs, whose driver the container then needs
) -> list[str]:
    """Return the words before ``paceline run``."""
    if container is None or container.runtime == PYXIS:
        return []
    # apptainer brings NVIDIA's driver in by --nv; for AMD's the profile has --rocm.
    driver = ["--nv"] if gpus and "--rocm" not in container.options else []
    return [
        container.runtime,
        "exec",
        *dict.fromkeys((*driver, *container.options)),
        f"--bind={','.join(_mounts(container, folders))}",
        f"--pwd={folders[0]}",
        container.image,
    ]


def _mounts(container: Container, folders: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*folders, *container.mounts]))
