"""The account of a run: from how its ranks ended, and who was told to stop, to status and last lines."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from paceline.errors import Finding, SetupError, UsageError
from paceline.launch.monitor.position import Frame, Position
from paceline.launch.outcome.rank_exit import Failure, RankExit
from paceline.launch.outcome.report import Report, Run, Stop, broken, conclude, refused
from paceline.launch.outcome.resume import Checkpoint, ResumeCommand

S = 1_000_000_000
ONE, STOPPED = "script-error-on-one-rank", "stopped-by-signal"
UNFINISHED, TOO_SHORT = "run-unfinished", "grace-too-short"
SAVING = {"grace_s": 30, "saving": "c/.tmp"}
PULSES = [
    {
        "rank": rank,
        "host": "node-a",
        "steps": 11,
        "seconds": 5.0,
        "data_s": 0.5,
        "own_s": 2.0,
        "never_grouped": False,
    }
    for rank in range(2)
]


def run(*ends, **told):
    return Run(ends=list(ends), **told)


def stop(signum=signal.SIGTERM, at=5 * S, host="node-a"):
    return Stop(int(signum), signum.name, "pid 7 (slurmstepd)", host, at)


def fine(rank=0, **fields):
    return RankExit(rank, code=0, **fields)


def failed(rank=0, at=4 * S, **fields):
    return RankExit(rank, host="node-a", code=1, failure=Failure("ValueError", "no", at), **fields)


def to_resume(rank=0, **fields):
    return RankExit(rank, host="node-a", code=75, time_ns=6 * S, steps=40, **fields)


def killed(rank=0, after_s=30):
    told = {"stopped": "SIGTERM to the launcher", "stopped_ns": 6 * S}
    return RankExit(rank, host="node-a", code=-9, time_ns=(6 + after_s) * S, **told)


LIMIT = Stop(15, "--max-time 2h", "", "node-a", 5 * S)
LAST = Checkpoint("runs/x/checkpoints/00003-step-40", 3, 40)
AGAIN = ResumeCommand("paceline run --run-dir runs/x train.py")
LOOP = f"auto-resume: (trap exit INT; until {AGAIN.line}; do sleep 10; done)"
TO_RESUME = {"resume_command": AGAIN, "last": LAST}


def told_to_stop(rank=0):
    return RankExit(
        rank, host="node-a", code=-15, stopped="SIGTERM to the launcher", time_ns=6 * S, steps=40
    )


@pytest.mark.parametrize(
    ("run", "status", "name"),
    [
        (run(fine(0), fine(1), counters=PULSES), 0, None),
        (run(fine(0), RankExit(1, code=-6, finished=True), counters=PULSES), 0, None),
        (run(fine(0), failed(1)), 1, ONE),
        (run(failed(0), failed(1)), 1, "user-exception"),
        (run(fine(0), lost=["node 1"]), 1, "agent-died"),
        (run(), 1, "launcher-fault"),
        (run(stops=[stop()]), 143, STOPPED),
        (run(stops=[stop(signal.SIGINT)]), 130, STOPPED),
        (run(told_to_stop(0), told_to_stop(1), stops=[stop()]), 143, STOPPED),
        (run(fine(0), fine(1), stops=[stop()]), 143, STOPPED),
        # a rank that had failed by itself explains the end better than the signal that followed
        (run(failed(0, at=4 * S), told_to_stop(1), stops=[stop(at=5 * S)]), 1, ONE),
        (run(failed(0, at=6 * S), told_to_stop(1), stops=[stop(at=5 * S)]), 143, STOPPED),
        # to be resumed
        (run(to_resume(0), to_resume(1)), 75, UNFINISHED),
        (run(to_resume(0), to_resume(1), stops=[stop()]), 75, UNFINISHED),
        (run(to_resume(0), to_resume(1), stops=[LIMIT]), 75, UNFINISHED),
        (run(to_resume(0), fine(1)), 75, UNFINISHED),
        (run(to_resume(0), RankExit(1, code=-6, left=True)), 75, UNFINISHED),
        (run(told_to_stop(0), stops=[LIMIT]), 143, STOPPED),
        (run(told_to_stop(0), stops=[stop(signal.SIGUSR1)]), 138, STOPPED),
        # not by all ranks, so nothing vouches for what was saved
        (run(to_resume(0), failed(1, at=4 * S)), 1, ONE),
        (run(to_resume(0), failed(1, at=4 * S), stops=[stop(at=5 * S)]), 1, ONE),
        (run(to_resume(0), told_to_stop(1), stops=[stop()]), 143, STOPPED),
        (run(to_resume(0), RankExit(1, code=-9, stopped="x")), 1, "rank-ended-early"),
        (run(to_resume(0), lost=["node 1"]), 1, "agent-died"),
        # killed while they saved, because the time was over
        (run(killed(0), stops=[stop()], **SAVING), 143, TOO_SHORT),
        (run(to_resume(0), killed(1), stops=[stop()], **SAVING), 143, TOO_SHORT),
        (run(killed(0), stops=[stop(signal.SIGINT)], **SAVING), 130, TOO_SHORT),
        (run(killed(0), stops=[stop()], grace_s=30), 143, STOPPED),
        (run(killed(0, after_s=2), stops=[stop()], **SAVING), 143, STOPPED),
        (run(told_to_stop(0), stops=[stop()], **SAVING), 143, STOPPED),
        # Slurm sends to all processes at once, and a rank may be quicker than its launcher
        (run(RankExit(0, code=-15, time_ns=5 * S - 10**8), stops=[stop(at=5 * S)]), 143, STOPPED),
        (run(RankExit(0, code=-15, time_ns=2 * S), stops=[stop(at=5 * S)]), 1, "rank-died-signal"),
        (
            run(RankExit(0, code=-9, time_ns=5 * S - 10**8), stops=[stop(at=5 * S)]),
            1,
            "rank-died-signal",
        ),
        # the first signal of any node
        (
            run(stops=[stop(at=9 * S), stop(signal.SIGHUP, at=3 * S, host="node-b")]),
            129,
            "sighup-terminal-closed",
        ),
    ],
)
def test_exit_status_and_finding(run, status, name):
    report = conclude(run)
    assert report.exit_status == status
    assert [finding.name for finding in report.findings] == ([name] if name else [])
    assert report.lines


def test_a_success_is_summarised():
    report = conclude(run(fine(0), fine(1), counters=PULSES, seconds=7.0, folder="runs/x"))
    assert report.lines[0] == "done: 2 ranks, 11 steps in 7.0 s, 2.0 steps/s a rank"
    assert report.lines[-1] == "run folder runs/x"
    assert report.summary["steps"] == 11
    assert all(line.startswith("paceline: ") for line in report.framed())


@pytest.mark.parametrize(("late", "who"), [([1], "rank 1"), ([0, 1, 2], "ranks 0-2")])
def test_a_crash_in_the_teardown_is_a_note(late, who):
    ends = [RankExit(rank, code=-11 if rank in late else 0, finished=True) for rank in range(3)]
    report = conclude(Run(ends=ends, counters=PULSES))
    assert report.exit_status == 0
    assert report.lines[0].startswith(f"note: {who} crashed in the interpreter's teardown")


def test_a_stop_names_who_asked_for_it_and_how_far_the_run_was():
    report = conclude(run(told_to_stop(0), stops=[stop(host="node-b")], folder="runs/x"))
    assert report.lines == [
        "the run was ended by SIGTERM from pid 7 (slurmstepd) on node-b, after 40 steps   [RUN014 stopped-by-signal]",
        "  more: paceline explain RUN014",
        "exit status 143 · run folder runs/x",
    ]
    assert report.findings[0].severity == "warning"
    assert report.blamed == "the end of the run"  # a line is enough for what follows from it


IN_BARRIER = (
    Frame("train.py", 9, "<module>", "dist.barrier()", user=True),
    Frame("/x/torch/distributed/distributed_c10d.py", 1, "barrier"),
)
ASLEEP = (Frame("train.py", 11, "<module>", "time.sleep(600)", user=True),)


def standing(rank, frames, **fields):
    place = Position(rank, "node-a", idle_s=24.0, frames=frames, **{"still": True, **fields})
    return RankExit(rank, code=-15, stopped="SIGTERM to the launcher", standing=place)


WAITS = standing(0, IN_BARRIER, guard="if rank == 0: (train.py:8)")
HUNG = "  nothing had moved before: rank "


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            standing(1, ASLEEP),
            f"{HUNG}1 (node-a) has been stuck for 24 s in time.sleep(600) at train.py:11; rank 0 ",
        ),
        (
            standing(1, IN_BARRIER),
            f"{HUNG}0 (node-a) is in a collective that not all ranks reach: barrier, train.py:9",
        ),
        (standing(1, IN_BARRIER, moving=True), "  more:"),
        (standing(1, ASLEEP, active=True), "  more:"),  # it computes
        (standing(1, ASLEEP, still=False), f"{HUNG}1 (node-a) has been stuck for 24 s"),  # it polls
        (told_to_stop(1), "  more:"),  # its node's ranks made progress
    ],
)
def test_a_run_that_stood_still_says_at_its_stop_where_each_rank_was(other, line):
    report = conclude(run(WAITS, other, stops=[stop()]))
    assert report.lines[1].startswith(line)
    has_lines = any(" (node-a): barrier, train.py:9, for 24 s" in each for each in report.lines)
    assert has_lines == (HUNG in line)
    for steps, count in ((0, 3), (9, 6)):  # a script that has counted nothing may be a server
        alone = conclude(run(standing(0, ASLEEP, steps=steps), stops=[stop()]))
        assert len(alone.lines) == count


def test_a_stop_says_what_scripts_changed_before_their_ranks_waited_for_each_other():
    change = "MASTER_PORT=1 (train.py:3); the launcher set 2"
    for start in (WAITS, standing(0, IN_BARRIER, moving=True)):
        ends = [replace(start, rank=rank, changes=(change,)) for rank in range(2)]
        report = conclude(run(*ends, stops=[stop()]))
        assert f"  in ranks 0-1, {change}" in report.lines
        assert any("fix: leave these variables to the launcher" in line for line in report.lines)


@pytest.mark.parametrize(
    ("stops", "by"),
    [
        ([], "the script itself"),
        ([stop()], "SIGTERM from pid 7 (slurmstepd) on node-a"),
        ([LIMIT], "--max-time 2h"),
    ],
)
def test_an_unfinished_run_says_by_what_where_and_how_it_goes_on(stops, by):
    report = conclude(run(to_resume(0), stops=stops, folder="runs/x", **TO_RESUME))
    assert report.framed()[1:] == [
        f"stopped by {by}, after 40 steps, to be resumed   [RUN017 run-unfinished]",
        "  more: paceline explain RUN017",
        "last checkpoint: step 40, runs/x/checkpoints/00003-step-40",
        "resume: paceline run --run-dir runs/x train.py",
        "auto-resume: (trap exit INT; until paceline run --run-dir runs/x train.py; do [ $? -eq 75 ] || break; done)",
        "exit status 75 · run folder runs/x",
    ]
    (finding,) = report.findings
    assert (finding.severity, finding.fix) == ("warning", AGAIN.line)


def test_a_grace_that_was_too_short_is_told_with_evidence_and_fix():
    ends = [killed(0), to_resume(1), killed(2)]
    report = conclude(
        Run(
            ends,
            "runs/x",
            stops=[stop()],
            grace_s=30,
            saving="runs/x/checkpoints/.tmp-4",
            resume_command=AGAIN,
            last=LAST,
        )
    )
    assert report.lines == [
        "a checkpoint was not whole when the ranks were killed, 30 s after SIGTERM from pid 7 (slurmstepd) on node-a, "
        "after 40 steps   [RUN016 grace-too-short]",
        "  ranks still at work: 0, 2",
        "  written to since the signal, not committed: runs/x/checkpoints/.tmp-4",
        "  fix: --grace-s 60; the sender of the signal must allow at least as long",
        "  more: paceline explain RUN016",
        "resume from step 40: paceline run --run-dir runs/x train.py",
        "exit status 143 · run folder runs/x",
    ]


@pytest.mark.parametrize(
    ("run", "lines"),
    [
        (run(failed(0), resume_command=AGAIN), []),
        (run(failed(0), **TO_RESUME), [f"resume from step 40: {AGAIN.line}"]),
        (run(told_to_stop(0), stops=[stop()], resume_command=AGAIN), []),
        (run(told_to_stop(0), stops=[stop()], **TO_RESUME), [f"resume from step 40: {AGAIN.line}"]),
        (run(fine(0), lost=["node 1"], **TO_RESUME), [f"resume from step 40: {AGAIN.line}", LOOP]),
        (run(fine(0), lost=["node 1"], resume_command=AGAIN), [f"start again: {AGAIN.line}", LOOP]),
        # a rank failed by itself, the node that went afterwards is not why
        (run(failed(0), lost=["node 1"], **TO_RESUME), [f"resume from step 40: {AGAIN.line}"]),
    ],
)
def test_a_run_that_ended_badly_says_how_it_goes_on(run, lines):
    report_lines = conclude(run).lines
    assert [
        line for line in report_lines if line.startswith(("resume", "start again", "auto-resume"))
    ] == lines
    assert report_lines[-1].startswith("exit status")


def test_a_checkpoint_that_does_not_fit_is_not_offered_again():
    found = Finding("checkpoint-other-model", "weights are missing")
    ended = failed(0)
    ended = replace(ended, failure=replace(ended.failure, finding=found))
    assert not any("resume" in line for line in conclude(run(ended, **TO_RESUME)).lines)


def test_what_the_start_knew_of_the_network_is_the_reason_of_a_vain_wait():
    closed = Finding("interface-not-routed", "node 1 is not reached", fix="open the ports")
    hang = Finding("collective-timeout", "all ranks wait", fix="try something")
    lines = conclude(run(told_to_stop(), hang=hang, noticed=[closed])).lines
    assert "  known since the start: node 1 is not reached [NET017]" in lines
    assert "  fix: open the ports" in lines
    assert "not reached" not in str(conclude(run(failed(0), noticed=[closed])).lines)
    lost = conclude(run(fine(0), lost=["node 1"], ignored=["paceline/beat"])).lines
    assert "nobody of this run has signed paceline/beat" in lost[2]


def test_a_nan_found_at_the_end_is_printed_once_and_other_warnings_again():
    noticed = [
        Finding(name, "here", severity="warning") for name in ("parameters-not-finite", "straggler")
    ]
    report = conclude(run(fine(0), counters=PULSES, noticed=noticed))
    assert report.findings[:2] == noticed
    assert [line for line in report.lines if line.startswith("warning")] == [
        "warning RUN022 straggler: here"
    ]


def test_a_wait_for_a_launcher_without_files_is_not_the_scripts_fault():
    lost = Failure("RuntimeError", "gloo: Connection closed by peer [::1]:17554", 4 * S)
    ends = [RankExit(rank, code=1, failure=lost) for rank in range(2)]
    short = Finding("too-many-open-files", "needs 1030", severity="warning")
    assert conclude(run(*ends, noticed=[short])).findings[0] == replace(short, severity="error")
    assert conclude(run(failed(0), noticed=[short])).findings[0].name == "user-exception"


def test_what_broke_while_the_run_stopped_is_told():
    broke = failed(1, at=7 * S, stopped="SIGTERM to the launcher", stopped_ns=6 * S)
    assert (
        "while it stopped, rank 1 raised ValueError: no"
        in conclude(run(broke, stops=[stop()])).lines
    )


def test_a_failure_stands_out_and_ends_with_the_status():
    report = conclude(run(failed(0), folder="runs/x", attempts=2))
    framed = report.framed()
    assert framed[0].startswith("── paceline ──")
    assert framed[1].startswith("cause: rank 0 raised ValueError: no")
    assert framed[-1] == "exit status 1 after 2 attempts · run folder runs/x"


@pytest.mark.parametrize(("kind", "status"), [(UsageError, 2), (SetupError, 2)])
def test_a_run_that_could_not_start(kind, status):
    finding = Finding("port-in-use", "taken", where="node-a", fix="another")
    report = refused(kind(finding))
    assert (report.exit_status, report.findings) == (status, [finding])
    assert report.lines == finding.render().splitlines()


STATE, TIMEOUT = (type(f"Rendezvous{kind}Error", (Exception,), {}) for kind in ("State", "Timeout"))


@pytest.mark.parametrize(
    ("error", "name", "says"),
    [
        (EOFError("gone"), "agent-died", "starts the ranks was killed"),
        (TIMEOUT(), "rendezvous-timeout", "not enough nodes"),
        (STATE("corrupt"), "port-held-by-other", "signed paceline/stop"),
        (RuntimeError("Broken pipe\nframe #0"), "launcher-fault", "RuntimeError: Broken pipe"),
        (KeyError("x"), "launcher-fault", "please report"),
        (OSError(24, "Too many open files"), "too-many-open-files", "ulimit -n"),
    ],
)
def test_a_launcher_that_could_not_go_on(error, name, says):
    report = broken(error, host="node-a", run=Run(ignored=["paceline/stop"], **TO_RESUME))
    assert report.exit_status == 1
    assert report.findings[0].name == name
    assert says in "\n".join(report.lines)
    assert not any("frame #0" in line for line in report.lines)
    assert not any("resume" in line for line in report.lines)


def test_a_head_that_went_before_the_ranks_had_started_is_told_with_the_way_on():
    error = type("DistNetworkError", (RuntimeError,), {})("failed to recv, got 0 bytes")
    report = broken(error, host="node-a", run=Run(ignored=["paceline/stop"], **TO_RESUME))
    assert report.findings[0].name == "agent-died"
    assert report.lines[-2:] == [f"resume from step 40: {AGAIN.line}", LOOP]


def test_a_report_is_plain_data():
    report = conclude(run(fine(0), failed(1), folder="runs/x"))
    content = json.loads(json.dumps(report.to_json()))
    assert content["exit_status"] == 1
    assert content["findings"][0]["code"] == "RUN002"
    assert Report(0, []).to_json() == {"exit_status": 0, "findings": [], "summary": {}}
