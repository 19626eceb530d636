"""The table of runs: what each does, how far it has come; told by Slurm where it knows, else by the run folder."""

from __future__ import annotations

import json
import os
import socket
import time

import pytest

import canned
import commits
import run_events
from paceline.cli import main as cli
from paceline.errors import Finding, UsageError
from paceline.rundir.events import History, Outcome
from paceline.rundir.files import MANIFEST, RunDir
from paceline.slurm import profile_files, record
from paceline.slurm.job_states import JobState
from paceline.slurm.jobs import listing, run_rows
from paceline.slurm.jobs.run_rows import RunRow
from paceline.slurm.record import JobRecord
from paceline.train.logging import CSVLogger
from printed_json import read_json
from refusals import refusal

NOON_S = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
FAILED = Finding("user-exception", "rank 0 raised ValueError")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return canned.slurm(tmp_path / "bin", monkeypatch)


@pytest.fixture
def listed(capfd):
    """Call the command as typed; return what it printed."""

    def ask(*words):
        status = cli.cli.main(["jobs", *words], prog_name="paceline", standalone_mode=False)()
        assert status == 0
        return capfd.readouterr()

    return ask


def makes(name, *, job_id="", minute=0, status=None, loss=None, folder="paceline-runs"):
    """Make the folder of a run."""
    run_dir = RunDir(record.Path(folder) / name)
    run_dir.create()
    run_dir.plan().write_text("{}")
    if job_id:
        record.write(
            run_dir, JobRecord(job_id, nodes="2", submitted_ns=int((NOON_S + 60 * minute) * 1e9))
        )
    if status is not None:
        run_events.start(run_dir.events(0), world_size=1)
        run_events.outcome(run_dir.events(0), status, *([FAILED] if status else []))
    if loss is not None:
        logger = CSVLogger(run_dir.metrics)
        for step in (10, 20):
            logger.log({"train/loss": loss + 1 / step}, step)
        logger.log({"val/loss": 9.0}, 30)
        logger.close()
    return run_dir


def test_slurm_is_asked_once_for_all(slurm, listed):
    makes("a", job_id="1")
    makes("b", job_id="2", minute=1, loss=0.5)
    makes("c", job_id="3", minute=2)
    slurm.answers(
        "squeue",
        "2|RUNNING|node[1-2]|2026-11-21T12:30:00|None\n3|PENDING||2026-11-21T14:00:00|Resources\n",
    )
    out = listed().out
    assert slurm.calls == ["squeue -h -r -t all -o %i|%T|%N|%S|%r -j 3,2,1"]
    assert out.splitlines() == [
        "run  job  state                nodes      step  loss  since",
        "c      3  pending (Resources)  2             -     -  2026-11-21 12:02",
        "b      2  running              node[1-2]    30  0.55  2026-11-21 12:30",
        "a      1  unknown              2             -     -  2026-11-21 12:00",
    ]


def test_the_newest_rows_are_shown_and_the_others_counted(slurm, listed):
    for minute, name in enumerate("abc"):
        makes(f"20261121-12000{minute}-{name}", status=0)
    out, err = listed("-n", "2")
    assert [line.split()[0][-1] for line in out.splitlines()[1:]] == ["c", "b"]
    assert err == "paceline: older ones: 1\n"
    assert listed("-n", "3").err == ""
    assert len(read_json("jobs", listed("-n", "1", "--json").out)) == 1


def test_runs_without_a_job_are_listed_too_and_slurm_is_not_asked(slurm, listed):
    makes("20261121-110000-old-aaaa", status=1, folder="runs")  # where an earlier version put it
    makes("20261121-120000-new-bbbb", status=0)
    (record.Path("paceline-runs") / "no-run").mkdir()
    (record.Path("paceline-runs") / "notes.txt").touch()
    lines = listed().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "run",
        "20261121-120000-new-bbbb",
        "20261121-110000-old-aaaa",
    ]
    assert [line.split()[2] for line in lines[1:]] == ["succeeded", "failed"]
    assert slurm.calls == []


@pytest.mark.parametrize("case", ["running", "killed", "of another", "elsewhere"])
def test_a_run_here_that_has_told_no_end(slurm, listed, case):
    host = "elsewhere" if case == "elsewhere" else socket.gethostname()
    launcher = 2**22 + 1 if case == "killed" else os.getpid()
    started_s = 1e9 if case == "of another" else time.time()  # another process has its number since
    run_dir = makes("a")
    fields = {
        "attempt": 0,
        "ranks": [0],
        "pids": [1],
        "world_size": 1,
        "host": host,
        "launcher": launcher,
    }
    event = {"version": 1, "time_ns": int(started_s * 1e9), "node": 0, "kind": "start", **fields}
    run_dir.events(0).write_text(json.dumps(event) + "\n")
    expected = {"of another": "killed", "elsewhere": "unknown"}.get(case, case)
    assert read_json("jobs", listed("--json").out)[0]["state"] == expected


def test_json_has_the_same_and_more(slurm, listed):
    makes("a", job_id="7", status=75, loss=0.5)
    slurm.answers("squeue", "7|PENDING||N/A|BeginTime\n")
    (row,) = read_json("jobs", listed("--json").out)
    assert row == {
        "run": "a",
        "folder": "paceline-runs/a",
        "job": "7",
        "state": "pending",
        "nodes": "2",
        "step": 30,
        "loss": 0.55,
        "since_s": NOON_S,
        "reason": "BeginTime",
        "cause": "",
    }


def test_a_loss_that_is_no_number_is_none_in_json(slurm, listed):
    makes("a", status=0, loss=float("nan"))
    assert "nan" in listed().out
    assert read_json("jobs", listed("--json").out)[0]["loss"] is None


def test_where_there_is_nothing_it_says_so_in_one_line(slurm, listed):
    out, err = listed()
    assert (out, err) == ("", "paceline: no runs in paceline-runs\n")
    assert listed("--json").out == "[]\n"


def test_where_squeue_does_not_answer_the_folders_tell(slurm, listed):
    makes("a", job_id="7", status=0)
    out, err = listed()
    assert "succeeded" in out
    assert "squeue does not answer here" in err


def test_a_single_job_that_slurm_has_forgotten_is_no_silence(slurm, listed):
    makes("a", job_id="7", status=0)
    slurm.fails("squeue", "slurm_load_jobs error: Invalid job id specified")
    out, err = listed()
    assert "succeeded" in out
    assert err == ""


def test_another_folder_may_be_named(slurm, listed):
    makes("a", status=0, folder="elsewhere")
    assert "succeeded" in listed("elsewhere").out
    assert "nowhere" in refusal(UsageError, listed, "nowhere").what


def test_steps_come_from_a_checkpoint_or_the_launcher_where_nothing_was_logged(slurm, listed):
    run_dir = makes("a", status=75)
    commits.commit(run_dir.checkpoints, 44)
    assert read_json("jobs", listed("--json").out)[0]["step"] == 44
    run_dir.speed_log.write_text('{"attempt": 0, "steps": 7}\n{"attempt": 0, "steps": 50}\n')
    assert read_json("jobs", listed("--json").out)[0]["step"] == 50


def test_a_job_that_leaves_the_queue_before_it_begins_was_cancelled(slurm, listed):
    run_dir = RunDir(record.Path("paceline-runs") / "a")
    run_dir.create()
    record.write(run_dir, JobRecord("7", script="train.py"))
    slurm.fails("squeue", "timed out")
    assert read_json("jobs", listed("--json").out)[0]["state"] == "unknown"
    slurm.answers("squeue", "")
    assert read_json("jobs", listed("--json").out)[0]["state"] == "cancelled"
    run_dir.job_output.touch()
    assert read_json("jobs", listed("--json").out)[0]["state"] == "unknown"


@pytest.mark.parametrize(
    ("slurm_says", "status", "state"),
    [
        ("RUNNING", None, "running"),
        ("RUNNING", 75, "running"),  # of the start before
        ("COMPLETED", 0, "succeeded"),
        ("COMPLETED", None, "succeeded"),
        ("FAILED", 0, "succeeded"),  # a finished job is never reported as failed
        ("COMPLETED", 1, "failed"),
        ("TIMEOUT", None, "timeout"),
        ("TIMEOUT", 75, "unfinished"),
        ("CANCELLED", 143, "cancelled"),
        ("NODE_FAIL", 75, "node_fail"),
        ("NODE_FAIL", 0, "succeeded"),
        ("", 0, "succeeded"),
        ("", 1, "failed"),
        ("", 2, "failed"),
        ("", 75, "unfinished"),
        ("", 130, "stopped"),
        ("", None, "unknown"),
    ],
)
def test_the_state_in_one_word(slurm_says, status, state):
    job = JobState("7", slurm_says) if slurm_says else None
    history = History(outcome=None if status is None else Outcome(status))
    assert run_rows.judge(job, history, submitted_s=1.0)[0] == state


@pytest.mark.parametrize(
    ("head", "lines", "figures"),
    [
        ("step,loss", ["10,0.5"], (10, 0.5)),
        ("step,train_loss", ["10,0.5", "20,"], (20, 0.5)),
        ("step,val/loss,train/loss", ["10,9,0.5"], (10, 0.5)),
        ("step,contrastive_loss", ["10,0.5"], (10, 0.5)),
        ("step,val/loss", ["10,0.5"], (10, None)),
        ("step,loss", [], (None, None)),
        ("step,loss", ["x,y"], (None, None)),
        ("step,loss", ["inf,0.5"], (None, 0.5)),
        ("step,loss,note", ['10,0.5,"a, b"', "20,,"], (20, 0.5)),
        ("", [], (None, None)),
    ],
)
def test_the_last_figures_of_a_table(head, lines, figures):
    assert run_rows.last_figures(head, lines) == figures


def test_of_a_long_table_only_the_end_is_read(slurm, listed):
    run_dir = makes("a", status=0)
    rows = "".join(
        f"{step},{step / 1000:.3f},some text that takes room\n" for step in range(50_000)
    )
    run_dir.metrics.write_text("step,loss,note\n" + rows + "99999,9")  # the last row is cut off
    (row,) = read_json("jobs", listed("--json").out)
    assert (row["step"], row["loss"]) == (49_999, 49.999)


def test_three_hundred_runs_are_listed_at_once(slurm):
    for number in range(300):
        makes(f"run-{number:03d}", job_id=str(number + 1), minute=number, status=0, loss=0.5)
    slurm.answers("squeue", "")
    began = time.perf_counter()
    assert listing.jobs(None, as_json=True) == 0
    assert time.perf_counter() - began < 1.5  # 0.1 s on an idle core


def test_the_table_is_aligned():
    rows = [
        RunRow("a", "runs/a", "", "failed", "", None, None, None),
        RunRow("long-name", "", "12", "x", "n", 5, 1.0, NOON_S),
    ]
    assert listing.render(rows).splitlines() == [
        "run        job  state   nodes  step  loss  since",
        "a            -  failed  -         -     -  -",
        "long-name   12  x       n         5     1  2026-11-21 12:00",
    ]


def _zeros(path):
    with path.open("wb") as file:
        file.truncate(8 << 30)  # a hole: it takes no space


def _fifo(path):
    os.mkfifo(path)


def _text(text):
    return lambda path: path.write_text(text)


def _record(**values):
    whole = {**JobRecord("8", submitted_ns=1).to_json(), **values}
    return _text(json.dumps(whole))


BAD_RECORDS = {
    "fifo": _fifo,
    "zeros": _zeros,
    "folder": lambda path: path.mkdir(),
    "no JSON": _text("{"),
    "nested": _text("[" * 100_000),
    "list": _text("[]"),
    "number of a list": _record(job_id=["8"]),
    "an option": _record(job_id="--help"),
    "earlier option": _record(earlier_ids=["-M"]),
    "cluster": _record(cluster="-M x"),
    "time": _record(submitted_ns="now"),
    "requeues": _record(requeues=7),
    "endless": _record(requeues=[{"step": float("inf"), "time_ns": 1, "why": "x"}]),
    "name": _record(name={"x": 1}),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_a_record_that_cannot_be_read_costs_one_line_and_no_other_run(slurm, listed, case):
    makes("good", job_id="7", status=0)
    BAD_RECORDS[case](makes("bad").job)
    slurm.answers("squeue", "7|RUNNING|node1|N/A|None\n")
    out, err = listed()
    rows = sorted(line.split()[:3] for line in out.splitlines()[1:])
    assert rows == [["bad", "-", "unknown"], ["good", "7", "running"]]
    assert err.count("\n") == 1
    assert "bad/job.json cannot be read" in err


BAD_FILES = {
    "events": ["fifo", "zeros", "folder", "wrong types", "nested"],
    "metrics": ["fifo", "zeros", "folder", "wrong types"],
    "manifest": ["fifo", "zeros", "folder", "wrong types", "nested"],
}
WRONG = {
    "events": '{"kind": "start", "attempt": "x"}\n{"kind": "end", "ends": 3}\n[]\n{"kind": "outcome", "time_ns": {}}\n',
    "metrics": "step,loss\n\x00,\x00\n" + "9" * 400 + ",1\n",
    "manifest": '{"step": "x", "seconds": []}',
}


@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in BAD_FILES for how in BAD_FILES[name]]
)
def test_whatever_lies_in_a_folder_the_others_are_listed(slurm, listed, name, how):
    makes("good", status=0, loss=0.5)
    bad = makes("bad")
    checkpoint = bad.checkpoints / "00001-step-4"
    checkpoint.mkdir(parents=True)
    path = {"events": bad.events(0), "metrics": bad.metrics, "manifest": checkpoint / MANIFEST}[
        name
    ]
    make = {
        "fifo": _fifo,
        "zeros": _zeros,
        "folder": lambda path: path.mkdir(),
        "nested": _text("[" * 100_000),
    }
    make.get(how, _text(WRONG[name]))(path)
    out, err = listed()
    assert "good" in out and "succeeded" in out
    assert "Traceback" not in err


def test_a_cluster_that_is_unknown_costs_one_line(slurm, listed):
    makes("here", job_id="7")
    record.write(makes("there"), JobRecord("8", cluster="alps", submitted_ns=1))
    slurm.does(
        "squeue",
        "case \"$*\" in *alps*) echo 'No cluster alps' >&2; exit 1;; esac; echo '7|RUNNING|node1|N/A|None'",
    )
    out, err = listed()
    assert "running" in out and "there" in out
    assert (
        err
        == "paceline: squeue does not answer for cluster alps: states are those of the run folders\n"
    )


def test_control_characters_are_not_printed_raw(slurm, listed):
    makes("a\x1b[31m\nb", status=0)
    record.write(makes("c"), JobRecord("7", nodes="n\x1b]0;x\x07\x9b", submitted_ns=1))
    slurm.answers("squeue", "7|RUNNING|node\x1b[1|N/A|No\x07ne\n")
    out, _ = listed()
    assert len(out.splitlines()) == 3
    assert not any(
        (ord(letter) < 32 and letter != "\n") or 127 <= ord(letter) < 160 for letter in out
    )
    assert "a\\x1b[31m\\nb" in out


def test_runs_that_a_profile_puts_elsewhere_are_listed(slurm, listed, tmp_path, monkeypatch):
    profiles = tmp_path / ".paceline" / "profiles"
    profiles.mkdir(parents=True)
    (profiles / "site.toml").write_text(f'[paths]\nruns = "{tmp_path}/scratch"\n')
    (profiles / "other.toml").write_text('[paths]\nruns = "$NOT_SET_HERE/runs"\n')
    makes("far", status=0, folder=str(tmp_path / "scratch"), job_id="7")
    slurm.answers("squeue", "")
    out, err = listed()
    assert ("far" in out, err) == (True, "")
    found, _ = record.find("7", places=profile_files.run_folders())
    assert found.root == tmp_path / "scratch" / "far"


def test_a_record_is_as_readable_as_its_folder(tmp_path):
    before = os.umask(0o027)
    try:
        record.write(RunDir(tmp_path), JobRecord("7"))
    finally:
        os.umask(before)
    assert RunDir(tmp_path).job.stat().st_mode & 0o777 == 0o640
