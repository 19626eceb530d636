"""What a script starts and sets, as far as it can be told without running it. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.diagnose.lint.job.values import Arg, Symbols, Value
from paceline.diagnose.lint.job.wrappers import Step, base_name


@dataclass(frozen=True)
class Call:
    """A program that the script starts.

    Attributes:
        args: The program and its arguments, wrappers taken off.
        line: First line of the command.
        end_line: Last line of the command.
        place: ``batch`` or ``node``.
        step: The job step (srun, mpirun, ssh) that it runs in, or None for the batch shell itself.
        env: Exported variables that it sees, as far as known.
        maybe: True if it runs only under a condition that is not known.
        looped: True inside a loop.
        background: True if the script goes on beside it.
        wrappers: Names of what stood before it: ``apptainer``, ``uv``, ``time``.
        chained: Truncated by a broken continuation: further arguments stand on the next line.
        folder: Where the script has changed to by ``cd``, empty if it has not.
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
        line: Where.
        exported: True if programs see it.
        place: Who sets it.
        maybe: True under a condition that is not known.
    """

    name: str
    value: Value
    line: int
    exported: bool
    place: str
    maybe: bool


@dataclass(frozen=True)
class Submitted:
    """A job script inside the script, handed to ``sbatch``.

    Attributes:
        kind: ``heredoc``, or ``wrap`` for the text of ``--wrap``.
        text: As it is written.
        line: Its first line.
        quoted: True if the shell that submits it expands nothing in it.
        options: True if options stand on the command line, which override those of the script.
    """

    kind: str
    text: str
    line: int
    quoted: bool
    options: bool


@dataclass
class Trace:
    """What a script does, as far as it can be told.

    Attributes:
        symbols: Those of all values.
        calls: Programs in order.
        settings: Variables in order.
        traps: ``(signals, handler, line)``.
        sourced: True if a file is included that cannot be read.
        waits: True if the script waits for what runs beside it.
        nounset: True under ``set -u``.
        broken: Lines whose backslash is followed by blanks, in scripts inside the script.
        submitted: Job scripts that the script hands to ``sbatch``.
    """

    symbols: Symbols
    calls: list[Call] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    traps: list[tuple[tuple[str, ...], str, int]] = field(default_factory=list)
    sourced: bool = False
    waits: bool = False
    nounset: bool = False
    broken: list[int] = field(default_factory=list)
    submitted: list[Submitted] = field(default_factory=list)
