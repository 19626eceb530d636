"""The run folder: names of files, and files that are written whole or not at all."""

import os
import re

import pytest

from paceline.launch.run.log_file import LogFile
from paceline.rundir import files, lease_file
from paceline.rundir.files import RunDir, new_run_id
from paceline.rundir.owned import write_whole


@pytest.fixture
def folder(tmp_path):
    return RunDir(tmp_path / "runs" / "one")


def names_of(folder, attempt):
    return [
        str(make(3, attempt).relative_to(folder.root))
        for make in (folder.log, folder.error, folder.crash, folder.nccl)
    ]


def test_files_of_the_first_attempt(folder):
    assert names_of(folder, 0) == [
        "logs/rank-003.out",
        "ranks/rank-003.error.json",
        "ranks/rank-003.crash",
        "logs/rank-003.nccl",
    ]


def test_files_of_a_later_attempt_are_others(folder):
    assert names_of(folder, 2) == [
        "logs/rank-003.attempt-2.out",
        "ranks/rank-003.attempt-2.error.json",
        "ranks/rank-003.attempt-2.crash",
        "logs/rank-003.attempt-2.nccl",
    ]


def test_every_node_has_an_event_file_of_its_own(folder):
    assert [folder.events(node).name for node in (0, 1, 12)] == [
        "events.jsonl",
        "events.node-001.jsonl",
        "events.node-012.jsonl",
    ]
    assert folder.launcher_log(1).name == "launcher-001.out"
    assert folder.plan().name == "plan.json"


def test_no_two_files_share_a_name(folder):
    paths = [folder.events(node) for node in range(3)]
    for start in (0, 2):
        paths += [folder.plan(start), *(folder.launcher_log(node, start) for node in range(3))]
        paths += [folder.filtered("stdout", start), folder.filtered("stderr", start)]
    for rank in (0, 1, 1000):
        for attempt in range(3):
            paths += [
                make(rank, attempt)
                for make in (folder.log, folder.error, folder.crash, folder.nccl)
            ]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    ("names", "number"),
    [
        ((), 0),
        (("events.jsonl", "checkpoints", "logs/rank-x.out"), 0),
        (("plan.json",), 1),
        (("logs/rank-000.out",), 1),
        (("logs/rank-000.out", "logs/rank-000.attempt-1.out"), 2),
        (("logs/rank-000.attempt-9.out", "logs/rank-001.attempt-10.out"), 11),
        (("ranks/rank-1234.attempt-3.error.json",), 4),
        (("ranks/rank-000.attempt-3.crash",), 4),
        (("logs/launcher-000.attempt-2.out",), 3),
        (("plan.attempt-5.json",), 6),
    ],
)
def test_a_start_counts_on_where_earlier_ones_ended(folder, names, number):
    folder.create()
    for name in names:
        (folder.root / name).write_text("")
    assert folder.next_attempt() == number
    for make in (folder.log, folder.error, folder.crash, folder.nccl):
        assert not make(0, number).exists()


def test_a_folder_that_is_not_there_has_had_no_attempt(folder):
    assert folder.next_attempt() == 0


def test_create_makes_the_folders_and_may_be_repeated(folder):
    folder.create()
    folder.create()
    assert sorted(entry.name for entry in folder.root.iterdir()) == ["logs", "ranks"]


def test_create_says_when_a_file_is_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(OSError, match="run"):
        RunDir(tmp_path / "run").create()


@pytest.mark.parametrize(
    ("script", "stem"),
    [
        ("digits.py", "digits"),
        ("/home/me/examples/train_resnet.py", "train_resnet"),
        ("my train script!.py", "my-train-script"),
        ("package.train", "package"),
        ("./--.py", "run"),
        ("", "run"),
        ("größe.py", "gr-e"),
        ("<lambda>", "lambda"),
        ("x" * 200 + ".py", "x" * 40),
    ],
)
def test_run_ids_name_the_script_and_are_safe_names(script, stem):
    found = new_run_id(script, now_s=0, salt="3f2abc")
    assert re.fullmatch(r"\d{8}-\d{6}-" + re.escape(stem) + "-3f2a", found)
    assert os.path.basename(found) == found


def test_run_ids_sort_by_time():
    moments = [0, 59, 3600, 86400, 40 * 86400, 4000 * 86400]
    ids = [
        new_run_id("a.py", now_s=now, salt="zzzz"[: 1 + place % 4])
        for place, now in enumerate(moments)
    ]
    assert ids == sorted(ids)


def test_a_file_is_replaced_whole(tmp_path):
    path = tmp_path / "plan.json"
    write_whole(path, "one")
    write_whole(path, "zwei: größer")
    assert path.read_text(encoding="utf-8") == "zwei: größer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_of_a_run_have_the_mode_of_the_users_other_files(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_whole(tmp_path / "plan.json", "{}")
        log = LogFile(str(tmp_path / "rank-000.out"), lambda *_: None)
        log.open()
        log.close()
        lease_file.write(tmp_path, lease_file.Owner("token"))
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {
        "lease.json": mode,
        "plan.json": mode,
        "rank-000.out": mode,
    }


def test_a_secret_is_for_its_owner_only(tmp_path):
    path = tmp_path / "secret"
    files.write_secret(path, "abc")
    assert path.stat().st_mode & 0o777 == 0o600
    assert files.read_secret(path) == "abc"
    with pytest.raises(FileExistsError):
        files.write_secret(path, "other")
    path.chmod(0o640)
    with pytest.raises(PermissionError):
        files.read_secret(path)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, broken):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError("disk full")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(files.os, broken, fail)
        write_whole(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_text_that_cannot_be_encoded_leaves_the_old_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]
