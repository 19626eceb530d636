"""What nodes tell each other at the end of a run, and what becomes of it."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

from paceline.errors import Finding
from paceline.launch.outcome import node_account
from paceline.launch.outcome.node_account import NodeAccount
from paceline.launch.outcome.rank_exit import RankExit
from paceline.launch.outcome.report import Run, Stop
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand

HANG = Finding("nccl-hang-at-init", "rank 1 hangs", where="host-a")
WARNING = Finding("straggler", "host-b is slow", where="host-b", severity="warning")


def ended(rank):
    return RankExit(rank=rank, host="host", pid=10 + rank, code=0, time_ns=1000)


def account(rank, **values):
    resume_command = ResumeCommand(line=f"line of {rank}")
    return NodeAccount(resume_command, ends=[ended(rank)], counters=[{"rank": rank}], **values)


FULL = account(
    0,
    stop=Stop(signal.SIGTERM, "SIGTERM", "the terminal", "host-a", 2000),
    last=Checkpoint("folder/step-3", 3, 30),
    hang=HANG,
    noticed_hang=HANG,
    noticed=[WARNING],
    saving="folder/step-4",
)


def test_an_account_travels_as_json():
    assert NodeAccount.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
    little = account(1, noticed=[])
    assert NodeAccount.from_json(json.loads(json.dumps(little.to_json()))) == little


def test_times_are_moved_to_the_heads_clock():
    moved = FULL.shifted(400)
    assert (moved.stop.time_ns, moved.ends[0].time_ns) == (1600, 600)
    assert account(1).shifted(400).stop is None


def test_the_run_is_made_of_all_nodes():
    newer = Checkpoint("folder/step-5", 5, 50)
    other = account(1, last=newer, noticed=[WARNING])
    run = node_account.join([FULL, other], Run(folder="folder", attempts=2, seconds=9.0))
    assert [end.rank for end in run.ends] == [0, 1]
    assert [pulse["rank"] for pulse in run.counters] == [0, 1]
    assert (run.folder, run.attempts, run.seconds) == ("folder", 2, 9.0)
    assert run.resume_command == FULL.resume_command, "all nodes print the line of the first"
    assert run.last == newer
    assert run.stops == [FULL.stop]
    assert (run.hang, run.noticed_hang, run.noticed) == (HANG, HANG, [WARNING])
    assert run.saving == "folder/step-4"


def test_the_first_hang_counts_and_nothing_is_made_up():
    first, second = account(0), account(1, hang=replace(HANG, where="host-b"))
    run = node_account.join([first, second], Run())
    assert run.hang.where == "host-b"
    assert (run.noticed_hang, run.last, run.saving, run.stops, run.noticed) == (
        None,
        None,
        "",
        [],
        [],
    )
