"""What is written over, renamed or deleted is ours: 500 trees of links, strangers and lookalikes beside runs."""

from __future__ import annotations

import json
import os
import random
import socket
from dataclasses import asdict

import pytest

import commits
import run_events
from paceline.launch.channel.run_secret import SharedFile
from paceline.launch.rendezvous.notes import Note, Notes
from paceline.rundir import files, identity, lease_file, manifest, owned
from paceline.rundir.files import RunDir, read_json
from paceline.slurm.jobs.clean import clean
from paceline.train.checkpoint import folder
from paceline.train.trainer import saving

STRANGER = 12345
LOOKALIKES = (".git", ".ssh", ".trash-photos.ab", "00007-step-7.bak", ".00001-step-1")


def files_below(root):
    """What is below a folder: kind, owner, and content or target."""
    return {
        str(path): (path.lstat().st_mode, path.lstat().st_uid, content(path))
        for path in sorted(root.rglob("*"))
    }


def content(path):
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes() if path.is_file() else None


class Tree:
    """A folder of runs, and one of somebody's files that look like a run's, which links lead to."""

    def __init__(self, root, seed):
        self.random = random.Random(seed)
        self.outside, self.runs = root / "outside", root / "runs"
        self.planted = []  # in the folder of runs, and not ours
        self.run(RunDir(self.outside / "alice"), may_plant=False)
        self.run(RunDir(self.runs / "one"))
        self.run(RunDir(self.runs / "two"), may_plant=False)
        for name in ("results.json", ".ssh/id"):
            self.file(self.outside / name)
        self.file(self.outside / ".roll-call" / "train-host-1.json", json.dumps(asdict(note())))
        if self.random.random() < 0.5:
            self.link(
                self.runs / ".roll-call", self.outside / self.random.choice(["", ".roll-call"])
            )
        else:
            self.planted.append(self.file(self.runs / ".roll-call" / "results-7.json"))

    def file(self, path, text="{}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1e9, 1e9))
        return path

    def link(self, path, to):
        path.symlink_to(to)
        self.planted.append(path)
        self.give_away(path)

    def give_away(self, path):
        if os.geteuid() == 0 and self.random.random() < 0.5:
            os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
            self.planted.append(path)

    def run(self, run, *, may_plant=True):
        run.create()
        run.plan().write_text("{}")
        run_events.outcome(run.events(0), self.random.choice([0, 1]))
        if may_plant and self.random.random() < 0.3:
            self.link(run.checkpoints, self.outside / self.random.choice(["", "alice/checkpoints"]))
        elif self.random.random() < 0.8:
            self.checkpoints(run.checkpoints, may_plant)
        if may_plant and self.random.random() < 0.2:
            self.link(run.lease, self.outside / "results.json")
        if may_plant and self.random.random() < 0.2:
            self.planted.append(self.file(run.root / "logs" / "thesis.tex"))

    def checkpoints(self, place, may_plant):
        dead = manifest.temporary_name(9, 9, token="ab", pid=2**22 + 5, host=socket.gethostname())
        for number in range(1, 5):
            commits.commit(place, number, serial=number, metric=number)
        (place / dead).mkdir()
        if not may_plant:
            return
        entries = [*place.iterdir()]
        for name in self.random.sample(LOOKALIKES, 2):
            self.planted.append(self.file(place / name / "id").parent)
        inside = self.random.choice(entries)
        self.random.choice(
            [
                lambda: self.planted.append(self.file(inside / "notes.txt")),
                lambda: self.link(inside / "__0_0.distcp", self.outside / "results.json"),
                lambda: self.link(inside / "__0_1.distcp", self.outside / "alice"),
                lambda: self.link(place / "00008-step-8", self.outside / "alice/checkpoints"),
                lambda: self.link(place / ".trash-00008-step-8.ab", self.outside / ".ssh"),
                lambda: self.give_away(inside),
            ]
        )()


def delete_everywhere(tree):
    """Call all that deletes or writes over, as a run or a command would."""
    run = RunDir(tree.runs / "one")
    notes = Notes(tree.runs / ".roll-call", note())
    notes.read()
    notes.remove()
    secret = SharedFile(tree.runs / ".roll-call", "token")
    secret.create()
    secret.remove()
    clean(tree.runs, is_confirmed=True)
    for act in (folder.remove_stale, folder.remove):
        if run.checkpoints.is_dir() and not run.checkpoints.is_symlink():
            act(run.checkpoints)
    for path in [*run.root.glob("checkpoints/*"), *run.root.glob("checkpoints/.*")]:
        if not path.is_symlink() and "/outside/" not in str(path.resolve()):
            folder.remove(path)
            saving.remove(path)
    for call in (lease_file.write, lease_file.remove):
        try:
            call(run.root, lease_file.this_process("token"))
        except OSError:
            continue
    files.discard(run.root)


def note():
    return Note("train.py", "id", 0, "host", os.getpid(), "head", "10.0.0.1", 1, False)


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_nothing_outside_is_touched(tmp_path, capfd, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    num_deleted = 0
    for seed in range(first, first + 100):
        tree = Tree(tmp_path / str(seed), seed)
        before, num_before = files_below(tree.outside), len(files_below(tree.runs))
        delete_everywhere(tree)
        assert (seed, files_below(tree.outside)) == (seed, before)
        assert [(seed, path) for path in tree.planted if not os.path.lexists(path)] == []
        num_deleted += num_before - len(files_below(tree.runs))
    assert num_deleted > 500


@pytest.fixture(params=["fifo", "folder", "socket", "link of a stranger", "link to a device"])
def in_the_way(request, tmp_path):
    """Something that no file may take the place of, and that no reader may wait for."""
    path = tmp_path / "lease.json"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif request.param == "link to a device":
        path.symlink_to("/dev/zero")
    elif os.geteuid() != 0:
        pytest.skip("only root makes a link of another user")
    else:
        (tmp_path / "theirs").mkdir()
        path.symlink_to(tmp_path / "theirs")
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    return path


def test_only_a_regular_file_is_replaced_appended_to_or_read(in_the_way, monkeypatch):
    before = files_below(in_the_way.parent)
    run = RunDir(in_the_way.parent)
    monkeypatch.setattr(RunDir, "training", run.lease)
    for act in (
        lambda: owned.write_whole(in_the_way, "new"),
        lambda: owned.append(in_the_way),
        lambda: read_json(in_the_way),
        lambda: lease_file.read(run.root),
        lambda: lease_file.write(run.root, lease_file.this_process()),
    ):
        with pytest.raises(OSError, match=r"\S"):
            act()
    assert identity.read(run) is None
    assert files_below(in_the_way.parent) == before


def test_a_users_own_link_is_written_through(tmp_path):
    path = tmp_path / "metrics.csv"
    path.symlink_to(tmp_path / "big-disk.csv")
    owned.write_whole(path, "one\n")
    with owned.append(path) as file:
        file.write(b"two\n")
    assert path.is_symlink()
    assert (tmp_path / "big-disk.csv").read_text() == "one\ntwo\n"


def test_a_run_keeps_its_checkpoints_behind_a_link_and_clean_leaves_them_alone(tmp_path, capfd):
    run, disk = RunDir(tmp_path / "runs" / "one"), tmp_path / "disk"
    run.create()
    run.plan().write_text("{}")
    run_events.outcome(run.events(0), 0)
    disk.mkdir()
    run.checkpoints.symlink_to(disk)
    for number in (1, 2):
        commits.commit(run.checkpoints, number, serial=number)
    assert clean(tmp_path / "runs", is_confirmed=True) == 0
    assert "left alone: " in capfd.readouterr().err
    assert len([*disk.iterdir()]) == 2
    folder.remove(run.checkpoints / "00001-step-1")  # as a run does that keeps its last one
    assert [path.name for path in disk.iterdir()] == ["00002-step-2"]


def test_a_checkpoint_takes_the_place_of_no_folder_of_the_users(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.csv").write_text("1")
    saving.remove(tmp_path / "results")
    assert (tmp_path / "results" / "table.csv").exists()
