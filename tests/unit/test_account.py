"""The account of a run: from how its ranks ended, and who was told to stop, to status and last lines."""

from __future__ import annotations

import json
import signal

import pytest

from paceline.errors import Finding, SetupError, UsageError
from paceline.launcher.account import Report, Run, Stop, broken, refused, tell
from paceline.launcher.outcome import Failure, RankEnd

S = 1_000_000_000
PULSES = [
    {"rank": rank, "host": "node-a", "steps": 11, "seconds": 5.0, "data_s": 0.5, "own_s": 2.0} for rank in range(2)
]


def stop(signum=signal.SIGTERM, at=5 * S, host="node-a"):
    return Stop(int(signum), signum.name, "pid 7 (slurmstepd)", host, at)


def fine(rank=0, **fields):
    return RankEnd(rank, code=0, **fields)


def failed(rank=0, at=4 * S, **fields):
    return RankEnd(rank, host="node-a", code=1, failure=Failure("ValueError", "no", at), **fields)


def told_to_stop(rank=0):
    return RankEnd(rank, host="node-a", code=-15, stopped="SIGTERM to the launcher", time_ns=6 * S, steps=40)


@pytest.mark.parametrize(
    ("run", "status", "name"),
    [
        (Run(ends=[fine(0), fine(1)], pulses=PULSES), 0, None),
        (Run(ends=[fine(0), RankEnd(1, code=-6, finished=True)], pulses=PULSES), 0, None),
        (Run(ends=[fine(0), failed(1)]), 1, "script-error-on-one-rank"),
        (Run(ends=[failed(0), failed(1)]), 1, "user-exception"),
        (Run(ends=[fine(0)], lost=["node 1"]), 1, "agent-died"),
        (Run(ends=[]), 1, "launcher-fault"),
        (Run(ends=[], stops=[stop()]), 143, "stopped-by-signal"),
        (Run(ends=[], stops=[stop(signal.SIGINT)]), 130, "stopped-by-signal"),
        (Run(ends=[told_to_stop(0), told_to_stop(1)], stops=[stop()]), 143, "stopped-by-signal"),
        (Run(ends=[fine(0), fine(1)], stops=[stop()]), 143, "stopped-by-signal"),
        # a rank that had failed by itself explains the end better than the signal that followed
        (Run(ends=[failed(0, at=4 * S), told_to_stop(1)], stops=[stop(at=5 * S)]), 1, "script-error-on-one-rank"),
        (Run(ends=[failed(0, at=6 * S), told_to_stop(1)], stops=[stop(at=5 * S)]), 143, "stopped-by-signal"),
        # the first signal of any node
        (Run(ends=[], stops=[stop(at=9 * S), stop(signal.SIGHUP, at=3 * S, host="node-b")]), 129, "stopped-by-signal"),
    ],
)
def test_exit_status_and_finding(run, status, name):
    report = tell(run)
    assert report.exit_status == status
    assert [finding.name for finding in report.findings] == ([name] if name else [])
    assert report.lines


def test_a_success_is_summarised():
    report = tell(Run(ends=[fine(0), fine(1)], pulses=PULSES, seconds=7.0, folder="runs/x"))
    assert report.lines[0] == "done: 2 ranks, 11 steps in 7.0 s, 2.0 steps/s a rank"
    assert report.lines[-1] == "run folder runs/x"
    assert report.summary["steps"] == 11
    assert all(line.startswith("paceline: ") for line in report.framed())


@pytest.mark.parametrize(("late", "who"), [([1], "rank 1"), ([0, 1, 2], "ranks 0-2")])
def test_a_crash_in_the_teardown_is_a_note(late, who):
    ends = [RankEnd(rank, code=-11 if rank in late else 0, finished=True) for rank in range(3)]
    report = tell(Run(ends=ends, pulses=PULSES))
    assert report.exit_status == 0
    assert report.lines[0].startswith(f"note: {who} crashed in the interpreter's teardown")


def test_a_stop_names_who_asked_for_it_and_how_far_the_run_was():
    report = tell(Run(ends=[told_to_stop(0)], stops=[stop(host="node-b")], folder="runs/x"))
    assert report.lines == [
        "the run was ended by SIGTERM from pid 7 (slurmstepd) on node-b, after 40 steps   [RUN014 stopped-by-signal]",
        "exit status 143 · run folder runs/x",
    ]
    assert report.findings[0].severity == "warning"


def test_a_failure_stands_out_and_ends_with_the_status():
    report = tell(Run(ends=[failed(0)], folder="runs/x", attempts=2))
    framed = report.framed()
    assert framed[0].startswith("── paceline ──")
    assert framed[1].startswith("likely cause: rank 0 raised ValueError: no")
    assert framed[-1] == "exit status 1 after 2 attempts · run folder runs/x"


@pytest.mark.parametrize(("kind", "status"), [(UsageError, 2), (SetupError, 2)])
def test_a_run_that_could_not_start(kind, status):
    finding = Finding("port-in-use", "taken", where="node-a", fix="another")
    report = refused(kind(finding))
    assert (report.exit_status, report.findings) == (status, [finding])
    assert report.lines == finding.render().splitlines()


class RendezvousTimeoutError(Exception):
    """As torch elastic names it."""


@pytest.mark.parametrize(
    ("error", "name", "says"),
    [
        (EOFError("the process that starts ranks is gone"), "agent-died", "starts the ranks was killed"),
        (RendezvousTimeoutError(), "rendezvous-timeout", "not enough nodes"),
        (RuntimeError("Broken pipe\nframe #0"), "launcher-fault", "RuntimeError: Broken pipe"),
        (KeyError("x"), "launcher-fault", "please report"),
    ],
)
def test_a_launcher_that_could_not_go_on(error, name, says):
    report = broken(error, host="node-a")
    assert report.exit_status == 1
    assert report.findings[0].name == name
    assert says in "\n".join(report.lines)
    assert not any("frame #0" in line for line in report.lines)


def test_a_report_is_plain_data():
    report = tell(Run(ends=[fine(0), failed(1)], folder="runs/x"))
    content = json.loads(json.dumps(report.to_json()))
    assert content["exit_status"] == 1
    assert content["findings"][0]["code"] == "RUN002"
    assert Report(0, []).to_json() == {"exit_status": 0, "findings": [], "summary": {}}
