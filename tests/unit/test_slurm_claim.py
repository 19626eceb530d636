"""A job that starts in a run folder: its own, that of a job that has ended, that of one that has not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline.errors import UsageError
from paceline.rundir import RunDir
from paceline.slurm import claim, record
from paceline.slurm.record import JobRecord


@pytest.fixture
def run_dir(tmp_path):
    found = RunDir(tmp_path)
    record.write(found, JobRecord("12", name="train"))
    return found


def slurm_says(monkeypatch, *states):
    """The answers of Slurm, the last one for good; None where it does not know the job."""
    answers = list(states)

    def state(job):
        each = answers.pop(0) if len(answers) > 1 else answers[0]
        told = None if each is None else SimpleNamespace(job_id=job.job_id, state=each, ended=each == "COMPLETED")
        return SimpleNamespace(heard=True, state=told)

    monkeypatch.setattr(claim.lookup, "state", state)


def claimed(run_dir, job_id):
    now = [0.0]
    claim.claim(run_dir.root, job_id, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    return record.read(run_dir)


def test_its_own(run_dir, monkeypatch):
    slurm_says(monkeypatch, "RUNNING")
    assert claimed(run_dir, "12").job_id == "12"


def test_a_folder_without_a_record(tmp_path):
    assert claimed(RunDir(tmp_path), "12") is None


@pytest.mark.parametrize("states", [["COMPLETED"], [None], ["RUNNING", "COMPLETING", "COMPLETED"]])
def test_that_of_a_job_that_has_ended_or_ends(run_dir, monkeypatch, states):
    slurm_says(monkeypatch, *states)
    told = claimed(run_dir, "13")
    assert (told.job_id, told.earlier_ids, told.name) == ("13", ("12",), "train")


def test_that_of_a_job_that_goes_on(run_dir, monkeypatch):
    slurm_says(monkeypatch, "RUNNING")
    with pytest.raises(UsageError) as caught:
        claimed(run_dir, "13")
    assert "job 12, which is running" in caught.value.finding.what
    assert record.read(run_dir).job_id == "12"


def test_the_record_comes_a_moment_after_the_job(run_dir, monkeypatch):
    """``paceline requeue`` submits first, and then writes down under which number."""

    def state(job):
        record.write(run_dir, JobRecord("13", earlier_ids=("12",)))
        return SimpleNamespace(heard=True, state=SimpleNamespace(job_id="12", state="RUNNING", ended=False))

    monkeypatch.setattr(claim.lookup, "state", state)
    assert claimed(run_dir, "13").earlier_ids == ("12",)
