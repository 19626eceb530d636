"""Explain the end of a job whose run recorded no outcome, from what Slurm reports. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.errors import EXIT_FAILED, Finding
from paceline.launch.outcome.block import MOST_LINES
from paceline.launch.outcome.report import Report
from paceline.rundir import sweeps
from paceline.rundir.events import Outcome
from paceline.slurm.job_states import CANCELLED, JobState
from paceline.slurm.record import JobRecord
from paceline.text.quoting import printable, word

# A launcher that was killed. srun then ends the others, and prints the same line for them later.
_SRUN = re.compile(
    r"srun: error: (\S+): tasks? \S+: (Killed|Terminated|Segmentation fault|Bus error|Aborted).*"
)
_MAX_EVIDENCE_LINES = 6  # lines of the output that a finding shows
_LOST = re.compile(r"srun: error: Node failure on (\S+)")


@dataclass(frozen=True)
class _Ending:
    """How a job ended, with placeholders such as ``{job}``."""

    what: str  # the first line of the finding
    fix: str  # what to do
    finding: str = "slurm-job-ended"  # name of the finding


# By the state in Slurm; the first three are endings that the state alone does not distinguish.
_LAUNCHER_KILLED, _NODE_KNOWN, _NEVER_STARTED = "launcher killed", "node known", "never started"
_ENDINGS: Mapping[str, _Ending] = {
    "TIMEOUT": _Ending(
        "Slurm ended {name} at its time limit, before its run had ended",
        "longer: --time; or in time: a larger --grace-s; {again}",
        "slurm-time-limit",
    ),
    "OUT_OF_MEMORY": _Ending(
        "{name} was killed because it exceeded the memory limit",
        "a larger --mem, fewer or leaner DataLoader workers, or a smaller batch",
        "rank-died-oom-killer",
    ),
    CANCELLED: _Ending(
        "{name} was cancelled",
        "a user cancelled it, or a job that it depends on has failed; {again}",
    ),
    _NEVER_STARTED: _Ending(
        "{name} was cancelled before it started",
        "a user cancelled it, or a job that it depends on has failed; {again}",
    ),
    "NODE_FAIL": _Ending(
        "{name} ended because a node failed", "sinfo -R shows which nodes are down; {again}"
    ),
    _NODE_KNOWN: _Ending(
        "{name} ended because {node} failed", "sinfo -R shows which nodes are down; {again}"
    ),
    "PREEMPTED": _Ending(
        "{name} was preempted by another job",
        "{again}; with --requeue Slurm queues it again automatically",
    ),
    "BOOT_FAIL": _Ending("{name} ended because a node did not boot", "{again}"),
    "LAUNCH_FAILED": _Ending(
        "{name} could not be launched on its nodes",
        "{again}; if it fails again, ask the site's administrators",
    ),
    "DEADLINE": _Ending("{name} ended at its deadline", "a later --deadline, or a shorter --time"),
    "REVOKED": _Ending(
        "{name} was revoked: another cluster runs it", "squeue --federation -j {job}"
    ),
    "FAILED": _Ending(
        "{name} failed, and its run recorded no cause", "the cause is in its output: less {log}"
    ),
    _LAUNCHER_KILLED: _Ending(
        "{name} failed: the launcher on {node} was ended first: {signal}",
        "find out what killed it: a user, or the memory limit (sacct -j {job} -o MaxRSS,State);"
        " {again}",
    ),
}
_OTHER = _Ending("{name} ended in state {state}", "{again}")


def judge(
    job: JobState | None,  # state of the job, None if Slurm has forgotten it
    record: JobRecord,  # the run's record of the job
    *,
    log: str,  # path of the job's output
    tail: Sequence[str],  # last lines of the output
    script: str,  # path of the job script, to submit it again
) -> Finding:
    """Return the finding for a job that has ended although its run recorded no outcome."""
    name = f"job {record.job_id}" + (f" ({record.name})" if record.name else "")
    words = ("sbatch", *sweeps.element_option(record.job_id), script)
    again = f"to submit it again: {' '.join(map(word, words))}"
    output = tuple(tail[-_MAX_EVIDENCE_LINES:])
    if job is None:
        return Finding(
            "slurm-job-ended",
            f"Slurm no longer knows {name}, and its run recorded no outcome",
            where=log,
            evidence=output,
            fix=f"sacct -j {record.job_id} where the site keeps accounts; {again}",
        )
    key, details = _classify(job, record, tail)
    ending = _ENDINGS.get(key, _OTHER)
    values = {"name": name, "again": again, "job": record.job_id, "log": word(log), **details}
    return Finding(
        ending.finding,
        ending.what.format(**values),
        where=f"{job.nodes} ({log})" if job.nodes else log,
        evidence=(_slurm_summary(job), *output),
        fix=ending.fix.format(**values),
    )


def _classify(job: JobState, record: JobRecord, tail: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the key of a job's ending, and the values of its further placeholders."""
    killed = next((match for line in tail if (match := _SRUN.match(line))), None)
    if job.state == "FAILED" and killed:
        return _LAUNCHER_KILLED, {"node": killed[1], "signal": killed[2]}
    lost = next((match for line in tail if (match := _LOST.match(line))), None)
    if job.state == "NODE_FAIL" and lost:
        return _NODE_KNOWN, {"node": lost[1]}
    if job.state == CANCELLED and not job.nodes and not (record.cancelled and record.has_begun):
        return _NEVER_STARTED, {}
    return job.state, {"state": job.state}


def _slurm_summary(job: JobState) -> str:
    parts = [f"Slurm: {job.state}"]
    if job.reason:
        parts.append(f"reason {job.reason}")
    if job.exit_code or job.signal:
        parts.append(f"signal {job.signal}" if job.signal else f"exit code {job.exit_code}")
    if job.restarts:
        parts.append(f"queued again {job.restarts} time{'' if job.restarts == 1 else 's'}")
    return ", ".join(parts)


def report(finding: Finding, *, folder: str) -> Report:
    """Return the final report for a finding, in the form of a failed run's."""
    first, *rest = finding.render().split("\n")
    head = f"{finding.what}   [{finding.code} {finding.name}]" if first else first
    spare_lines = MOST_LINES - len(rest) - 2
    if spare_lines < 0:  # shorten the evidence, which follows the line "where:"
        place = 1 + bool(finding.where)
        rest = [*rest[:place], *rest[place - spare_lines :]]
    last = f"exit status {EXIT_FAILED} · run folder {folder}"
    return Report(EXIT_FAILED, [printable(line) for line in (head, *rest, last)], [finding])


def from_outcome(outcome: Outcome, *, folder: str) -> Report:
    """Return the final report of a run from its events, if its own report cannot be read."""
    last = f"exit status {outcome.exit_status} · run folder {folder}"
    if outcome.exit_status == 0:
        return Report(0, [f"the run has succeeded · run folder {folder}"])
    lines = [line for finding in outcome.findings[:1] for line in finding.render().splitlines()]
    return Report(
        outcome.exit_status, [printable(line) for line in (*lines, last)], list(outcome.findings)
    )


_HELD_BACK = "a job that was queued again is held back, usually for two minutes"
# Reasons that end without any action; Priority and Resources need no explanation.
_PASSING: Mapping[str, str] = {
    "Dependency": "it waits for another job",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved: sinfo -R",
    "Reservation": "its reservation has not begun",
    "Licenses": "it waits for a licence",
    "Cleaning": "its nodes are being cleaned up after the start before",
}
# These last until somebody changes something. An entry is a pattern of the whole reason.
_LASTING: Mapping[str, str] = {
    "PartitionNodeLimit": "it requests more nodes than its partition gives to a job: fewer --nodes",
    "PartitionTimeLimit": "it requests more time than its partition gives: a shorter --time",
    "PartitionDown|PartitionInactive": "its partition is closed: sinfo shows which are up",
    "AccountNotAllowed|InvalidAccount": "its account may not use this partition: another --account",
    "InvalidQOS": "its quality of service is not valid here",
    "QOSNotAllowed": "its quality of service may not use this partition",
    "BadConstraints": (
        "no nodes of this cluster have all that it requests: scancel it, and request less"
    ),
    "DependencyNeverSatisfied": "the job that it waits for has failed: scancel it",
    "JobHeldUser": "you hold it: scontrol release",
    "JobHeldAdmin": "an administrator holds it, or it failed to start too often: ask the site",
    r"launch_failed_requeued_held|JobHoldMaxRequeue": (
        "it failed to start and is held: scontrol release"
    ),
    "NodeDown": "a node that it needs is down",
    r"(Assoc|QOS|MaxCpuPer|MaxMem|MaxGRES)\w*(GRES|GPU)\w*": (
        "it and your other jobs exceed the limit of GPUs"
    ),
    r"(Assoc|QOS)\w*Cpu\w*": "it and your other jobs exceed the limit of CPUs",
    r"(Assoc|QOS)\w*Mem\w*": "it and your other jobs exceed the limit of memory",
    r"(Assoc|QOS)\w*Node\w*": "it and your other jobs exceed the limit of nodes",
    r"(Assoc|QOS)\w*(Wall|Minutes|BillingMinutes|RunMinutes)\w*": (
        "the time that the account or QOS gives is used up, or --time exceeds it"
    ),
    r"(Assoc|QOS)\w*Job\w*": "as many of your jobs run as may at a time",
}


def explain(
    reason: str,  # Slurm's reason
    *,
    again: bool = False,  # whether the job has run before, and was queued again
) -> str:
    """Explain a reason and what would change it; empty for reasons that need no explanation."""
    name = re.split(r"[ ,(]", reason, maxsplit=1)[0]
    if name == "BeginTime":
        return _HELD_BACK if again else ""
    if name in _PASSING:
        return _PASSING[name]
    return next((words for pattern, words in _LASTING.items() if re.fullmatch(pattern, name)), "")
