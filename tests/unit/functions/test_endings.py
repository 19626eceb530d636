"""How a job has ended, from what its run has recorded and what Slurm says: one table of cases."""

import pytest

from paceline.errors import Finding
from paceline.functions import endings
from paceline.functions.endings import Seen
from paceline.rundir.events import Outcome
from paceline.slurm.job_states import JobState
from paceline.slurm.record import JobRecord

RECORD = JobRecord("12", name="square", submitted_ns=1)
RAISED = Finding("user-exception", "rank 0 raised ValueError")
STOPPED = Finding("stopped-by-signal", "the run was ended by SIGTERM", severity="warning")
UNFINISHED = Finding("run-unfinished", "stopped by the script itself", severity="warning")
LOST = Finding("agent-died", "gone", where="node 1 (host-b)")
OK, FAILED = Outcome(0), Outcome(1, (RAISED,))
KILLED = Outcome(143, (STOPPED,), time_ns=1000 * 10**9)


def seen(state, **values):
    job = JobState("12", state, **values) if state else None
    return Seen(job, RECORD, "slurm.out", "job.sh", signal_s=120.0)


@pytest.mark.parametrize(
    ("outcome", "final"),
    [
        (None, False),
        (OK, True),
        (FAILED, True),
        (Outcome(1, (LOST,)), False),  # the job script queues the job again
        (Outcome(75, (UNFINISHED,)), False),
        (KILLED, False),
    ],
)
def test_whether_an_outcome_is_that_of_the_job(outcome, final):
    assert endings.is_final(outcome) is final


@pytest.mark.parametrize(
    ("outcome", "what", "word", "name"),
    [
        (OK, seen("COMPLETED"), "succeeded", None),
        (None, seen("COMPLETED"), "succeeded", None),
        (FAILED, seen("FAILED"), "failed", "user-exception"),
        (FAILED, seen("CANCELLED"), "failed", "user-exception"),
        (Outcome(75, (UNFINISHED,)), seen("FAILED"), "unfinished", "run-unfinished"),
        (KILLED, seen("CANCELLED"), "cancelled", "slurm-job-ended"),
        (None, seen("CANCELLED"), "cancelled", "slurm-job-ended"),
        (KILLED, seen("TIMEOUT"), "timeout", "slurm-time-limit"),
        (None, seen("TIMEOUT"), "timeout", "slurm-time-limit"),
        (None, seen("NODE_FAIL"), "node_fail", "slurm-job-ended"),
        (KILLED, seen("NODE_FAIL"), "node_fail", "slurm-job-ended"),
        (None, seen("OUT_OF_MEMORY"), "out_of_memory", "rank-died-oom-killer"),
        (None, seen(None), "unknown", "slurm-job-ended"),
        (KILLED, seen("FAILED"), "stopped", "stopped-by-signal"),
        # 880 s of 1000 s, and the signal comes 120 s before the limit
        (KILLED, seen("FAILED", start_s=120.0, limit_s=1000.0), "timeout", "slurm-time-limit"),
        # up to a minute before that
        (KILLED, seen("FAILED", start_s=180.0, limit_s=1000.0), "timeout", "slurm-time-limit"),
        (KILLED, seen("FAILED", start_s=181.0, limit_s=1000.0), "stopped", "stopped-by-signal"),
        (
            Outcome(75, (UNFINISHED,), time_ns=1000 * 10**9),
            seen("FAILED", start_s=120.0, limit_s=1000.0),
            "unfinished",
            "run-unfinished",
        ),
    ],
)
def test_how_a_job_has_ended(outcome, what, word, name):
    end = endings.of_job(outcome, what)
    assert (end.word, end.finding and end.finding.name) == (word, name)
    assert (end.exit_status == 0) is (name is None)


def test_a_run_without_a_finding_says_its_status():
    end = endings.of_outcome(Outcome(3))
    assert end.finding is not None and "status 3" in end.finding.what
