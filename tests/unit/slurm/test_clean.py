"""``paceline clean``: what no run needs is shown, then deleted; what lives, is best or is marked stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import canned
import commits
import run_events
from paceline.cli import main as cli
from paceline.errors import UsageError
from paceline.rundir import lease_file
from paceline.rundir.files import RunDir
from paceline.slurm import record
from paceline.slurm.record import JobRecord

RUNS = Path("paceline-runs")
METRICS = (0.5, 0.9, 0.4, 0.3)


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return canned.slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def cleaned(slurm, capfd):
    """Call the command as typed; return what it printed, and what there is then."""

    def ask(*words):
        assert cli.cli.main(["clean", *words], prog_name="paceline", standalone_mode=False)() == 0
        there = {str(path) for path in RUNS.rglob("*") if path.is_dir()}
        return *capfd.readouterr(), there

    return ask


def makes(name, status=0, *metrics):
    """Make the folder of a run that has ended, with a checkpoint for each metric."""
    run_dir = RunDir(RUNS / name)
    run_dir.root.mkdir(parents=True)
    run_dir.plan().write_text("{}")
    if status is not None:
        run_events.outcome(run_dir.events(0), status)
    for number, metric in enumerate(metrics, 1):
        commits.commit(run_dir.checkpoints, number, serial=number, metric=metric)
    return run_dir


def test_only_what_no_run_needs_is_shown_and_then_deleted(cleaned, monkeypatch):
    makes("done", 0, *METRICS)
    marked = makes("unfinished", 75, *METRICS).checkpoints
    (marked / "00003-step-3" / "keep").touch()
    (marked / ".00009-step-9.ab-999999999-elsewhere").mkdir()
    makes("failed", 1)
    week_later_s = time.time() + 8 * 86400
    monkeypatch.setattr(time, "time", lambda: week_later_s)
    out, err, before = cleaned()
    listed = {line.split()[1] for line in out.splitlines()[1:]}
    assert {path.removeprefix("paceline-runs/") for path in listed} == {
        *("done/checkpoints/00001-step-1", "done/checkpoints/00003-step-3", "failed"),
        *(
            "unfinished/checkpoints/00001-step-1",
            f"unfinished/checkpoints/{min(marked.iterdir()).name}",
        ),
    }
    assert err == "paceline: 5 folders, 0.0 MB; to delete them: paceline clean --yes\n"
    assert before - cleaned("--yes")[2] == listed <= before
    assert not list(RUNS.rglob("lease.json"))
    assert cleaned("--yes")[1] == "paceline: nothing to clean\n"


def test_what_may_be_needed_stays(slurm, cleaned):
    lease_file.write(makes("living", 0, *METRICS).root, lease_file.this_process())
    lease_file.write(makes("elsewhere", 0, *METRICS).root, lease_file.Owner("a", "b", "c", 7))
    makes("marked", 0, *METRICS).keep.touch()
    record.write(makes("queued", 75, *METRICS), JobRecord("7", submitted_ns=1))
    makes("fresh failure", 1)
    makes("unknown", None)
    slurm.answers("squeue", "7|PENDING||2026-11-21T14:00:00|Resources\n")
    before = cleaned()[2]
    assert cleaned("--yes") == ("", "paceline: nothing to clean\n", before)
    slurm.fails("squeue", "timed out")
    assert cleaned("--yes")[2] == before


def test_a_run_that_begins_meanwhile_keeps_its_folder(cleaned, monkeypatch):
    run_dir = makes("resumed", 0, *METRICS)
    monkeypatch.setenv("PACELINE_TEST_TIME_FACTOR", "0.01")
    lease_file.write(run_dir.root, lease_file.this_process())
    answers = iter([False])  # it lives only at the second look
    monkeypatch.setattr(lease_file, "is_alive", lambda owner: next(answers, True))
    with pytest.raises(UsageError, match="is in use by"):
        cleaned("--yes")
    assert len(list(run_dir.checkpoints.iterdir())) == 4
