"""The result of interpreting a script: the programs that it starts and the variables that it sets.
Data only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.diagnose.lint.job.shell.values import Arg, Symbols, Value
from paceline.diagnose.lint.job.shell.wrappers import Step, base_name

# Signals, handler and line of a ``trap``.
Trap = tuple[tuple[str, ...], str, int]


@dataclass(frozen=True)
class Call:
    """A program that the script starts.

    Attributes:
        args: The program and its arguments, without wrappers.
        line: First line of the command.
        end_line: Last line of the command.
        place: ``batch`` or ``node``.
        step: The job step (srun, mpirun, ssh) that it runs in, or None for the batch shell itself.
        env: Exported variables that it sees, as far as known.
        maybe: True if it runs only under an unknown condition.
        looped: True inside a loop.
        background: True if it runs in the background.
        wrappers: Names of its wrappers: ``apptainer``, ``uv``, ``time``.
        chained: True if a broken line continuation truncates it: further arguments are on the next
            line.
        folder: The working folder after ``cd``, empty without one.
    """

    args: tuple[Arg, ...]
    line: int
    end_line: int
    place: str
    step: Step | None
    env: Mapping[str, Value]
    maybe: bool = False
    looped: bool = False
    background: bool = False
    wrappers: tuple[str, ...] = ()
    chained: bool = False
    folder: str = ""

    @property
    def name(self) -> str:
        """The program without its folder."""
        return base_name(self.args[0].text) if self.args else ""


@dataclass(frozen=True)
class Setting:
    """A variable that the script sets.

    Attributes:
        name: The variable.
        value: Its value, with symbols.
        line: Its line.
        exported: True if programs see it.
        place: The shell that sets it, as in `Call`.
        maybe: True under an unknown condition.
    """

    name: str
    value: Value
    line: int
    exported: bool
    place: str
    maybe: bool


@dataclass(frozen=True)
class Submitted:
    """A job script inside the script, passed to ``sbatch``.

    Attributes:
        kind: ``heredoc``, or ``wrap`` for the text of ``--wrap``.
        text: As it is written.
        line: Its first line.
        quoted: True if the shell that submits it expands nothing in it.
        options: True if the command line has options, which override those of the script.
    """

    kind: str
    text: str
    line: int
    quoted: bool
    options: bool


@dataclass
class Trace:
    """The commands and settings of a script.

    Attributes:
        symbols: The symbols of all values.
        calls: Programs in order.
        settings: Variables in order.
        traps: Signal handlers in order.
        sourced: True if the script sources a file whose content is unknown.
        waits: True if the script waits for background programs.
        broken: Lines whose backslash is followed by blanks, in scripts inside the script.
        submitted: Job scripts that the script passes to ``sbatch``.
    """

    symbols: Symbols
    calls: list[Call] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    traps: list[Trap] = field(default_factory=list)
    sourced: bool = False
    waits: bool = False
    broken: list[int] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
