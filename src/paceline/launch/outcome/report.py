"""The final report of a run: exit status, last lines and findings. Pure."""

from __future__ import annotations

import errno
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import EXIT_FAILED, EXIT_OK, EXIT_UNFINISHED, Finding, PacelineError
from paceline.launch.channel.silence import Loss
from paceline.launch.monitor import bottleneck, rare_delays, stage_times, step_parts
from paceline.launch.monitor.bottleneck import RunFacts
from paceline.launch.monitor.rare_delays import RareDelay
from paceline.launch.monitor.stage_times import Step, StepTime
from paceline.launch.outcome import block, resume, root_cause, weight
from paceline.launch.outcome.rank_exit import RankExit
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand
from paceline.machine import agreement
from paceline.text.secret_texts import hidden_in
from paceline.text.wording import few, fold, named, shorten

# Codes of faults that loading the checkpoint again would meet again.
_CHECKPOINT = "CKP"
# What is looked at once, at the end, so that its full text stands directly above the last lines.
_JUST_PRINTED = ("parameters-not-finite", "loss-not-finite", "loop-draws-numbers")
# With these no result is that of one rank.
_OTHER_DATA = ("data-not-shardable", "same-data-on-all-ranks")
# Signals that are sent to many processes together arrive within this time.
_AT_ONCE_NS = 1_000_000_000


@dataclass
class Report:
    """How a run ended, as one node's launcher reports it."""

    exit_status: int  # the exit status of the command
    lines: list[str]  # the last lines to print
    findings: list[Finding] = field(default_factory=list)  # all findings about the run
    summary: dict[str, Any] = field(default_factory=dict)  # figures of a run that succeeded
    blamed: str = ""  # the ranks or nodes that failed first, in words; empty if unknown
    causes: Sequence[int] = ()  # these ranks

    def to_json(self) -> dict[str, Any]:
        """Return the data that ``--json`` prints."""
        return {
            "exit_status": self.exit_status,
            "findings": [finding.to_json() for finding in self.findings],
            "summary": self.summary,
        }

    def for_others(self) -> Report:
        """Return the report with the secrets hidden of the commands that it says to paste."""
        findings = [replace(finding, fix=hidden_in(finding.fix)) for finding in self.findings]
        return replace(self, findings=findings)

    def framed(self) -> list[str]:
        """Return the last lines as printed; a failure has a rule above it."""
        if self.exit_status == EXIT_OK:
            return [f"paceline: {line}" for line in self.lines]
        return ["── paceline " + "─" * 60, *self.lines]


@dataclass(frozen=True)
class Stop:
    """What ended the run from outside: a signal, or ``--max-time``."""

    signum: int  # number of the signal; that of SIGTERM for ``--max-time``
    name: str  # name of the signal, or the option as typed
    sender: str  # the sender in words; empty for the option
    host: str  # host of the launcher that received it
    time_ns: int  # when it arrived, in nanoseconds on the head's clock

    @property
    def words(self) -> str:
        """The signal or option, and its sender."""
        return f"{self.name} from {self.sender} on {self.host}" if self.sender else self.name


@dataclass(frozen=True)
class Run:
    """The facts of a run that every report uses."""

    ends: Sequence[RankExit] = ()  # the exits of all ranks of all nodes that sent an account
    folder: str = ""  # the run folder; empty if there is none
    lost: Sequence[str] = ()  # lost nodes, in words
    ignored: Sequence[str] = ()  # kinds of messages in the store that nobody of the run has signed
    losses: Mapping[str, Loss] = field(default_factory=dict)  # why they are lost, by the same words
    stops: Sequence[Stop] = ()  # signals that launchers received
    attempts: int = 1  # number of attempts
    counters: Sequence[Mapping[str, Any]] = ()  # the counters of every rank, as plain data
    seconds: float = 0.0  # duration of the run
    # the resume command of the run
    resume_command: ResumeCommand = field(default_factory=ResumeCommand)
    last: Checkpoint | None = None  # the last committed checkpoint; None if there is none
    hang: Finding | None = None  # why the ranks hung, if they were stopped for a hang; else None
    # the cause that a notice named for a wait that lasted until the end
    noticed_hang: Finding | None = None
    noticed: Sequence[Finding] = ()  # warnings of all nodes
    # the unfinished checkpoint that was being written when the run was stopped; empty if none was
    saving: str = ""
    grace_s: int = 0  # seconds that ranks had between the signal and SIGKILL
    # steps whose stages all ranks have timed, by number: durations by rank
    timed_steps: Mapping[int, Step] = field(default_factory=dict)
    script: str = ""  # the script with its arguments, to paste; empty if it is not a script
    # what is known of its loss, for the last line
    loss: Mapping[str, Any] = field(default_factory=lambda: {"loss": "", "is_proven": None})

    @property
    def is_complete(self) -> bool:
        """Whether the exits of all ranks are known, and there are some."""
        return bool(self.ends) and not self.lost

    @property
    def to_resume(self) -> bool:
        """Whether all ranks have ended well, and some of them to be resumed."""
        if not self.is_complete or any(end.failed for end in self.ends):
            return False
        return any(end.unfinished for end in self.ends)

    @property
    def succeeded(self) -> bool:
        """Whether all ranks have ended well, at the end of their script."""
        return self.is_complete and all(end.succeeded for end in self.ends)


def conclude(run: Run) -> Report:
    """Decide the exit status, the last lines and the findings of a run whose ranks have ended.

    A signal explains the end unless a rank had failed before it. All nodes of a run report the
    same, because they start from the same records.
    """
    stop = min(run.stops, key=lambda stop: stop.time_ns, default=None)
    if stop is not None and not _failed_before(run.ends, stop):
        return _stopped(run, stop)
    if run.hang is None and run.succeeded:
        return _succeeded(run)
    if run.hang is None and run.to_resume:
        return _unfinished(run, "the script itself", where="")
    return _failed(run)


def _failed(run: Run) -> Report:
    verdict = root_cause.judge(
        run.ends,
        lost=run.lost,
        losses=run.losses,
        hang=run.hang,
        noticed=run.noticed_hang,
        counters=run.counters,
    )
    finding = root_cause.with_start(verdict.finding, run.noticed)
    finding = root_cause.with_meeting_fix(finding, run.ends)
    if verdict.lost:
        finding = replace(finding, evidence=(*_ignored(run), *finding.evidence))
    # ranks that the launcher could not let in look as if they called other collectives
    short = [one for one in run.noticed if one.name == "too-many-open-files"]
    if short and run.hang is None and (verdict.label or not verdict.causes):
        finding = replace(short[0], severity="error")
    verdict = replace(verdict, finding=finding, threads=root_cause.other_troubles(run.ends))
    was_lost = verdict.lost and not verdict.causes
    advise = resume.after_loss if was_lost else resume.after_failure
    is_in_vain = verdict.finding.code.startswith(_CHECKPOINT)
    resume_lines = [] if is_in_vain else advise(run.last, run.resume_command)
    lines = block.render(
        verdict,
        exit_status=EXIT_FAILED,
        run_dir=run.folder,
        attempts=run.attempts,
        resume_lines=resume_lines,
    )
    blamed = named(verdict.causes) if verdict.causes else ", ".join(verdict.lost)
    if verdict.label:
        blamed = "the cause below"
    found = [verdict.finding, *run.noticed]
    return Report(EXIT_FAILED, lines, found, blamed=blamed, causes=verdict.causes)


def _ignored(run: Run) -> tuple[str, ...]:
    """Return as evidence what another program has written into the run's store."""
    kinds = f"nobody of this run has signed {few(run.ignored, 3)}"
    return (f"another program writes into the run's store: {kinds}",) if run.ignored else ()


def _failed_before(ends: Sequence[RankExit], stop: Stop) -> bool:
    return any(
        end.failed
        and weight.weigh(end) == weight.CAUSE
        and end.first_ns < stop.time_ns
        and not _same_sender(end, stop)
        for end in ends
    )


def _same_sender(end: RankExit, stop: Stop) -> bool:
    """Return whether a rank died of the launcher's signal: Slurm signals a whole step at once."""
    return end.code == -stop.signum and stop.time_ns - end.time_ns < _AT_ONCE_NS


def _stopped(run: Run, stop: Stop) -> Report:
    if run.to_resume:
        return _unfinished(run, stop.words, where=stop.host)
    status = 128 + stop.signum
    what = f"the run was ended by {stop.words}{_how_far(run)}"
    finding = Finding(
        "stopped-by-signal",
        what,
        where=stop.host,
        evidence=root_cause.other_troubles(run.ends),
        severity="warning",
    )
    if stop.name == "SIGHUP":
        fix = "start it where it outlives the terminal: tmux, setsid, or a job scheduler"
        finding = replace(finding, name="sighup-terminal-closed", fix=fix)
    stood = root_cause.before_stop(run.ends, run.counters)
    if stood is not None:
        finding = replace(finding, evidence=stood.evidence, fix=finding.fix or stood.fix)
    finding = root_cause.with_meeting_fix(finding, run.ends)
    late = [end for end in run.ends if end.killed_after_s >= run.grace_s]
    if late and run.saving:
        finding = _grace_too_short(run, stop, late)
    return _stop_report(run, status, finding, resume.after_failure(run.last, run.resume_command))


def _grace_too_short(run: Run, stop: Stop, late: Sequence[RankExit]) -> Finding:
    ranks = fold(end.rank for end in late)
    return Finding(
        "grace-too-short",
        f"a checkpoint was not whole when the ranks were killed, {run.grace_s} s after"
        f" {stop.words}{_how_far(run)}",
        where=stop.host,
        evidence=(
            f"ranks still at work: {ranks}",
            f"written to since the signal, not committed: {run.saving}",
        ),
        fix=resume.describe_short_grace(run.grace_s, run.resume_command),
    )


def _unfinished(run: Run, by: str, *, where: str) -> Report:
    lines = resume.after_stop(run.last, run.resume_command)
    finding = Finding(
        "run-unfinished",
        f"stopped by {by}{_how_far(run)}, to be resumed",
        where=where,
        evidence=tuple(lines[:1]),
        fix=run.resume_command.line,
        severity="warning",
    )
    return _stop_report(run, EXIT_UNFINISHED, finding, lines)


def _stop_report(run: Run, status: int, finding: Finding, resume_lines: Sequence[str]) -> Report:
    """Return the report of a stopped run: the finding in a few lines, and how to resume."""
    lines = [f"{finding.what}   [{finding.code} {finding.name}]"]
    if finding.name != "run-unfinished":
        lines += [f"  {line}" for line in map(shorten, finding.evidence)]
    is_in_lines = any(finding.fix in line for line in resume_lines)
    if finding.fix and not is_in_lines:
        lines.append(f"  fix: {finding.fix}")
    lines.append(f"  {finding.more}")
    lines += root_cause.broken_in_stop(run.ends)
    folder = f" · run folder {run.folder}" if run.folder else ""
    lines += [*resume_lines, f"exit status {status}{folder}"]
    return Report(status, lines, [finding], blamed="the end of the run")


def _how_far(run: Run) -> str:
    steps = max((end.steps for end in run.ends), default=0)
    return f", after {_count(steps)}" if steps else ""


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _succeeded(run: Run) -> Report:
    figures = summarise(
        run.counters,
        seconds=run.seconds,
        step_time=stage_times.account(run.timed_steps.values()),
        rare=rare_delays.find(run.timed_steps),
    )
    hint = _bottleneck(run, figures)
    lines = render(figures, run_dir=run.folder, script=run.script, hint=hint)
    if figures.get("checks"):
        lines.insert(1, _same_result(run, figures))
    late = [end.rank for end in run.ends if end.code]
    if late:
        note = (
            f"note: {named(late)} crashed in the interpreter's teardown, after the script's end;"
            " the run succeeded"
        )
        lines.insert(0, note)
    lines[:0] = [f"note: {text}" for text in root_cause.other_troubles(run.ends)]
    # printed in full when it was noticed, which has scrolled away by now
    lines[:0] = [
        finding.render().splitlines()[0]
        for finding in run.noticed
        if finding.name not in _JUST_PRINTED
    ]
    findings = [*run.noticed, *([hint] if hint is not None else [])]
    return Report(EXIT_OK, lines, findings, summary=figures)


def _same_result(run: Run, figures: Mapping[str, Any]) -> str:
    """Return what the comparisons of ranks have shown, as one line."""
    names = {finding.name for finding in run.noticed}
    return agreement.last_line(
        checks=figures["checks"],
        step=figures["checked_step"],
        differs="replicas-differ" in names,
        is_other_data=not names.isdisjoint(_OTHER_DATA),
        others=[],
        **run.loss,
    )


def _bottleneck(run: Run, figures: Mapping[str, Any]) -> Finding | None:
    facts = RunFacts.of_ranks(run.counters, num_steps=figures["steps"], script=run.script)
    return bottleneck.finding_of(figures.get("step"), facts)


def refused(error: PacelineError) -> Report:
    """Return the report of a run that could not be started."""
    return Report(error.exit_status, error.finding.render().splitlines(), [error.finding])


def is_from_stranger(error: BaseException) -> bool:
    """Return whether torch could not read its state of the rendezvous, which it does not sign."""
    return type(error).__name__ == "RendezvousStateError"


def broken(error: BaseException, *, host: str, run: Run) -> Report:
    """Return the report of a run whose launcher could not continue."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    lost_store = text.startswith(("DistNetworkError", "RendezvousConnectionError"))
    if isinstance(error, EOFError):
        finding = Finding(
            "agent-died",
            "the process that starts the ranks was killed, and its ranks ended with it",
            where=host,
            fix="look for who ended it: a user, or the memory limit of the job",
        )
    elif is_from_stranger(error):
        finding = Finding(
            "port-held-by-other",
            "another program has written into the run's store: torch's rendezvous there is not"
            " valid any more",
            where=host,
            evidence=(*_ignored(run), text),
            fix="start again on another port, which only the nodes reach: docs/guides/trust.md",
        )
    elif lost_store:
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
            f"the launcher could not continue: {text}",
            where=host,
            fix="if this repeats, it is a fault of paceline; please report it with this text",
        )
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            fix = "ulimit -n 65536 before the start"
            finding = replace(finding, name="too-many-open-files", fix=fix)
    how_to_resume = resume.after_loss(run.last, run.resume_command) if lost_store else []
    lines = [*finding.render().splitlines(), *how_to_resume]
    return Report(EXIT_FAILED, lines, [finding])


# The counters and timed steps of a successful run as figures and lines


# Parts of a step below this share are not printed.
_LEAST_SHARE = 0.005
# A fact, not a finding: ranks may be apart on purpose, or exchange gradients in another way.
_APART = (
    "these ranks had no process group of torch.distributed: without another way to exchange"
    " gradients, each trained a model of its own"
)


def summarise(
    # ``rank, host, steps, seconds, data_s, own_s`` of every rank, and ``never_grouped``
    counters: Sequence[Mapping[str, Any]],
    *,
    seconds: float,  # duration of the whole run
    # where the time of the usual step went, if enough steps were timed
    step_time: StepTime | None = None,
    rare: Sequence[RareDelay] = (),  # what the usual step leaves out
) -> dict[str, Any]:
    """Return the figures of a run that succeeded."""
    stepping = [entry for entry in counters if entry["steps"] > 1 and entry["seconds"] > 0]
    summary: dict[str, Any] = {"ranks": len(counters), "seconds": round(seconds, 2), "steps": 0}
    if not stepping:
        return summary
    own = {entry["rank"]: entry["own_s"] / (entry["steps"] - 1) for entry in stepping}
    median = statistics.median(own.values())
    slowest = max(own, key=lambda rank: own[rank])
    hosts = {entry["rank"]: entry["host"] for entry in stepping}
    steps_per_s = statistics.median((entry["steps"] - 1) / entry["seconds"] for entry in stepping)
    return summary | {
        "steps": max(entry["steps"] for entry in stepping),
        "steps_per_s": steps_per_s,
        "data_share": statistics.median(entry["data_s"] / entry["seconds"] for entry in stepping),
        "slowest_rank": slowest,
        "slowest_host": hosts[slowest],
        "slowest_ratio": own[slowest] / median if median else 1.0,
        "step": rare_delays.describe(step_time, rare, hosts, mean_s=1 / steps_per_s),
        "ungrouped": len(stepping) > 1 and all(entry["never_grouped"] for entry in counters),
        "checks": min(entry.get("checks", 0) for entry in stepping),
        "checked_step": min(entry.get("checked_step", 0) for entry in stepping),
    }


def render(
    summary: Mapping[str, Any],  # what ``summarise`` returned
    *,
    run_dir: str,  # the run folder
    script: str = "",  # the script with its arguments, to paste; empty if unknown
    hint: Finding | None = None,  # what most steps waited for; see ``monitor.bottleneck``
) -> list[str]:
    """Return the last lines of a run that succeeded: three to five of them, and a hint."""
    ranks = f"{summary['ranks']} rank{'s' if summary['ranks'] != 1 else ''}"
    if not summary["steps"]:
        return [
            f"done: {ranks} in {summary['seconds']:.1f} s, no optimizer steps seen",
            f"run folder {run_dir}",
        ]
    done = (
        f"done: {ranks}, {summary['steps']} steps in {summary['seconds']:.1f} s, "
        f"{summary['steps_per_s']:.1f} steps/s a rank"
    )
    if summary["step"] is None:
        speed = _rates(summary)
    else:
        speed = step_lines(summary["step"], summary["ranks"])
        speed += [hint.render()] if hint is not None else _advice(summary, script)
    apart = [_APART] if summary["ungrouped"] else []
    return [done, *apart, *speed, f"run folder {run_dir}"]


def _rates(summary: Mapping[str, Any]) -> list[str]:
    """Return what is known where too few steps were timed."""
    line = f"waiting for data: {summary['data_share']:.1%} of the time"
    if summary["ranks"] > 1:
        line += (
            f" · slowest rank: {summary['slowest_rank']} on {summary['slowest_host']}, "
            f"{summary['slowest_ratio']:.2f}x the median outside backward"
        )
    return [line]


def step_lines(
    step: Mapping[str, Any],  # what ``stage_times.describe`` returned
    num_ranks: int,  # number of ranks
) -> list[str]:
    """Return where the time of a step went, and the rank that the others wait for, if proven."""
    named = step["named"]
    words = {"communication": "exposed communication", "waiting": _waiting(named)}
    parts = [
        f"{words.get(part, part)} {seconds / step['seconds']:.0%}"
        for part, seconds in step_parts.coarse(step, num_ranks).items()
        if seconds >= _LEAST_SHARE * step["seconds"]
    ]
    lines = [f"step {step_parts.usual_and_mean(step)}: {', '.join(parts)}"]
    return lines + step_parts.remarks(step)


def _waiting(named: Mapping[str, Any] | None) -> str:
    if named is None:
        return "waiting for the last rank"
    return f"waiting for rank {named['rank']} ({named['host']})"


def _advice(summary: Mapping[str, Any], script: str) -> list[str]:
    """Return a line about waiting for data, of a run that was too short for a hint."""
    step = summary["step"]
    wait = bottleneck.longest_wait(step_parts.coarse(step, summary["ranks"]))
    if wait != bottleneck.DATA:
        return []
    return [f"{bottleneck.waiting(wait, step)}: {bottleneck.tuning(script)}"]
