"""How long ranks really have when Slurm ends a job: the shortest of its times and of ours."""

import pytest

from paceline.launch.plan.slurm_times import (
    SlurmLimits,
    parse_config,
    parse_job,
    parse_partition,
    parse_reason,
    parse_tracking,
    shortest,
)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (SlurmLimits(), (120, "")),
        (SlurmLimits(kill_wait_s=30), (30, "Slurm's KillWait")),
        (SlurmLimits(kill_wait_s=300), (120, "")),
        (SlurmLimits(kill_wait_s=60, grace_s=20), (20, "GraceTime of the partition")),
        (SlurmLimits(kill_wait_s=60, ends_s=1010), (10, "the time limit of the job")),
        (
            SlurmLimits(kill_wait_s=60, ends_s=999),
            (60, "Slurm's KillWait"),
        ),  # it is over, and KillWait counts from here
    ],
)
def test_the_shortest_time_is_named(limits, expected):
    assert shortest(120, limits, now_s=1000) == expected


def test_what_slurm_prints_is_read():
    assert (
        parse_config(
            "JobAcctGatherType = x\nKillOnBadExit           = 0\nKillWait                = 30 sec\n"
        )
        == 30
    )
    assert parse_config("") is None
    assert parse_tracking("ProctrackType           = proctrack/linuxproc\n")
    assert not parse_tracking("ProctrackType           = proctrack/cgroup\n")
    assert parse_partition("PartitionName=gpu GraceTime=300 Hidden=NO") == 300
    assert parse_partition("PartitionName=gpu GraceTime=0 Hidden=NO") is None
    assert parse_job("gpu|1-02:00:10\n") == ("gpu", 93610)
    assert parse_job("gpu|UNLIMITED\n") == ("gpu", None)
    assert parse_job("") == ("", None)


def test_the_output_of_the_job_says_why_slurm_ends_it():
    ended = "slurmstepd-n1: error: *** STEP 3.0 ON n1 CANCELLED AT 2026-11-25T23:25:10"
    assert parse_reason(f"{ended} DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***") == "node failure"
    assert parse_reason(f"{ended} DUE TO TIME LIMIT ***") == "time limit"
    assert "scancel" in parse_reason(f"{ended} ***")
