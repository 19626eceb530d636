"""The account of a run that has ended: exit status, last lines and findings. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import EXIT_FAILED, EXIT_OK, Finding, PacelineError
from paceline.launcher import outcome, summary
from paceline.launcher.outcome import RankEnd


@dataclass
class Report:
    """How a run ended, as one node's launcher tells it.

    Attributes:
        exit_status: Of the command.
        lines: The last thing that is printed.
        findings: What was found.
        summary: Figures of a run that succeeded.
    """

    exit_status: int
    lines: list[str]
    findings: list[Finding] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        return {
            "exit_status": self.exit_status,
            "findings": [finding.to_json() for finding in self.findings],
            "summary": self.summary,
        }

    def framed(self) -> list[str]:
        """Return the last lines as printed; a failure stands out by a rule above it."""
        if self.exit_status == EXIT_OK:
            return [f"paceline: {line}" for line in self.lines]
        return ["── paceline " + "─" * 60, *self.lines]


@dataclass(frozen=True)
class Stop:
    """A signal that ended the run.

    Attributes:
        signum: Its number.
        name: Its name.
        sender: Who sent it, in words.
        host: Host of the launcher that got it.
        time_ns: When, on the head's clock.
    """

    signum: int
    name: str
    sender: str
    host: str
    time_ns: int


@dataclass(frozen=True)
class Run:
    """What every account needs to know of its run.

    Attributes:
        ends: How all ranks of all nodes ended, as far as they could be heard.
        folder: The run folder, empty if there is none.
        lost: Nodes that have gone silent, in words.
        stops: Signals that launchers got.
        attempts: How often ranks were started.
        pulses: What every rank has counted.
        seconds: How long the run took.
    """

    ends: Sequence[RankEnd] = ()
    folder: str = ""
    lost: Sequence[str] = ()
    stops: Sequence[Stop] = ()
    attempts: int = 1
    pulses: Sequence[Mapping[str, Any]] = ()
    seconds: float = 0.0


def tell(run: Run) -> Report:
    """Return the account of a run whose ranks have ended.

    A signal explains an end unless a rank had failed by itself before; all nodes of a run tell the same,
    because they start from the same records.
    """
    stop = min(run.stops, key=lambda stop: stop.time_ns, default=None)
    if stop is not None and not _failed_before(run.ends, stop):
        return _stopped(run, stop)
    if run.ends and not run.lost and all(end.succeeded for end in run.ends):
        return _succeeded(run)
    verdict = outcome.judge(run.ends, lost=run.lost)
    lines = outcome.block(verdict, exit_status=EXIT_FAILED, run_dir=run.folder, attempts=run.attempts)
    return Report(EXIT_FAILED, lines, [verdict.finding])


def _failed_before(ends: Sequence[RankEnd], stop: Stop) -> bool:
    return any(
        not end.succeeded and outcome.weigh(end) == outcome.CAUSE and end.first_ns < stop.time_ns for end in ends
    )


def _stopped(run: Run, stop: Stop) -> Report:
    status = 128 + stop.signum
    steps = max((end.steps for end in run.ends), default=0)
    finding = Finding(
        "stopped-by-signal",
        f"the run was ended by {stop.name} from {stop.sender} on {stop.host}"
        + (f", after {steps} steps" if steps else ""),
        where=stop.host,
        severity="warning",
    )
    folder = f" · run folder {run.folder}" if run.folder else ""
    lines = [f"{finding.what}   [{finding.code} {finding.name}]", f"exit status {status}{folder}"]
    return Report(status, lines, [finding])


def _succeeded(run: Run) -> Report:
    figures = summary.summarise(run.pulses, seconds=run.seconds)
    lines = summary.render(figures, run_dir=run.folder)
    late = [end.rank for end in run.ends if end.code]
    if late:
        lines.insert(
            0,
            f"note: {'rank' if len(late) == 1 else 'ranks'} {outcome.fold(late)} crashed in the interpreter's "
            "teardown, after the script's end; the run succeeded",
        )
    return Report(EXIT_OK, lines, summary=figures)


def refused(error: PacelineError) -> Report:
    """Return the account of a run that could not be started."""
    return Report(error.exit_status, error.finding.render().splitlines(), [error.finding])


def broken(error: BaseException, *, host: str) -> Report:
    """Return the account of a run whose launcher itself could not go on."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    if isinstance(error, EOFError):
        finding = Finding(
            "agent-died",
            "the process that starts the ranks was killed, and its ranks ended with it",
            where=host,
            fix="look for who ended it: a user, or the memory limit of the job",
        )
    elif text.startswith(("DistNetworkError", "RendezvousConnectionError")):
        finding = Finding(
            "agent-died",
            "the head, which hosts the run's store, has gone",
            where=host,
            evidence=(text,),
            fix="look at the head's own last lines, and start the run again",
        )
    elif "RendezvousTimeout" in text:
        finding = Finding(
            "rendezvous-timeout",
            "not enough nodes joined in time",
            where=host,
            evidence=(text,),
            fix="start the missing nodes, or give them longer: --rdzv-conf join_timeout=1200",
        )
    else:
        finding = Finding(
            "launcher-fault",
            f"the launcher could not go on: {text}",
            where=host,
            fix="if this repeats, it is a fault of paceline; please report it with this text",
        )
    return Report(EXIT_FAILED, finding.render().splitlines(), [finding])
