"""Implement ``paceline call``: make the call of a job in this process, without a launcher.

A job of one process needs no rendezvous, and its function may not need torch, whose import would
take longer than many functions. What it leaves in its run folder is what a launcher leaves: the
exception, and how the run has ended. ``conclude`` records the latter for a process that was killed.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline import env
from paceline.errors import EXIT_FAILED, EXIT_OK, Finding, UsageError
from paceline.launch.in_rank import rank_entry
from paceline.launch.plan.task import MODULE, RankTask
from paceline.rundir import events, owned
from paceline.rundir.files import IN_JOB, RunDir

if TYPE_CHECKING:
    from paceline.launch.outcome.report import Stop

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def call(folder: Path) -> int:
    """Make the call of a run folder; return 0 when the function has returned.

    Raises SystemExit with the run's status if it has not, UsageError if the folder has no call, and
    OSError if it cannot be written.
    """
    run_dir = RunDir(folder.absolute())
    if not run_dir.arguments.exists():
        what = f"{folder} is not the run folder of a function"
        fix = "paceline.submit(function, argument) makes one"
        where = str(run_dir.arguments)
        raise UsageError.of("input-unreadable", what, where=where, fix=fix)
    attempt = run_dir.next_attempt()
    run_dir.create()
    env.put(env.RUN_DIR, str(run_dir.root))
    _record_start(run_dir, attempt)
    process = os.getpid()
    # rank_entry replaces the descriptor by one that closerange does not reach, and keeps that
    crash = owned.open_to_write(run_dir.crash(0, attempt), owned.APPEND)
    task = RankTask(
        local_rank=0,
        kind=MODULE,
        target=IN_JOB,
        error_file=str(run_dir.error(0, attempt)),
        crash=crash,
    )
    try:
        rank_entry.run(task)
    except SystemExit as stop:
        status = _status_of(stop)
        if os.getpid() == process and status != EXIT_OK:  # a fork of the function is not it
            judge(run_dir, status)
        raise
    _record_outcome(run_dir, EXIT_OK)
    return EXIT_OK


def _status_of(stop: SystemExit) -> int:
    """Return the exit status that Python makes of a SystemExit."""
    if stop.code is None:
        return EXIT_OK
    # The kernel keeps eight bits of a status; anything but a number is printed, and is 1.
    return stop.code & 0xFF if isinstance(stop.code, int) else EXIT_FAILED


def _record_start(run_dir: RunDir, attempt: int) -> None:
    events.append(
        run_dir.events(0),
        node=0,
        kind="start",
        attempt=attempt,
        ranks=[0],
        pids=[os.getpid()],
        world_size=1,
        host=socket.gethostname(),
        launcher=os.getpid(),
    )


def _record_outcome(run_dir: RunDir, status: int, findings: Sequence[Finding] = ()) -> None:
    events.append(
        run_dir.events(0),
        node=0,
        kind="outcome",
        exit_status=status,
        findings=[finding.to_json() for finding in findings],
        summary={},
    )


def conclude(folder: Path, *, status: int) -> None:
    """Record how a call has ended that was killed before it could do so itself.

    Nothing is done if a launcher ran in the folder. ``status`` is the one that shells have: 128 +
    the signal that ended it.
    """
    run_dir = RunDir(folder)
    if status == EXIT_OK or not is_direct(run_dir):
        return
    if events.read_history(run_dir.root).outcome is None:
        judge(run_dir, status)


def is_direct(run_dir: RunDir) -> bool:
    """Return whether a folder has the call of a function, and no launcher has run there."""
    return run_dir.arguments.exists() and not run_dir.plan().exists()


def judge(run_dir: RunDir, status: int) -> None:
    """Find out why a call has not returned, and record it as a launcher does."""
    from paceline.launch.outcome import evidence, report
    from paceline.launch.outcome.rank_exit import RankExit
    from paceline.rundir.files import display_path

    attempt = run_dir.next_attempt() - 1
    outputs = (run_dir.job_output, run_dir.local_output)
    output = next((path for path in outputs if path.exists()), outputs[0])
    history = events.read_history(run_dir.root)
    # Of a call that was killed the job script speaks, which is another process.
    host, pid = history.launchers[-1] if history.launchers else (socket.gethostname(), 0)
    end = RankExit(
        rank=0,
        host=host,
        pid=pid,
        code=128 - status if status > 128 else status,  # negative for a signal, as Popen has it
        time_ns=time.time_ns(),
        failure=evidence.read_failure(run_dir.error(0, attempt)),
        log=display_path(output),
        log_tail=evidence.read_tail(output),
        stack=evidence.read_stack(run_dir.crash(0, attempt)),
        shm=evidence.shm_pressure(),
    )
    run = report.Run(ends=(end,), folder=display_path(run_dir.root), stops=_stops(status))
    run = replace(run, last=evidence.last_checkpoint(run_dir.checkpoints))
    concluded = report.conclude(run)
    _record_outcome(run_dir, concluded.exit_status, concluded.findings)


def _stops(status: int) -> tuple[Stop, ...]:
    """Return the signal that has stopped a process from outside, if one has."""
    from paceline.launch.outcome.report import Stop

    if status - 128 not in _STOPS:
        return ()
    number = signal.Signals(status - 128)
    return (Stop(number, number.name, "", socket.gethostname(), time.time_ns()),)
