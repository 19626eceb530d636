"""A job script that reserves its run folder: its own, that of a job that has ended, that of one that has not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from paceline import env
from paceline.errors import UsageError
from paceline.rundir import identity, lease, lease_file, sweeps
from paceline.rundir.files import RunDir
from paceline.rundir.identity import Training
from paceline.rundir.lease_file import Owner
from paceline.slurm import record
from paceline.slurm.jobs import reserve
from paceline.slurm.record import JobRecord
from paceline.slurm.sweep import definition
from refusals import refusal


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    for name in (env.JOB_ID, env.ARRAY_JOB_ID, env.ARRAY_TASK_ID, env.JOB_RESTARTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(env.TEST_TIME_FACTOR, "0.01")
    found = RunDir(tmp_path)
    record.write(found, JobRecord("12", name="train"))
    return found


def leave_lease(run_dir, job, **fields):
    """A lease of a job on another machine that has given no sign since."""
    lease.acquire(run_dir.root, Owner("t", host="node9", pid=7, job=job, **fields), say=print)


def slurm_says(monkeypatch, state):
    told = None if state is None else SimpleNamespace(state=state, ended=state == "COMPLETED")
    monkeypatch.setattr(
        reserve.job_states, "state", lambda job: SimpleNamespace(has_answered=True, state=told)
    )


def reserved(run_dir, job_id, monkeypatch):
    monkeypatch.setenv(env.JOB_ID, job_id)
    reserve.reserve(run_dir.root, job_id)
    return lease_file.read(run_dir.root), record.read(run_dir)


def test_a_folder_that_nobody_has(run_dir, monkeypatch):
    owner, told = reserved(run_dir, "12", monkeypatch)
    assert (owner.job, owner.pid, told.job_id) == ("12", 0, "12")


def test_another_number_of_the_same_script_is_written_down(run_dir, monkeypatch):
    _, told = reserved(run_dir, "13", monkeypatch)
    assert (told.job_id, told.earlier_ids, told.name) == ("13", ("12",), "train")


def test_that_of_a_job_that_has_ended_is_taken_at_once(run_dir, monkeypatch):
    monkeypatch.setenv(env.TEST_TIME_FACTOR, "1")
    leave_lease(run_dir, "12")
    slurm_says(monkeypatch, "COMPLETED")
    assert reserved(run_dir, "13", monkeypatch)[0].job == "13"


@pytest.mark.parametrize("state", ["RUNNING", None])
def test_one_that_gives_no_sign_is_taken_when_it_has_expired(run_dir, monkeypatch, state, capsys):
    leave_lease(run_dir, "12")
    slurm_says(monkeypatch, state)
    assert reserved(run_dir, "13", monkeypatch)[0].job == "13"
    assert "last used by job 12, process 7 on node9: waiting up to 0.6 s" in capsys.readouterr().err


def test_a_printed_sweep_records_itself(tmp_path, monkeypatch):
    """Its elements start at the same time, and any of them may be the first."""
    chosen = definition.choose((), definition.from_command_line(["lr=0.1,1", "name=a b"]))
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{definition.comment(chosen)}\n")
    folder = tmp_path / "sweep"
    for index in (1, 0):
        monkeypatch.setenv(env.JOB_ID, str(13 - index))
        monkeypatch.setenv(env.ARRAY_JOB_ID, "12")
        monkeypatch.setenv(env.ARRAY_TASK_ID, str(index))
        reserve.reserve(folder / str(index), env.slurm_job(), script=script)
    sweep_record = sweeps.read(folder)
    assert (sweep_record.jobs, dict(sweep_record.elements)) == (
        ("12",),
        {0: {"lr": "0.1", "name": "a b"}, 1: {"lr": "1", "name": "a b"}},
    )
    job = record.read(RunDir(folder / "1"))
    assert (job.job_id, job.values) == ("12_1", {"lr": "1", "name": "a b"})
    assert lease_file.read(folder / "0").job == "12_0"
    assert (folder / "job.sh").read_text() == script.read_text()


def test_that_of_a_living_run_is_refused_with_its_name(run_dir, monkeypatch):
    slurm_says(monkeypatch, "RUNNING")
    living = lease.take(run_dir.root, lease_file.this_process(), say=print)
    try:
        with pytest.raises(UsageError) as caught:
            reserved(run_dir, "13", monkeypatch)
    finally:
        living.release()
    assert caught.value.finding.name == "run-folder-in-use"
    assert f"process {living.owner.pid} on" in caught.value.finding.what
    assert record.read(run_dir).job_id == "12", "the record stays that of the first"


def test_that_of_another_array_element_is_refused(run_dir, monkeypatch):
    identity.record(run_dir, Training("train.py", array_job="10", array_task="0"))
    monkeypatch.setenv(env.ARRAY_JOB_ID, "10")
    monkeypatch.setenv(env.ARRAY_TASK_ID, "1")
    finding = refusal(UsageError, reserved, run_dir, "11", monkeypatch)
    assert finding.name == "run-folder-of-other-training"
    assert lease_file.read(run_dir.root) is None


def test_a_script_that_was_printed_keeps_its_own_record(tmp_path, monkeypatch, capfd):
    for name in (env.ARRAY_JOB_ID, env.ARRAY_TASK_ID, env.JOB_RESTARTS):
        monkeypatch.delenv(name, raising=False)
    script, run_dir = tmp_path / "slurm_script", RunDir(tmp_path / "runs" / "train")
    script.write_text("#!/bin/bash\n")
    run_dir.create()
    run_dir.job_script.write_text("an older one, which others may read")
    monkeypatch.setenv(env.JOB_ID, "12")
    reserve.reserve(run_dir.root, "12", script=script, on_node_loss="fail")
    found = record.read(run_dir)
    assert (found.job_id, found.on_node_loss, found.requeues) == ("12", "fail", ())
    assert run_dir.job_script.read_text() == "#!/bin/bash\n"
    assert run_dir.job_script.stat().st_mode & 0o777 == 0o600
    slurm_says(monkeypatch, "COMPLETED")
    monkeypatch.setenv(env.JOB_ID, "13")
    reserve.reserve(run_dir.root, "13", script=script)
    assert record.read(run_dir).ids == ("12", "13"), (
        "queued again under another number it goes on with the record"
    )
