"""Whose folder is it: names of default folders, what is recorded, what differs, what is refused."""

import json

import pytest

from paceline.rundir import identity
from paceline.rundir.files import RunDir
from paceline.rundir.identity import conflict, default_folder, differences, meaningful, of_command


def training(*arguments, script="train.py", session=1, **environ):
    return of_command(script, arguments, environ, folder="/home/me", session=session)


def element(task, *arguments, array="90", job="91"):
    return training(
        *arguments, SLURM_JOB_ID=job, SLURM_ARRAY_JOB_ID=array, SLURM_ARRAY_TASK_ID=task
    )


def test_a_script_without_arguments_has_a_plain_name():
    assert str(default_folder(training())) == "paceline-runs/train"
    assert str(default_folder(training(script="/home/me/train.py"))) == "paceline-runs/train"
    assert str(default_folder(training(script="-c"))) == "paceline-runs/session"


def test_trainings_that_differ_have_folders_that_differ():
    different = [
        training(),
        training("--lr", "0.1"),
        training("--lr", "0.01"),
        training("--lr=0.1"),
        training("--lr", "0.1", session=2),
        training("--lr", "0.1", script="other/train.py"),
        element("0", "--lr", "0.1"),
        element("1", "--lr", "0.1"),
        element("0", "--lr", "0.1", array="95"),
    ]
    folders = {default_folder(each) for each in different}
    assert len(folders) == len(different)
    assert all(folder.parent.name == "paceline-runs" for folder in folders)
    assert all(folder.name.startswith("train") for folder in folders)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            training("--lr", "0.1", SLURM_JOB_ID="4711"),
            training("--lr", "0.1", SLURM_JOB_ID="4712"),
        ),
        (
            training("--name", "run-4711", SLURM_JOB_ID="4711"),
            training("--name", "run-4712", SLURM_JOB_ID="4712"),
        ),
        (
            training("--name=81234", SLURM_JOB_ID="81234"),
            training("--name=81235", SLURM_JOB_ID="81235"),
        ),
        (element("3", "out/90_3", job="94"), element("3", "out/90_3", job="97")),
        (training("--lr", "1"), training("--lr", "1", "--resume")),
        (training("--lr", "1"), training("--resume", "latest", "--lr", "1")),
        (training("--lr", "1"), training("--auto_resume=true", "--lr", "1")),
        (
            training("-f", "/k/1.json", script="/x/ipykernel_launcher.py"),
            training("-f", "/k/2.json", script="/x/ipykernel_launcher.py"),
        ),
    ],
)
def test_starts_of_one_training_have_one_folder(first, second):
    assert default_folder(first) == default_folder(second)


@pytest.mark.parametrize(
    ("words", "job"),
    [
        (["--batch-size", "4711"], "4711"),  # a short id may be any number
        (["--batch-size=4711"], "4711"),
        (["--lr", "0.81234"], "81234"),
        (["--steps", "812345"], "81234"),
        (["--resume-from", "a.pt"], "1"),
        (["--resume", "a.pt"], "1"),
    ],
)
def test_what_is_no_job_and_no_flag_is_kept(words, job):
    assert [word for word in meaningful(words, [job]) if word != "--resume"] == [
        w for w in words if w != "--resume"
    ]


def test_what_differs_is_told_in_options():
    before, now = (
        training("--lr", "0.1", "--epochs", "10", "data"),
        training("--lr", "0.1", "--epochs", "20", "data"),
    )
    assert differences(before, now) == ["arguments --epochs 10, now --epochs 20"]
    assert differences(before, before) == []
    assert differences(training(), training("-v")) == ["arguments without, now -v"]
    assert differences(element("0"), element("0", array="95")) == [
        "element 0 of array 90, now element 0 of array 95"
    ]


@pytest.mark.parametrize(
    ("recorded", "mine", "refused"),
    [
        (None, element("1"), False),
        (element("0"), element("1"), True),
        (element("1", job="92"), element("1", job="99"), False),  # queued again
        (
            element("1"),
            element("1", array="95"),
            False,
        ),  # the array submitted again: the folder was named for it
        (training(), element("1"), False),
        (element("1"), training(), False),
        (training("--lr", "1"), training("--lr", "2"), False),
    ],
)
def test_only_another_array_element_is_refused(tmp_path, recorded, mine, refused):
    found = conflict(tmp_path, recorded, mine)
    assert (found is not None) == refused
    if found:
        assert (found.name, found.what) == (
            "run-folder-of-other-training",
            f"{tmp_path} belongs to element 0 of array 90, this is element 1 of array 90",
        )


def makes(folder, owner):
    run_dir = RunDir(folder)
    (run_dir.checkpoints / "00001-step-1").mkdir(parents=True)
    if owner is not None:
        identity.record(run_dir, owner)
    return folder


def test_the_record_comes_back(tmp_path):
    mine = element("3", "--lr", "0.1")
    identity.record(RunDir(tmp_path), mine)
    assert identity.read(RunDir(tmp_path)) == mine
    RunDir(tmp_path).training.write_text("[]")
    assert identity.read(RunDir(tmp_path)) is None


def test_secrets_are_part_of_a_training_but_shown_nowhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--token", "Ahidden", "--lr", "1")
    mine, other = training(*words), training("--token", "Bhidden", "--lr", "1")
    assert "hidden" not in f"{mine} {default_folder(mine)} {mine.line}"
    assert default_folder(mine) != default_folder(other) and not mine.same_as(other)
    assert differences(mine, other) == ["the value of a secret argument"]
    # what an earlier version has made: the secret in the folder's name and in its record
    name = "train-token-Ahidden-lr-1-928b02fc"
    old = makes(identity.RUNS / name, None)
    fields = {"version": 1, "script": "train.py", "arguments": list(words)}
    RunDir(old).training.write_text(json.dumps(fields))
    assert identity.choose_folder(mine) == old
    assert identity.choose_folder(other) == default_folder(other)
    assert differences(identity.read(RunDir(old)), mine) == []
    identity.record(RunDir(old), mine)
    assert "hidden" not in RunDir(old).training.read_text()
    assert identity.read(RunDir(old)) == mine


def test_the_folder_of_an_earlier_version_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    old = makes(identity.EARLIER_RUNS / "train", None)
    assert identity.choose_folder(training()) == old
    assert identity.choose_folder(training("--lr", "1")) != old, (
        "whose arguments it had is not known"
    )
    assert identity.siblings(training("--lr", "1")) == [(old, None)]
    identity.record(RunDir(old), training())
    assert identity.choose_folder(training()) == old
    makes(default_folder(training()), training())
    assert identity.choose_folder(training()) == default_folder(training())


def test_siblings_are_those_that_somebody_may_have_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    near, far = training("--lr", "1", "--epochs", "10"), training("--lr", "2", "--epochs", "30")
    others = [
        near,
        far,
        training("--lr", "1", script="b/train.py"),
        training("--lr", "1", session=2),
        element("1"),
    ]
    for each in others:
        makes(default_folder(each), each)
    mine = training("--lr", "1", "--epochs", "20")
    assert [owner for _, owner in identity.siblings(mine)] == [near, far]

    assert element("1") not in [owner for _, owner in identity.siblings(element("2"))], (
        "one array, another element"
    )
    assert element("1") in [owner for _, owner in identity.siblings(element("1", array="95"))]
