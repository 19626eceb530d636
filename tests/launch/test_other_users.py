"""Other users of the machine: what a run may write to a terminal, and what its files tell and allow whom."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import pytest

import report_runs
import starting
from paceline.cli import main
from paceline.measure import report  # the other user may not see the interpreter's folder
from paceline.rundir.files import RunDir
from paceline.slurm.jobs import listing
from unit.measure.test_top import description, rank

pytestmark = pytest.mark.ci

ESCAPES = "\x1b[31mred\x1b]0;title\x07\u202e\x9b2J"
NOBODY = 65534


@contextlib.contextmanager
def other_user():
    """Act as a user who is not root, for whom modes of files hold."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared(monkeypatch):
    """A folder that all users may read, as those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("HOME", folder)
        yield Path(folder)


# ------------------------------------------------------------------------------------- terminals


def test_no_command_passes_on_what_a_run_says_to_the_terminal(tmp_path):
    finding = {
        **report_runs.FINDING,
        "name": "user-exception",
        "what": f"rank 1 raised RuntimeError: {ESCAPES}",
        "evidence": [f"train.py:24 in <module>: {ESCAPES}"],
    }
    events = [report_runs.start(host=ESCAPES)]
    events += [report_runs.outcome(exit_status=1, findings=[finding], time_s=time.time())]
    folder = report_runs.write_run(
        tmp_path / "paceline-runs" / "run",
        command=(f"{ESCAPES}.py",),
        events=events,
        metrics=f"step,{ESCAPES}\n1,2.0\n2,1.0\n",
    )
    speed = description(ranks=[rank(0, host=ESCAPES), rank(1)])
    (folder / "speed.json").write_text(json.dumps(speed))
    RunDir(folder).create()
    RunDir(folder).log(0).write_text(
        f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyError: {ESCAPES}\n'
    )
    for words in (["explain"], ["report", "--text"], ["top", "--once"]):
        shown = starting.started(tmp_path, *words, folder)
        assert "red" in shown.stdout, (words, shown.stderr)
        assert not set(ESCAPES) & set(shown.stdout + shown.stderr) - set("red[]titl0123;mJ"), words


# --------------------------------------------------------------------------------------- secrets

UNFINISHED = """\
import sys
from paceline import Session
Session().save()
sys.exit(75)
"""


def test_secrets_of_the_command_line_are_in_no_file_of_a_run(tmp_path):
    (tmp_path / "train.py").write_text(UNFINISHED)
    typed = ["--api-key=AAunseen7", "--token", "BBunseen7", "password=CCunseen7", "--lr", "1"]
    words = ("run", "--nproc-per-node", 1, "--run-dir", "run", "train.py", *typed)
    ended = starting.started(tmp_path, *words)
    assert ended.returncode == 75 and "--token BBunseen7" in ended.stderr, "the line to paste works"
    starting.paceline(tmp_path, "report", "run")
    tellers = [path for path in files_of(tmp_path / "run") if b"unseen7" in path.read_bytes()]
    assert tellers == []
    shown = starting.paceline(tmp_path, "report", "--text", "run").stdout
    assert "--api-key=... --token ... password=... --lr 1" in shown
    assert (tmp_path / "run" / "report.html").exists()
    again = starting.started(tmp_path, *words)  # the same training: no change is noticed
    assert again.returncode == 75 and "continued by another command" not in again.stderr


def files_of(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_another_user_keeps_for_himself_is_refused_with_a_finding(shared, monkeypatch, capsys):
    folder = report_runs.write_run(shared / "paceline-runs" / "closed")
    report_runs.write_run(shared / "paceline-runs" / "open")
    folder.chmod(0)
    monkeypatch.chdir(shared)
    assert report.report
    for words in (["follow"], ["cancel"], ["report", "--text"]):
        monkeypatch.setattr(sys, "argv", ["paceline", *words, str(folder)])
        with other_user(), pytest.raises(SystemExit) as ended:
            main.main()
        assert (ended.value.code, "USE006" in capsys.readouterr().err) == (2, True), words
    with other_user():
        listing.jobs(None, as_json=False)
    listed = capsys.readouterr().out
    assert "open" in listed and "closed" not in listed
    folder.chmod(0o755)
