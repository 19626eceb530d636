"""``paceline requeue``: queue a job again whose run can resume; its script calls this at its end.

``decide`` says whether: after a stop by a signal or the time limit, or the loss of a node, if there
is a checkpoint to resume from. Nobody watches a job script, so the command never changes the exit
status of the job, and an error of paceline itself prints a line and does not fail the job.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import env
from paceline.errors import EXIT_OK, EXIT_UNFINISHED, Finding
from paceline.launch.outcome import evidence
from paceline.machine import slurm_commands as commands
from paceline.rundir import events
from paceline.rundir.events import History
from paceline.rundir.files import RunDir
from paceline.slurm import job_states, record, sbatch
from paceline.slurm.job_states import COMPLETING, RUNNING, JobState
from paceline.slurm.record import NODE_LOST, UNFINISHED, JobRecord, Requeue
from paceline.slurm.request import clock
from paceline.text import terminal
from paceline.text.quoting import word
from paceline.world import expand_nodelist

# How often a job is queued again from the same step: further nodes may fail, or a start be
# preempted early, although nothing is wrong with the run.
_MAX_FRUITLESS = 2
# Exit statuses of a run that was stopped by one of the signals that Slurm may be asked to send.
_STOPPED = tuple(128 + number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2))
# Messages after which Slurm may have carried out the command all the same.
_UNSURE = re.compile(
    r"timed out|unable to contact|socket|communication|connection|transmitted|standby",
    re.IGNORECASE,
)
_TRIES, _PAUSE_S, _ANSWER_S = 3, 3.0, 15.0


@dataclass(frozen=True)
class Decision:
    """Whether and how a job is queued again."""

    why: str = ""  # ``"unfinished"`` or ``"node-lost"``; empty if the job is not queued again
    step: int = 0  # step from which the run resumes
    exclude: tuple[str, ...] = ()  # nodes that the next start must not use
    finding: Finding | None = None  # why the job is not queued again, if the user should know
    # whether the run trained, and keeps its checkpoints outside of the run folder
    elsewhere: bool = False


@dataclass(frozen=True)
class _Refusal:
    """Why a job was not put back into the queue."""

    text: str  # slurm's message
    sure: bool = True  # whether the job is certainly not queued again; without an answer it may be


def requeue(folder: Path, *, status: int) -> int:
    """Queue this job again if its run can resume, and return 0 in any case."""
    job_id = env.slurm_job()
    if status == EXIT_OK or not job_id:
        if not job_id:
            terminal.say("requeue is for job scripts: SLURM_JOB_ID is not set")
        return EXIT_OK
    try:
        _requeue(RunDir(folder), status, job_id)
    except Exception as error:  # the exit status of the job stays that of its run
        terminal.say(f"the job cannot be queued again: {type(error).__name__}: {error}")
    return EXIT_OK


def _requeue(run_dir: RunDir, status: int, job_id: str) -> None:
    # the script may be the user's own, or submitted again manually
    job = (record.read(run_dir) or JobRecord(job_id)).under(job_id)
    last = evidence.last_checkpoint(run_dir.checkpoints)
    job_state = job_states.full(job)
    if job_state is not None and job_state.state != RUNNING:
        return  # the job is being cancelled, or was already queued again, as Lightning does
    history = events.read_history(run_dir.root, since_ns=job_states.last_start_ns(job, job_state))
    decision = decide(
        status,
        job=job,
        history=history,
        last_step=last.step if last else None,
        nodelist=env.read(env.JOB_NODELIST) or "",
        limit=_limit_words(job_state, time.time()),
    )
    if decision.finding is not None:
        _show(decision.finding)
    if decision.why:
        _carry_out(run_dir, job, decision, job_state=job_state)


def decide(
    status: int,  # exit status of the run
    *,
    job: JobRecord,
    history: History,  # the events of the run's last start
    last_step: int | None,  # step of the last checkpoint, None if there is none
    nodelist: str,  # nodes of the job as Slurm writes them
    limit: str = "",  # how long this start ran, and its time limit, in words; empty if unknown
) -> Decision:
    """Decide whether a job is queued again. Pure."""
    why = _why(status, job, history)
    if not why:
        return Decision(finding=_not_saved(job, status) if status in _STOPPED else None)
    lost = history.outcome.lost if history.outcome and why == NODE_LOST else ()
    step = last_step or 0
    if why == NODE_LOST and last_step is None and history.steps:
        return Decision(finding=_no_checkpoint(job))
    # A script that keeps its checkpoints elsewhere says by its status that it saved, if it has
    # trained.
    has_worked = history.steps != 0
    elsewhere = status == EXIT_UNFINISHED and last_step is None and has_worked
    if not elsewhere and _times_from(job, step) >= _MAX_FRUITLESS:
        return Decision(finding=_no_progress(why, job, step, limit))
    return Decision(why=why, step=step, exclude=_names(lost, nodelist), elsewhere=elsewhere)


def _why(status: int, job: JobRecord, history: History) -> str:
    if status == EXIT_UNFINISHED:
        return UNFINISHED
    lost = status != EXIT_OK and history.outcome is not None and history.outcome.lost
    if lost:
        return NODE_LOST if job.on_node_loss == "requeue" else ""
    # stopped before the first step, for example by preemption: there was nothing new to save. After
    # scancel this code does not run, since scancel ends the job script too.
    stopped = history.outcome is None or history.outcome.stopped
    return UNFINISHED if status in _STOPPED and stopped and not history.steps else ""


def _times_from(job: JobRecord, step: int) -> int:
    """Return how often in a row the job was queued again to resume from this step."""
    times = 0
    for entry in reversed(job.requeues):
        if entry.step < step:
            break
        times += 1
        if entry.elsewhere:  # the start before it made progress, which no step shows
            break
    return times


def _names(lost: Sequence[tuple[int, str]], nodelist: str) -> tuple[str, ...]:
    """Return Slurm's names of lost nodes: by host name, else by position in the job's node list."""
    try:
        nodes = expand_nodelist(nodelist)
    except ValueError:
        return ()
    short = {node.partition(".")[0]: node for node in nodes}
    names = []
    for rank, host in lost:
        by_name = short.get(host.partition(".")[0])
        if by_name or rank < len(nodes):
            names.append(by_name or nodes[rank])
    return tuple(dict.fromkeys(names))


def _limit_words(job_state: JobState | None, now_s: float) -> str:
    if job_state is None or job_state.start_s is None or job_state.limit_s is None:
        return ""
    ran_s = max(0, now_s - job_state.start_s)
    return f"this start ran for {clock(ran_s)} of its time limit, --time {clock(job_state.limit_s)}"


def _no_progress(why: str, job: JobRecord, step: int, limit: str) -> Finding:
    fruitless, starts = _times_from(job, step), len(job.requeues) + 1
    if not step and fruitless == len(job.requeues) and not job.requeues[0].elsewhere:
        fruitless += 1  # the first start saved nothing either
    which = (
        f"the last {fruitless} starts have" if fruitless < starts else f"all {starts} starts have"
    )
    if why == UNFINISHED:
        cause = "was stopped"
        fix = (
            "a longer --time, or a larger --grace-s, so that a start gets past a checkpoint; save"
            " more often"
        )
    else:
        cause = "lost a node"
        fix = "sinfo -R shows which nodes are down; exclude them: --exclude NODES; save more often"
    return Finding(
        "slurm-job-ended",
        f"the run {cause}, and {which} saved nothing new: the job is not queued again, it would go"
        " round for ever",
        where=f"job {job.job_id}",
        evidence=(
            f"{starts} starts, last checkpoint: " + (f"step {step}" if step else "none"),
            *([limit] if limit and why == UNFINISHED else []),
        ),
        fix=fix,
    )


def _no_checkpoint(job: JobRecord) -> Finding:
    return Finding(
        "slurm-job-ended",
        "the run lost a node, and has no checkpoint to continue from: the job is not queued again",
        where=f"job {job.job_id}",
        fix="save from time to time: session.save(), or Trainer(save_every=...)",
    )


def _not_saved(job: JobRecord, status: int) -> Finding:
    return Finding(
        "slurm-job-ended",
        f"the run received a stop signal and has not saved (status {status}): the job is not"
        " queued again",
        where=f"job {job.job_id}",
        why=(
            "a job is queued again when all ranks have saved and end with status"
            f" {EXIT_UNFINISHED}, as a Session does"
        ),
        fix="paceline explain not-saved-at-stop",
    )


def _carry_out(
    run_dir: RunDir, job: JobRecord, decision: Decision, *, job_state: JobState | None
) -> None:
    """Queue the job again, or submit it as a new job if the site forbids requeueing."""
    exclude = _possible(run_dir, job, decision.exclude, job_state)
    entry = Requeue(decision.step, time.time_ns(), decision.why, decision.elsewhere)
    updated = replace(job, requeues=(*job.requeues, entry))
    # before the requeue, since Slurm then ends this script within moments
    record.write(run_dir, updated)
    allowed = job_state is None or job_state.requeue is not False
    failure = _requeue_or_refusal(job, decision, exclude) if allowed else _Refusal("--no-requeue")
    if failure is None:
        return
    if not failure.sure:
        # if the job was queued after all, a second one would write the same checkpoints
        record.write(run_dir, job)
        command = " ".join(map(word, ("sbatch", *record.sbatch_words(run_dir, job.job_id))))
        terminal.say(
            f"Slurm does not say whether job {job.job_id} is queued again ({failure.text});"
            f" squeue --me shows it; if it is not: {command}"
        )
        return
    cannot = f"job {job.job_id} cannot be queued again ({failure.text})"
    result = _submit(run_dir, job, exclude)
    number, _, cluster = result.out.strip().partition(";")
    if result.status != 0 or not number.isdigit():
        record.write(run_dir, job)
        maybe = "; squeue --me shows whether it was after all" if sbatch.unsure(result) else ""
        terminal.say(f"{cannot}, nor submitted again: {_first_line(result)}{maybe}")
        return
    number += record.element_of(job.job_id)
    record.write(run_dir, updated.resubmitted(number, cluster))
    terminal.say(f"{cannot}: submitted as job {number}{_words(decision, exclude)}")


def _requeue_or_refusal(
    job: JobRecord, decision: Decision, exclude: Sequence[str]
) -> _Refusal | None:
    """Queue the job again; return why that failed, or None."""
    with _sigterm_ignored():
        failure = _request_requeue(job)
        if failure is not None:
            return failure
        if exclude:  # Slurm accepts this only for a pending job
            commands.run(
                "scontrol", "update", f"JobId={job.job_id}", f"ExcNodeList={','.join(exclude)}"
            )
        terminal.say(f"job {job.job_id} is queued again{_words(decision, exclude)}")
    return None


def _request_requeue(job: JobRecord) -> _Refusal | None:
    """Call ``scontrol requeue`` until Slurm has answered; return why the job is not queued."""
    refused = None
    for number in range(_TRIES):
        if number:
            time.sleep(_PAUSE_S)
        result = commands.run("scontrol", "requeue", job.job_id, timeout_s=_ANSWER_S)
        if result.status == 0:
            return None
        is_sure = result.status != commands.UNANSWERED and not _UNSURE.search(result.err)
        refused = _Refusal(_first_line(result), is_sure)
        if is_sure and number == 0:
            return refused
        # without an answer the requeue may have succeeded; Slurm then refuses the next attempt
        state = job_states.state(job).state
        if state is None:
            refused = replace(refused, sure=False)
        elif state.waits or state.state == COMPLETING:  # until this script has ended
            return None
        elif state.state != RUNNING:
            return replace(refused, sure=False)
        elif is_sure:
            return refused
    return refused


@contextlib.contextmanager
def _sigterm_ignored() -> Iterator[None]:
    """Ignore SIGTERM, with which Slurm ends this script before the nodes are excluded."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _submit(run_dir: RunDir, job: JobRecord, exclude: Sequence[str], *more: str) -> commands.Reply:
    excluded = (f"--exclude={','.join(exclude)}",) if exclude else ()
    script = record.sbatch_words(run_dir, job.job_id)
    words = ("sbatch", "--parsable", *excluded, *more, *script)
    return commands.run(*words, environ=commands.outside())


def _possible(
    run_dir: RunDir, job: JobRecord, lost: Sequence[str], job_state: JobState | None
) -> tuple[str, ...]:
    """Return the nodes to exclude: lost and excluded ones; none if too few nodes would remain.

    Slurm holds a job permanently if no nodes remain for it, so ``sbatch --test-only`` is called
    first.
    """
    if not lost:
        return ()
    before = job_state.excluded if job_state is not None else ""
    excluded = expand_nodelist(before) if before else []
    nodes = tuple(dict.fromkeys([*excluded, *lost]))
    return nodes if _submit(run_dir, job, nodes, "--test-only").status == 0 else ()


def _words(decision: Decision, exclude: Sequence[str]) -> str:
    where = f", to continue from step {decision.step}" if decision.step else ""
    return where + (f", without {', '.join(exclude)}" if exclude else "")


def _first_line(result: commands.Reply) -> str:
    return next(
        (line.strip() for line in result.err.splitlines() if line.strip()),
        f"status {result.status}",
    )


def _show(finding: Finding) -> None:
    terminal.show(finding.render(), sys.stderr)
