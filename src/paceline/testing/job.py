"""What the test process sends to its ranks, and what they answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.launch.monitor.proof import Call

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
    """How the ranks of a job find each other."""

    world_size: int  # number of ranks
    kind: str  # ``GROUP``, ``VARIABLES`` or ``BARE``
    store: str  # file of the store in which the group meets
    port: int  # the port that ``MASTER_PORT`` names
    collective_timeout_s: float  # timeout of the group's collectives, in seconds


@dataclass(frozen=True)
class ModuleSource:
    """A module of the tests, as the test process has imported it."""

    name: str  # its full name
    file: str  # its file; empty for a package without one
    # where a package looks for its modules; None if it is not a package
    search: tuple[str, ...] | None
    is_rewritten: bool  # whether pytest has rewritten its assertions


@dataclass(frozen=True)
class Job:
    """One call that ranks make."""

    start: Start  # how they find each other
    environ: dict[str, str] = field(repr=False)  # environment of the test process
    folder: str  # its working folder
    path: tuple[str, ...]  # its ``sys.path``
    # modules to import before ``call`` is unpickled, parents first
    modules: tuple[ModuleSource, ...]
    # ``(warning filters, function, arguments, keyword arguments)``, pickled
    call: bytes = field(repr=False)
    shows_locals: bool = False  # tracebacks show local variables
    is_short: bool = False  # tracebacks show single lines


@dataclass(frozen=True)
class RankWarning:
    """A warning that a rank has raised: what ``warnings.warn_explicit`` takes."""

    message: str
    category: bytes
    file: str
    line: int


@dataclass(frozen=True)
class Outcome:
    """How one rank's part of a job has ended."""

    kind: str  # ``RETURNED`` or another of the constants above
    time_s: float = 0.0  # when, on the monotonic clock of this machine
    # what the function has returned, pickled; empty without a value
    value: bytes = field(default=b"", repr=False)
    headline: str = ""  # the exception in one line, or the reason of a skip
    text: str = ""  # the traceback, or the stacks of a rank that is stuck
    place: str = ""  # ``test_x.py:12``, the innermost line of the test's own code; empty if unknown
    # the exception, pickled; empty if it cannot be
    exception: bytes = field(default=b"", repr=False)
    # the collectives that a rank which failed had called
    calls: tuple[Call, ...] = ()
    warnings: tuple[RankWarning, ...] = ()  # warnings that were raised and not turned into errors


@dataclass(frozen=True)
class PerRank:
    """Stands for an argument that each rank makes for itself."""

    name: str  # ``rank`` or ``monkeypatch``
