"""Explain the end of a job whose run recorded no outcome, from what Slurm says. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from paceline.errors import EXIT_FAILED, Finding
from paceline.launch.outcome.block import MOST_LINES
from paceline.launch.outcome.report import Report
from paceline.rundir.events import Outcome
from paceline.slurm.jobstate import JobState
from paceline.slurm.record import JobRecord
from paceline.text.quoting import printable, word

# A launcher that was killed; srun then ends the other launchers, for which it prints the same line
# later.
_SRUN = re.compile(
    r"srun: error: (\S+): tasks? \S+: (Killed|Terminated|Segmentation fault|Bus error|Aborted).*"
)
_MAX_EVIDENCE_LINES = 6  # lines of the output that a finding shows
_LOST = re.compile(r"srun: error: Node failure on (\S+)")
_MEANING = {
    "CANCELLED": (
        "was cancelled",
        "somebody did so on purpose, or a job that it depended on has failed; {again}",
    ),
    "NODE_FAIL": ("ended because a node failed", "sinfo -R tells which nodes are down; {again}"),
    "PREEMPTED": (
        "was preempted by another job",
        "{again}; with --requeue Slurm queues it again by itself",
    ),
    "BOOT_FAIL": ("ended because a node did not boot", "{again}"),
    "LAUNCH_FAILED": (
        "could not be launched on its nodes",
        "{again}; if it fails again, tell the site",
    ),
    "DEADLINE": ("ended at its deadline", "a later --deadline, or a shorter --time"),
    "REVOKED": ("was revoked: another cluster runs it", "squeue --federation -j {job}"),
    "FAILED": ("failed, and its run has not told why", "the cause is in its output: less {log}"),
}


def judge(
    job: JobState | None, record: JobRecord, *, log: str, tail: Sequence[str], script: str
) -> Finding:
    """Return the finding for a job that has ended although its run recorded no outcome.

    Args:
        job: State of the job, None if Slurm has forgotten it.
        record: The run's record of the job.
        log: Path of the job's output.
        tail: Last lines of the output.
        script: Path of the job script, to submit it again.
    """
    name = f"job {record.job_id}" + (f" ({record.name})" if record.name else "")
    again = f"to submit it again: sbatch {word(script)}"
    where = f"{job.nodes} ({log})" if job and job.nodes else log
    if job is None:
        return Finding(
            "slurm-job-ended",
            f"Slurm does not know {name} any more, and its run has not told its end",
            where=where,
            evidence=tuple(tail[-_MAX_EVIDENCE_LINES:]),
            fix=f"sacct -j {record.job_id} where the site keeps accounts; {again}",
        )
    evidence = (_slurm_summary(job), *tail[-_MAX_EVIDENCE_LINES:])
    if job.state == "TIMEOUT":
        what = f"Slurm ended {name} at its time limit, before its run had ended by itself"
        fix = f"longer: --time; or in time: a larger --grace-s; {again}"
        return Finding("slurm-time-limit", what, where=where, evidence=evidence, fix=fix)
    if job.state == "OUT_OF_MEMORY":
        what = f"{name} was killed because it exceeded the memory that it was given"
        fix = "--mem with more, fewer or leaner DataLoader workers, or a smaller batch"
        return Finding("rank-died-oom-killer", what, where=where, evidence=evidence, fix=fix)
    first = next((match for line in tail if (match := _SRUN.match(line))), None)
    if job.state == "FAILED" and first:
        what = f"{name} failed: the launcher on {first[1]} was ended first: {first[2]}"
        fix = (
            f"ask whoever may have killed it: a user, or the memory limit (sacct -j {job.job_id} -o"
            " MaxRSS,State)"
        )
        return Finding(
            "slurm-job-ended", what, where=where, evidence=evidence, fix=f"{fix}; {again}"
        )
    lost = next((match[1] for line in tail if (match := _LOST.match(line))), "")
    if job.state == "NODE_FAIL" and lost:
        what, fix = (
            f"{name} ended because {lost} failed",
            _MEANING["NODE_FAIL"][1].format(again=again),
        )
        return Finding("slurm-job-ended", what, where=where, evidence=evidence, fix=fix)
    meaning, fix = _MEANING.get(job.state, (f"ended in state {job.state}", "{again}"))
    if job.state == "CANCELLED" and not job.nodes:
        meaning = "was cancelled before it started"
    fix = fix.format(again=again, job=record.job_id, log=word(log))
    return Finding("slurm-job-ended", f"{name} {meaning}", where=where, evidence=evidence, fix=fix)


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
    """Return the final report of a run from its events, where the one that it printed cannot be
    read.
    """
    last = f"exit status {outcome.exit_status} · run folder {folder}"
    if outcome.exit_status == 0:
        return Report(0, [f"the run has succeeded · run folder {folder}"])
    lines = [line for finding in outcome.findings[:1] for line in finding.render().splitlines()]
    return Report(
        outcome.exit_status, [printable(line) for line in (*lines, last)], list(outcome.findings)
    )
