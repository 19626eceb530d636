"""Parse a command line into wrappers, the launcher, its options and the script. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from paceline.diagnose.lint.job import launches
from paceline.diagnose.lint.job.launcher_options import TABLES
from paceline.diagnose.lint.job.shell import wrappers
from paceline.diagnose.lint.job.shell.trace import CommandCall
from paceline.diagnose.lint.job.shell.values import Arg, Symbols
from paceline.diagnose.lint.job.shell.wrappers import WrappedStart
from paceline.errors import UsageError, closest, option_invalid

KINDS = (
    "torchrun",
    "torch.distributed.launch",
    "accelerate launch",
    "fabric run",
    "deepspeed",
    "paceline run",
)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_OPERATOR = re.compile(r"[;&|<>]|\d?>.*|&&|\|\|")
_EXAMPLE = "paceline translate -- torchrun --nproc-per-node 2 train.py"


@dataclass(frozen=True)
class LauncherCommand:
    """One start of another launcher."""

    assigned: tuple[str, ...]  # variable assignments before the command
    wrappers: tuple[str, ...]  # the words before the launcher: ``srun --nodes 2``
    ends_with_env: bool  # whether the last wrapper is ``env``, which accepts variable assignments
    launcher: str  # the launcher as typed: a program, or a Python
    kind: str  # the launcher's kind, one of ``KINDS``
    options: Mapping[str, str]  # its options by their own names; ``""`` for a flag
    script: str  # the script or module that it starts
    arguments: tuple[str, ...]  # the script's arguments
    step: WrappedStart | None  # the srun or mpirun that it is started by
    # whether ``$NAME`` in a word is a variable that no shell has expanded yet
    unexpanded: bool = False


def parse(
    words: Sequence[str],  # the command line, or one word that contains all of it
) -> LauncherCommand:
    """Parse a command line.

    Raises UsageError if the line is not exactly one start of a known launcher, or the launcher does
    not have one of its options.
    """
    is_one_line = len(words) == 1 and len(words[0].split()) > 1
    words = _split(words[0]) if is_one_line else list(words)
    assigned = list(takewhile(_ASSIGNMENT.match, words))
    rest = words[len(assigned) :]
    if not rest:
        raise option_invalid("no command is given", fix=_EXAMPLE)
    unwrapped = wrappers.peel([Arg(word, 1) for word in rest])
    command = [arg.text for arg in unwrapped.args]
    if wrappers.nested(unwrapped.args) is not None:
        raise option_invalid(
            f"{command[0]} -c runs another script",
            fix="translate the line inside the quotes, and put the result in its place",
        )
    call = CommandCall(tuple(unwrapped.args), 1, 1, "batch", unwrapped.step, {})
    launch = launches.recognise(call, Symbols()) if command else None
    if launch is None or launch.kind not in KINDS:
        raise _not_a_launcher(launch, command, step=unwrapped.step)
    _refuse_unknown_options(launch)
    if not launch.program:
        raise option_invalid(f"{launch.kind} has no script to start", fix=_EXAMPLE)
    return LauncherCommand(
        assigned=tuple(assigned),
        wrappers=tuple(rest[: len(rest) - len(command)]),
        ends_with_env=unwrapped.wrappers[-1:] == ("env",),
        launcher=command[0],
        kind=launch.kind,
        options=launch.options,
        script=launch.program,
        arguments=tuple(arg.text for arg in launch.arguments),
        step=unwrapped.step,
        unexpanded=is_one_line,
    )


def _split(line: str) -> list[str]:
    """Split a line as a shell does, without expansion."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise option_invalid(
            f"the line cannot be split into words: {error}", fix="close the quotes"
        ) from None
    if any(word.count("(") != word.count(")") for word in words):
        raise option_invalid(
            "parentheses with blanks in them are split", fix="put the $(...) into a variable first"
        )
    operator = next((word for word in words if _OPERATOR.fullmatch(word)), None)
    if operator is not None:
        raise option_invalid(
            f"{operator} joins several commands, or redirects one",
            fix=f"translate one command, without {operator} and what belongs to it",
        )
    return words


def _not_a_launcher(
    launch: launches.Launch | None, words: Sequence[str], *, step: wrappers.WrappedStart | None
) -> UsageError:
    line = shlex.join(words)
    is_python = launch is not None and launch.kind == launches.PYTHON
    script = launch.program if launch is not None else ""
    if is_python and step is not None:
        return option_invalid(
            f"{step.kind} starts every rank of {line} itself; paceline run is started once on each"
            " node",
            fix=f"srun --ntasks-per-node=1 paceline run {shlex.quote(script)} ...",
        )
    if is_python and script:
        what = f"{line} starts one process, without a launcher"
        return option_invalid(what, fix=f"paceline run {shlex.quote(script)} ...")
    program = launch.kind if launch is not None else next(iter(words), "it")
    return option_invalid(
        f"{program} is not a launcher that can be translated", fix=f"one of {', '.join(KINDS[:-1])}"
    )


def _refuse_unknown_options(launch: launches.Launch) -> None:
    names = TABLES[launch.kind].flags | TABLES[launch.kind].values
    unknown = [*launch.unknown, *(name for name in launch.options if name not in names)]
    if not unknown:
        return
    typed = unknown[0]
    near = closest(typed.lstrip("-").replace("-", "_"), names)
    raise UsageError.of(
        "option-unknown",
        f"{launch.kind} has no option {typed}",
        where="command line",
        fix=f"did you mean --{near}?" if near else f"{launch.kind} --help lists them",
    )
