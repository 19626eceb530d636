"""Remove the wrappers of a command: srun and mpirun, containers, environments, ``env``, ``time``,
``bash -c``.

Wrappers are removed one by one until the program remains. A job step determines how often the
program starts, a container only where.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from paceline.diagnose.lint.job.sbatch_options import SRUN, canonical, names, takes_value
from paceline.diagnose.lint.job.shell.values import Arg

# Known programs and shells: after a wrapper with many options, the first of these is the program.
_PROGRAM = re.compile(
    r"(?:[^=\s]*/)?(python[0-9.]*|torchrun|accelerate|accelerate-launch|deepspeed|ds|composer"
    r"|fabric|lightning|paceline|bash|sh|zsh|env|srun|numactl|time|nohup)$"
)
_PYTHON = re.compile(r"python[0-9.]*")
_FLAGS = re.compile(r"-[a-zA-Z]*[^cm]")  # -c and -m name what is run
# Wrappers whose options are skipped up to the first known program.
_SEEKING = names(
    "apptainer singularity docker podman podman-hpc shifter enroot charliecloud ch-run conda mamba"
    " micromamba pixi poetry pipenv pdm hatch rye uv nsys ncu rocprof rocprofv3 perf strace ltrace"
    " xvfb-run catchsegv wandb py-spy memray scalene viztracer dbus-run-session sg newgrp sudo"
    " aws-vault op dotenv chronic script ddtrace-run"
)
_MPI = names("mpirun mpiexec mpirun_rsh aprun jsrun ibrun prun orterun mpiexec.hydra")
_REMOTE = frozenset({"ssh", "pdsh", "clush", "rsh"})
_SIMPLE: dict[str, frozenset[str]] = {
    "time": frozenset({"-o", "-f"}),
    "nohup": frozenset(),
    "exec": frozenset({"-a"}),
    "command": frozenset(),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "setsid": frozenset(),
    "unbuffer": frozenset(),
    "numactl": frozenset({"-i", "-p", "-m", "-N", "-C", "-P", "-w"}),
    "eatmydata": frozenset(),
    "builtin": frozenset(),
    "chrt": frozenset(),
}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


@dataclass(frozen=True)
class WrappedStart:
    """How a program is started on the nodes."""

    kind: str  # ``srun``, ``mpi`` or ``remote``
    options: Mapping[str, str]  # long names of srun's options and their values, empty for a flag
    line: int  # its line
    vague: bool = False  # True if some of its options are unknown


@dataclass
class Peeled:
    """A command without its wrappers."""

    args: list[Arg]  # the remaining program and arguments
    step: WrappedStart | None = None  # the job step that it is part of
    env: dict[str, str] = field(default_factory=dict)  # variables that wrappers set for it
    wrappers: tuple[str, ...] = ()  # their names


def base_name(text: str) -> str:
    """Return a program's name without its folder."""
    return os.path.basename(text)


def peel(args: list[Arg]) -> Peeled:
    """Remove all wrappers from a command."""
    peeled = Peeled(list(args))
    # srun env timeout apptainer ... python is a chain of five; a longer one is no handwritten line.
    for _ in range(12):
        if not peeled.args:
            break
        name = base_name(peeled.args[0].text)
        consumed = _take(name, peeled)
        # A wrapper without a program behind it is the program: srun alone opens nothing here.
        if consumed is None or consumed >= len(peeled.args) + (name in ("srun", *_MPI)):
            break
        peeled.wrappers += (name,)
        peeled.args = peeled.args[consumed:]
    return peeled


def _take(name: str, peeled: Peeled) -> int | None:
    """Return the number of arguments that belong to a wrapper, None if it is not a wrapper."""
    args = peeled.args
    if name == "srun":
        step, consumed = _srun(args)
        # Of srun within srun the outer one decides where processes start.
        peeled.step = peeled.step or step
        return consumed
    if name in _MPI:
        peeled.step = peeled.step or WrappedStart("mpi", {}, args[0].line)
        return _seek(args)
    if name in _REMOTE:
        peeled.step = peeled.step or WrappedStart("remote", {}, args[0].line)
        return _seek(args)
    if name == "env":
        return _env(args, peeled.env)
    if name == "timeout":
        # One more word than the options: the duration.
        return _plain(args, frozenset({"-s", "-k", "--signal", "--kill-after"})) + 1
    if name == "taskset":
        return _plain(args, frozenset()) + 1
    if name in _SIMPLE:
        return _plain(args, _SIMPLE[name])
    if name in _SEEKING:
        return _seek_behind(name, args)
    return None


def _srun(args: list[Arg]) -> tuple[WrappedStart, int]:
    options: dict[str, str] = {}
    at, vague = 1, False
    while at < len(args):
        arg = args[at]
        if arg.loose:
            # unknown options or the program itself: a known program decides
            program = _seek(args[at:]) + at
            vague, at = True, program if program < len(args) else at
            break
        if arg.text == "--":
            at += 1
            break
        if not arg.text.startswith("-") or arg.text == "-":
            break
        at += _srun_option(args, at, options)
    return WrappedStart("srun", options, args[0].line, vague), at


def _srun_option(args: list[Arg], at: int, options: dict[str, str]) -> int:
    text = args[at].text
    if text.startswith("--"):
        typed, equals, value = text[2:].partition("=")
        name = canonical(typed, SRUN) or typed
        if equals or not takes_value(name, SRUN):
            options[name] = value
            return 1
    else:
        name, value = canonical(text[1], SRUN) or text[1], text[2:]
        if not takes_value(name, SRUN):
            options[name] = ""
            # -lu is -l -u: flags of one letter may stand together.
            if value and value.isalpha():
                options.update({canonical(char, SRUN) or char: "" for char in value})
            return 1
        if value:
            options[name] = value.removeprefix("=")
            return 1
    options[name] = args[at + 1].text if at + 1 < len(args) else ""
    return 2


def _seek(args: list[Arg]) -> int:
    """Return the index of the first known program, or the number of arguments."""
    for at in range(1, len(args)):
        if _PROGRAM.match(args[at].text):
            return at
    return len(args)


def _seek_behind(name: str, args: list[Arg]) -> int | None:
    program = _seek(args)
    if args[program - 1].text in ("-n", "-p", "--name", "--prefix"):
        program = _seek(args[program:]) + program  # an environment with the name of a program
    if program < len(args):
        # A program behind a script is an argument of the script.
        scripts = [at for at in range(1, program) if args[at].text.endswith(".py")]
        return None if scripts else program
    # `uv run train.py` runs the file with the environment's python.
    if name in ("uv", "poetry", "pdm", "pixi", "rye", "pipenv", "hatch") and any(
        a.text.endswith(".py") for a in args
    ):
        at = next(at for at, arg in enumerate(args) if arg.text.endswith(".py"))
        args.insert(at, Arg("python", args[0].line))
        return at
    return None


def _env(args: list[Arg], env: dict[str, str]) -> int:
    at = 1
    while at < len(args):
        text = args[at].text
        if _ASSIGNMENT.match(text):
            name, _, value = text.partition("=")
            env[name] = value
        elif text in ("-u", "-C", "-S"):
            at += 1
        elif not text.startswith("-"):
            break
        at += 1
    return at


def _plain(args: list[Arg], with_value: frozenset[str]) -> int:
    at = 1
    while at < len(args) and args[at].text.startswith("-") and args[at].text != "-":
        at += 2 if args[at].text in with_value else 1
    return at


def nested(args: list[Arg]) -> Arg | None:
    """Return the script argument of ``bash -c`` and other shells, or None."""
    if len(args) < 3 or base_name(args[0].text) not in ("bash", "sh", "zsh", "ksh"):
        return None
    for at in range(1, len(args) - 1):
        text = args[at].text
        if not text.startswith("-"):
            return None
        if re.fullmatch(r"-[a-z]*c[a-z]*", text):
            return args[at + 1]
    return None


def runs_stdin(args: list[Arg]) -> bool:
    """Return whether Python runs what it reads, as ``python`` and ``python -u -`` do."""
    if not _PYTHON.fullmatch(base_name(args[0].text)):
        return False
    words = (arg.text for arg in args[1:])
    return next(dropwhile(_FLAGS.fullmatch, words), "-") == "-"
