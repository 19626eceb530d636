"""Slurm is asked rarely and about all jobs at once, and a job has ended only if a second look agrees."""

import pytest

import canned
from paceline.functions.by_slurm import Queue
from paceline.slurm.record import JobRecord

JOBS = [JobRecord(str(number)) for number in range(20)]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    return canned.slurm(tmp_path / "bin", monkeypatch)


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def lines(state):
    return "".join(f"{job.job_id}|{state}|node1|N/A|None\n" for job in JOBS)


def asked(slurm):
    return [call for call in slurm.calls if call.startswith("squeue")]


def test_twenty_jobs_are_asked_about_by_one_command(slurm):
    slurm.answers("squeue", lines("RUNNING"))
    clock = Clock()
    queue = Queue(clock)
    for job in JOBS:
        assert queue.ended(job) is None
    assert len(asked(slurm)) == 1  # about the first, which was the only one then
    clock.now_s += 2
    for job in JOBS:
        assert queue.ended(job) is None
    assert len(asked(slurm)) == 2
    assert asked(slurm)[1].endswith("-j " + ",".join(job.job_id for job in JOBS))


def test_slurm_is_asked_less_often_after_a_minute(slurm):
    slurm.answers("squeue", lines("PENDING"))
    clock = Clock()
    queue = Queue(clock)
    for _ in range(200):
        queue.ended(JOBS[0])
        clock.now_s += 1
    assert len(asked(slurm)) == pytest.approx(60 / 2 + 140 / 10, abs=2)


def test_a_job_has_ended_when_a_second_look_agrees(slurm):
    slurm.answers("squeue", lines("RUNNING"), lines("FAILED"))
    slurm.answers("scontrol", "JobId=0 JobState=FAILED ExitCode=1:0 TimeLimit=00:10:00")
    clock = Clock()
    queue = Queue(clock)
    assert queue.ended(JOBS[0]) is None
    clock.now_s += 2
    assert queue.ended(JOBS[0]) is None
    clock.now_s += 1
    ended = queue.ended(JOBS[0])
    assert ended is not None and ended.state is not None
    assert (ended.state.state, ended.state.limit_s) == ("FAILED", 600)


def test_a_job_that_slurm_has_forgotten_has_ended(slurm):
    slurm.answers("squeue", "")
    clock = Clock()
    queue = Queue(clock)
    queue.ended(JOBS[0])
    clock.now_s += 1
    ended = queue.ended(JOBS[0])
    assert ended is not None and ended.state is None


def test_without_an_answer_nothing_has_ended(slurm):
    clock = Clock()
    queue = Queue(clock)
    for _ in range(10):
        assert queue.ended(JOBS[0]) is None
        clock.now_s += 10
