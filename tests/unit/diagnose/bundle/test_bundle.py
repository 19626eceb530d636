"""The archive: what is in it and what is not, its limits, and what is refused."""

import gzip
import json
import os
import stat
import tarfile

import pytest

from paceline.diagnose import doctor
from paceline.diagnose.bundle import archive
from paceline.diagnose.doctor.facts import Facts
from paceline.diagnose.doctor.report import DoctorReport
from paceline.errors import PacelineError
from printed_json import read_json
from refusals import refusal

SECRET = "hunter2-and-more"
TEXTS = {
    "plan.json": '{"software": {"torch": "2.13.0"}, "host": "10.0.0.7"}',
    "training.json": json.dumps({"arguments": ["--api-key", SECRET]}),
    "events.jsonl": '{"version": 1, "node": 0, "kind": "start", "host": "node-a017"}\n',
    "job.sh": f"#!/bin/bash\nexport WANDB_API_KEY={SECRET}\nsrun paceline run train.py\n",
    "logs/rank-000.out": f"loading https://ada:{SECRET}@db/x from /home/grace/data on node-a017\n",
    "ranks/rank-000.error.json": json.dumps({"message": {"message": f"password={SECRET}"}}),
    "ranks/rank-000.crash": 'File "/home/grace/train.py", line 3 in <module>\n',
}
# What lies in run folders, or beside them, and must never be opened.
OTHERS = ("function.pkl", "arguments.pkl", ".env", "id_rsa", "notes.txt", "report.html")


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine that is examined in a moment, and a folder for the archives."""
    monkeypatch.setattr(doctor, "examine", lambda: DoctorReport([], Facts()))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def run_folder(tmp_path):
    """The folder of a run, with a secret in most of its files."""
    folder = tmp_path / "20261122-digits-3f2a"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in OTHERS:
        (folder / name).write_text(f"{name} {SECRET}")
    (folder / "checkpoints" / "step-3").mkdir(parents=True)
    (folder / "checkpoints" / "step-3" / "manifest.json").write_text(SECRET)
    return folder


def unpacked(path):
    """The texts of an archive by their names."""
    with tarfile.open(path) as tar:
        members = tar.getmembers()
        assert {member.name.partition("/")[0] for member in members} == {archive.ROOT}
        return {
            member.name.partition("/")[2]: tar.extractfile(member).read().decode()
            for member in members
        }


def test_a_bundle_has_the_texts_of_a_run_and_no_secret(run_folder):
    written = archive.bundle(str(run_folder))
    texts = unpacked(written.path)
    assert {f"run/{name}" for name in TEXTS} <= set(texts)
    assert {"CONTENTS.txt", "explain.txt", "doctor.txt", "doctor.json", "versions.txt"} <= set(
        texts
    )
    everything = "\n".join(texts.values())
    for private in (SECRET, "grace", "node-a017", "10.0.0.7", "ada:"):
        assert private not in everything
    assert "<secret-1>" in texts["run/training.json"]
    assert "torch 2" in texts["versions.txt"] or "torch none" in texts["versions.txt"]


def test_the_same_value_has_one_label_in_all_texts(run_folder):
    texts = unpacked(archive.bundle(str(run_folder)).path)
    assert json.loads(texts["run/events.jsonl"])["host"] in texts["run/logs/rank-000.out"]
    assert "/home/<user-1>/data" in texts["run/logs/rank-000.out"]
    assert "/home/<user-1>/train.py" in texts["run/ranks/rank-000.crash"]


def test_a_secret_of_the_environment_is_found_anywhere(run_folder, monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "plain words only")
    (run_folder / "logs" / "rank-001.out").write_text("it sent plain words only, twice\n")
    texts = unpacked(archive.bundle(str(run_folder)).path)
    assert texts["run/logs/rank-001.out"].startswith("it sent <secret-")


def test_json_stays_json(run_folder):
    texts = unpacked(archive.bundle(str(run_folder)).path)
    for name in ("run/plan.json", "run/training.json", "run/ranks/rank-000.error.json"):
        assert json.loads(texts[name])


def test_what_is_not_a_text_of_the_run_is_named_and_not_opened(run_folder):
    (run_folder / "logs" / "rank-007.out").symlink_to(run_folder / "id_rsa")
    os.mkfifo(run_folder / "slurm.out")
    written = archive.bundle(str(run_folder))
    texts = unpacked(written.path)
    reasons = {item.name: item.reason for item in written.left_out}
    assert set(OTHERS) | {"checkpoints/"} <= set(reasons)
    assert reasons["logs/rank-007.out"] == "a link"
    assert reasons["slurm.out"].startswith("cannot be read: ")
    assert not any(name.endswith((".pkl", ".html", "rank-007.out")) for name in texts)
    assert "function.pkl: not among the texts of a run folder" in texts["CONTENTS.txt"]


def test_the_archive_names_no_user_no_time_and_is_private(run_folder):
    path = archive.bundle(str(run_folder)).path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        owners = {(entry.uid, entry.gid, entry.uname, entry.mtime) for entry in tar.getmembers()}
    assert owners == {(0, 0, "", 0)}
    assert path.read_bytes()[3:8] == bytes(5)  # gzip's header: no name of a file, no time


def test_the_middle_of_a_long_log_is_left_out_in_whole_lines(run_folder):
    lines = [f"step {number} token=hunter{number:09d}" for number in range(12_000)]
    num_bytes = (run_folder / "logs" / "rank-000.out").write_text("\n".join(lines) + "\n")
    texts = unpacked(archive.bundle(str(run_folder)).path)
    log = texts["run/logs/rank-000.out"]
    assert "bytes are left out here" in log
    assert "hunter" not in log
    first, last = log.splitlines()[0], log.splitlines()[-1]
    assert (first.split()[1], last.split()[1]) == ("0", "11999")
    assert f", of {num_bytes:,}\n" in texts["CONTENTS.txt"]


def test_the_middle_of_a_log_is_not_read(run_folder):
    """A sparse file of a terabyte: nobody could read it whole."""
    log = run_folder / "logs" / "rank-000.out"
    with log.open("wb") as file:
        file.write(b"first line\n" * 120_000)
        file.seek(1 << 40)
        file.write(b"step\n" * 60_000 + b"last line\n")
    text = archive.of_log(str(log)).text
    assert text.startswith("first line\n") and text.endswith("step\nlast line\n")
    assert unpacked(archive.bundle(str(run_folder)).path)["run/logs/rank-000.out"] == text


def test_a_line_that_is_longer_than_the_limit_is_left_out(run_folder):
    log = run_folder / "logs" / "rank-000.out"
    log.write_text("x" * (archive.HEAD_BYTES + archive.TAIL_BYTES + 10))
    text = unpacked(archive.bundle(str(run_folder)).path)["run/logs/rank-000.out"]
    assert "x" * 10 not in text


def test_a_bundle_has_a_limit_and_keeps_what_is_most_useful(run_folder, monkeypatch):
    monkeypatch.setattr(archive, "TOTAL_BYTES", 2000)
    for rank in range(4):
        (run_folder / "logs" / f"rank-{rank:03d}.out").write_text("step\n" * 150)
    written = archive.bundle(str(run_folder))
    full = [item.name for item in written.left_out if "full" in item.reason]
    assert full
    assert "run/plan.json" in written.names
    assert all(name.startswith("logs/") for name in full)


def test_a_log_file_makes_a_bundle_too(tmp_path):
    log = tmp_path / "night.log.gz"
    log.write_bytes(gzip.compress(b"[rank1]: KeyError: 'labels'\n[rank1]: token=abcdef\n"))
    texts = unpacked(archive.bundle(str(log)).path)
    assert texts["log.txt"] == "[rank1]: KeyError: 'labels'\n[rank1]: token=<secret-1>\n"
    assert "labels" in texts["explain.txt"]


def test_an_existing_file_is_not_written_over(run_folder, tmp_path):
    output = tmp_path / "mine.tar.gz"
    output.write_text("mine")
    with pytest.raises(PacelineError) as refused:
        archive.bundle(str(run_folder), output)
    assert refused.value.exit_status == 2
    assert output.read_text() == "mine"


@pytest.mark.parametrize("subject", ["NET001", "port-in-use", "-", "missing.log", "."])
def test_what_is_no_run_is_refused(subject, tmp_path):
    with pytest.raises(PacelineError) as refused:
        archive.bundle(subject)
    assert refused.value.exit_status == 2
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("subject", ["missing", "paceline-runs/missing", "missing.log"])
def test_the_fix_for_a_missing_path_is_a_path_that_a_bundle_takes(subject):
    finding = refusal(PacelineError, archive.bundle, subject)
    assert finding.name == "input-unreadable"
    assert subject in finding.what
    assert finding.fix == "paceline explain --bundle paceline-runs/NAME"


def test_a_folder_that_cannot_be_written_is_a_finding(run_folder, tmp_path):
    with pytest.raises(PacelineError) as refused:
        archive.bundle(str(run_folder), tmp_path / "missing" / "a.tar.gz")
    assert refused.value.finding.name == "folder-not-writable"


def test_the_command_prints_the_path_and_says_what_it_holds(typed, run_folder):
    status, out, err = typed("explain", "--bundle", str(run_folder))
    assert (status, out) == (0, "paceline-bundle-20261122-digits-3f2a.tar.gz\n")
    assert "replaced by labels: " in err
    assert max(map(len, err.splitlines())) <= 80
    status, out, err = typed("explain", "--bundle", str(run_folder))
    assert (status, out) == (2, "")
    assert "exists" in err


def test_the_command_prints_json(typed, run_folder):
    status, out, _ = typed("explain", "--bundle", "--json", "--output", "b.tar.gz", str(run_folder))
    assert status == 0
    values = read_json("explain", out)
    assert values["path"] == "b.tar.gz"
    assert "run/plan.json" in values["names"]


def test_output_without_bundle_is_refused(typed):
    status, out, err = typed("explain", "--output", "x.tar.gz", "NET001")
    assert (status, out) == (2, "")
    assert "option-contradicted" in err
