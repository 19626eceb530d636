"""What squeue, scontrol and sacct say of a job, and what that means. Texts are those of Slurm 22.05."""

from __future__ import annotations

import time

import pytest

from paceline.rundir.events import Outcome
from paceline.slurm import job_states
from paceline.slurm.job_states import JobState
from paceline.slurm.jobs import explanations
from paceline.slurm.record import JobRecord

NOON_S = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))

SCONTROL = (
    "JobId=1 JobName=digits UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901759 Nice=0 Account=(null) "
    "QOS=(null) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=1 BatchFlag=1 Reboot=0 "
    "ExitCode=75:0 RunTime=00:00:01 TimeLimit=01:00:00 SubmitTime=2026-11-21T11:59:01 StartTime=2026-11-21T12:00:00 "
    "EndTime=2026-11-21T12:00:01 Partition=main ReqNodeList=(null) ExcNodeList=node[3-4] NodeList=node[1-2] "
    "BatchHost=node1 NumNodes=2 Command=/tmp/my runs/job.sh WorkDir=/tmp Power= "
)


def job(state, **fields):
    return JobState(job_id="12", state=state, **fields)


def test_squeue_tells_all_jobs_at_once():
    text = "1|RUNNING|node[1-2]|2026-11-21T12:00:00|None\n2|PENDING||N/A|ReqNodeNotAvail, UnavailableNodes:a|b\n"
    assert job_states.from_squeue(text) == {
        "1": JobState("1", "RUNNING", nodes="node[1-2]", start_s=NOON_S),
        "2": JobState("2", "PENDING", reason="ReqNodeNotAvail, UnavailableNodes:a|b"),
    }


def test_lines_that_are_no_jobs_are_left_out():
    assert list(job_states.from_squeue("CLUSTER: big\n7|PENDING||N/A|Priority\n\n")) == ["7"]
    assert job_states.from_squeue("") == {}


def test_scontrol_tells_one_job_in_full():
    assert job_states.from_scontrol(SCONTROL) == JobState(
        "1",
        "FAILED",
        reason="NonZeroExitCode",
        nodes="node[1-2]",
        start_s=NOON_S,
        exit_code=75,
        restarts=1,
        requeue=True,
        excluded="node[3-4]",
        limit_s=3600.0,
    )


def test_a_name_or_a_path_that_looks_like_a_field_is_none():
    text = SCONTROL.replace("JobName=digits", "JobName=a JobState=COMPLETED Restarts=9")
    assert job_states.from_scontrol(text) == job_states.from_scontrol(SCONTROL)
    text = SCONTROL.replace("/tmp/my runs", "/tmp/ NodeList=elsewhere")
    assert job_states.from_scontrol(text) == job_states.from_scontrol(SCONTROL)


@pytest.mark.parametrize("text", ["", "slurm_load_jobs error", "JobId=12 "])
def test_scontrol_without_a_job_tells_of_none(text):
    assert job_states.from_scontrol(text) is None


def test_of_several_lines_of_sacct_the_last_counts():
    text = "12|REQUEUED|node1|2026-11-21T11:00:00|0:0|None\n12|CANCELLED by 1000|node2|2026-11-21T12:00:00|0:15|None\n"
    assert job_states.from_sacct(text) == job(
        "CANCELLED", nodes="node2", start_s=NOON_S, exit_code=0, signal=15
    )
    assert job_states.from_sacct("") is None


@pytest.mark.parametrize(
    ("state", "ended", "waits"),
    [
        ("PENDING", False, True),
        ("REQUEUED", False, True),
        ("CONFIGURING", False, False),
        ("RUNNING", False, False),
        ("SUSPENDED", False, False),
        ("COMPLETING", False, False),
        ("COMPLETED", True, False),
        ("CANCELLED", True, False),
        ("TIMEOUT", True, False),
        ("NODE_FAIL", True, False),
    ],
)
def test_which_states_are_ends(state, ended, waits):
    assert (job(state).ended, job(state).waits) == (ended, waits)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("Priority", ""),
        ("Resources", ""),
        ("", ""),
        ("PartitionNodeLimit", "fewer --nodes"),
        ("PartitionTimeLimit", "shorter --time"),
        ("AssocGrpGRES", "limit of GPUs"),
        ("QOSMaxGRESPerUser", "limit of GPUs"),
        ("AssocMaxCpuPerJobLimit", "limit of CPUs"),
        ("QOSMaxJobsPerUserLimit", "as many of your jobs"),
        ("AssocGrpCPURunMinutesLimit", "used up"),
        ("ReqNodeNotAvail, UnavailableNodes:node2", "sinfo -R"),
        ("BeginTime", ""),
        ("DependencyNeverSatisfied", "scancel"),
        ("BadConstraints", "no nodes of this cluster"),
        ("JobHeldUser", "scontrol release"),
    ],
)
def test_reasons_that_last_are_explained(reason, said):
    assert said in explanations.explain(reason)
    assert bool(said) == bool(explanations.explain(reason))


def test_a_job_that_was_queued_again_is_held_back_for_a_while():
    assert "two minutes" in explanations.explain("BeginTime", again=True)


RECORD = JobRecord("12", name="digits")


def judged(state, tail=("last words",)):
    return explanations.judge(
        state, RECORD, log="runs/a/slurm.out", tail=tail, script="runs/a/job.sh"
    )


@pytest.mark.parametrize(
    ("state", "name", "what"),
    [
        (job("TIMEOUT", start_s=1.0), "slurm-time-limit", "at its time limit"),
        (job("OUT_OF_MEMORY", start_s=1.0), "rank-died-oom-killer", "exceeded the memory"),
        (job("CANCELLED", nodes="node1"), "slurm-job-ended", "was cancelled"),
        (job("CANCELLED"), "slurm-job-ended", "cancelled before it started"),
        (job("NODE_FAIL", start_s=1.0), "slurm-job-ended", "a node failed"),
        (job("PREEMPTED", start_s=1.0), "slurm-job-ended", "preempted"),
        (job("BOOT_FAIL", start_s=1.0), "slurm-job-ended", "did not boot"),
        (job("DEADLINE", start_s=1.0), "slurm-job-ended", "deadline"),
        (job("FAILED", start_s=1.0), "slurm-job-ended", "recorded no cause"),
        (job("SOMETHING_NEW", start_s=1.0), "slurm-job-ended", "SOMETHING_NEW"),
        (None, "slurm-job-ended", "no longer knows job 12 (digits)"),
    ],
)
def test_each_end_has_a_name_and_a_fix(state, name, what):
    finding = judged(state)
    assert finding.name == name
    assert what in finding.what
    assert finding.fix
    assert "{" not in finding.fix
    assert "last words" in finding.evidence


def test_the_evidence_is_what_slurm_says_and_the_last_lines():
    state = job("FAILED", reason="NonZeroExitCode", nodes="node[1-2]", exit_code=3, restarts=2)
    finding = judged(state)
    assert finding.where == "node[1-2] (runs/a/slurm.out)"
    assert (
        finding.evidence[0]
        == "Slurm: FAILED, reason NonZeroExitCode, exit code 3, queued again 2 times"
    )


def test_the_launcher_that_was_killed_is_named_from_what_srun_says():
    tail = (
        "srun: error: node2: task 1: Killed",
        "slurmstepd-node1: error: *** STEP 10.0 ON node1 CANCELLED ***",
    )
    finding = judged(job("FAILED", exit_code=137), tail)
    assert "the launcher on node2 was ended first: Killed" in finding.what


def test_the_block_fits_on_a_screen():
    tail = [f"line {number}" for number in range(30)]
    report = explanations.report(judged(job("FAILED"), tail), folder="runs/a")
    lines = report.framed()
    assert len(lines) <= 16
    assert lines[0].startswith("── paceline ")
    assert lines[1].endswith("[JOB043 slurm-job-ended]")
    assert "  line 29" in lines
    assert lines[-1] == "exit status 1 · run folder runs/a"


def test_an_outcome_whose_block_is_lost_is_told_again():
    finding = judged(job("TIMEOUT"))
    lines = explanations.from_outcome(Outcome(1, (finding,)), folder="runs/a").framed()
    assert any("slurm-time-limit" in line for line in lines)
    assert lines[-1] == "exit status 1 · run folder runs/a"
    assert explanations.from_outcome(Outcome(0), folder="runs/a").framed() == [
        "paceline: the run has succeeded · run folder runs/a"
    ]


def test_elements_that_a_cancelled_array_had_not_started_are_cancelled():
    text = "1|CANCELLED||2026-11-23T04:29:54|JobArrayTaskLimit\n1_0|COMPLETED|node1|N/A|None\n"
    table = job_states.from_squeue(text)
    rest = job_states.never_started(table, ["1_0", "1_1", "1_2", "2_0", "3"])
    assert {number: job.state for number, job in rest.items()} == {
        "1_1": "CANCELLED",
        "1_2": "CANCELLED",
    }
    assert rest["1_2"].job_id == "1_2"
    running = job_states.from_squeue("1|PENDING||N/A|None\n4|COMPLETED|node1|N/A|None\n")
    assert job_states.never_started(running, ["1_1", "4_0"]) == {}
