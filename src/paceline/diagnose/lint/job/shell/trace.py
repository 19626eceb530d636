"""The result of interpreting a script: the programs that it starts and the variables that it sets.
Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.diagnose.lint.job.shell.values import Arg, Symbols, Value
from paceline.diagnose.lint.job.shell.wrappers import WrappedStart, base_name

# Signals, handler, line and place (``batch`` or ``node``) of a ``trap``.
Trap = tuple[tuple[str, ...], str, int, str]


@dataclass(frozen=True)
class CommandCall:
    """A program that the script starts."""

    args: tuple[Arg, ...]  # the program and its arguments, without wrappers
    line: int  # first line of the command
    end_line: int  # last line of the command
    place: str  # ``batch`` or ``node``
    # the job step (srun, mpirun, ssh) that it runs in, or None for the batch shell itself
    step: WrappedStart | None
    env: Mapping[str, Value]  # exported variables that it sees, as far as known
    maybe: bool = False  # True if it runs only under an unknown condition
    looped: bool = False  # True inside a loop
    background: bool = False  # True if it runs in the background
    wrappers: tuple[str, ...] = ()  # names of its wrappers: ``apptainer``, ``uv``, ``time``
    # True if a broken line continuation truncates it: further arguments are on the next line
    chained: bool = False
    folder: str = ""  # the working folder after ``cd``, empty without one

    @property
    def name(self) -> str:
        """The program without its folder."""
        return base_name(self.args[0].text) if self.args else ""


@dataclass(frozen=True)
class TracedValue:
    """A variable that the script sets."""

    name: str  # the variable
    value: Value  # its value, with symbols
    line: int  # its line
    exported: bool  # True if programs see it
    place: str  # the shell that sets it, as in `Call`
    maybe: bool  # True under an unknown condition


@dataclass(frozen=True)
class Submitted:
    """A job script inside the script, passed to ``sbatch``."""

    kind: str  # ``heredoc``, or ``wrap`` for the text of ``--wrap``
    text: str  # as it is written
    line: int  # its first line
    quoted: bool  # True if the shell that submits it expands nothing in it
    options: bool  # True if the command line has options, which override those of the script


@dataclass
class Trace:
    """The commands and settings of a script."""

    symbols: Symbols  # the symbols of all values
    calls: list[CommandCall] = field(default_factory=list)  # programs in order
    settings: list[TracedValue] = field(default_factory=list)  # variables in order
    traps: list[Trap] = field(default_factory=list)  # signal handlers in order
    sourced: bool = False  # True if the script sources a file whose content is unknown
    waits: bool = False  # True if the script waits for background programs
    # lines whose backslash is followed by blanks, in scripts inside the script
    broken: list[int] = field(default_factory=list)
    # Python that the script writes into a here-document for the interpreter, as it is run
    python: list[Arg] = field(default_factory=list)
    # job scripts that the script passes to ``sbatch``
    submitted: list[Submitted] = field(default_factory=list)
