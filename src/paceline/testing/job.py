"""What the test process sends to its ranks, and what they answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

# How a job begins. GROUP: torchrun's variables are set and the default group is there. VARIABLES:
# only the variables. BARE: no variables, and a group where there are several ranks, which is what
# the tests of paceline's own Session need.
GROUP, VARIABLES, BARE = "group", "variables", "bare"

# How a rank's part of a job ends.
RETURNED, FAILED, SKIPPED, XFAILED = "returned", "failed", "skipped", "xfailed"
ENDED, STUCK = "ended", "stuck"
# Faults that a test injects, after which the rank gives no answer.
DIED_ON_PURPOSE, HANGS_ON_PURPOSE = "died on purpose", "hangs on purpose"
AS_PLANNED = (RETURNED, SKIPPED, XFAILED, DIED_ON_PURPOSE, HANGS_ON_PURPOSE)


@dataclass(frozen=True)
class Start:
    """How the ranks of a job find each other.

    Attributes:
        world_size: Number of ranks.
        kind: ``GROUP``, ``VARIABLES`` or ``BARE``.
        store: File of the store in which the group meets.
        port: The port that ``MASTER_PORT`` names.
        collective_timeout_s: Timeout of the group's collectives, in seconds.
    """

    world_size: int
    kind: str
    store: str
    port: int
    collective_timeout_s: float


@dataclass(frozen=True)
class ModuleSource:
    """A module of the tests, as the test process has imported it.

    Attributes:
        name: Its full name.
        file: Its file; empty for a package without one.
        search: Where a package looks for its modules; None if it is not a package.
        is_rewritten: Whether pytest has rewritten its assertions.
    """

    name: str
    file: str
    search: tuple[str, ...] | None
    is_rewritten: bool


@dataclass(frozen=True)
class Job:
    """One call that ranks make.

    Attributes:
        start: How they find each other.
        environ: The environment of the test process.
        folder: Its working folder.
        path: Its ``sys.path``.
        modules: Modules to import before ``call`` is unpickled, parents first.
        call: ``(warning filters, function, arguments, keyword arguments)``, pickled.
        shows_locals: Whether tracebacks show local variables.
        is_short: Whether tracebacks show single lines.
    """

    start: Start
    environ: dict[str, str] = field(repr=False)
    folder: str
    path: tuple[str, ...]
    modules: tuple[ModuleSource, ...]
    call: bytes = field(repr=False)
    shows_locals: bool = False
    is_short: bool = False


@dataclass(frozen=True)
class RankWarning:
    """A warning that a rank has raised: what ``warnings.warn_explicit`` takes."""

    message: str
    category: bytes
    file: str
    line: int


@dataclass(frozen=True)
class Outcome:
    """How one rank's part of a job has ended.

    Attributes:
        kind: ``RETURNED`` or another of the constants above.
        time_s: When, on the monotonic clock of this machine.
        value: What the function has returned, pickled; empty without a value.
        headline: The exception in one line, or the reason of a skip.
        text: The traceback, or the stacks of a rank that is stuck.
        place: ``test_x.py:12``, the innermost line of the test's own code; empty if unknown.
        exception: The exception, pickled; empty if it cannot be.
        warnings: Warnings that were raised and not turned into errors.
    """

    kind: str
    time_s: float = 0.0
    value: bytes = field(default=b"", repr=False)
    headline: str = ""
    text: str = ""
    place: str = ""
    exception: bytes = field(default=b"", repr=False)
    warnings: tuple[RankWarning, ...] = ()


@dataclass(frozen=True)
class PerRank:
    """Stands for an argument that each rank makes for itself.

    Attributes:
        name: ``rank`` or ``monkeypatch``.
    """

    name: str
