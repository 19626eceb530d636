"""What a Session does with its run folder: damaged checkpoints, a folder that is another run's, what it says."""

import os
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from paceline import Session, env
from paceline.errors import RunError, UsageError
from paceline.rundir import lease, lease_file
from paceline.train.session import run_folder
from unit.train.trainer.training import first_optimizer, no_signals, unlaunched  # noqa: F401  fixtures


@pytest.fixture(autouse=True)
def script(monkeypatch):
    monkeypatch.setenv(env.TEST_TIME_FACTOR, "0.02")
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])


def begin(run_dir=None, **options):
    """A Session with a model, as in the next process."""
    run_folder.reset()
    session = Session(run_dir=run_dir, loggers=(), **options)
    model = nn.Linear(1, 1)
    session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return session, model


def train(session, model, epochs):
    for epoch in session.epochs(epochs):
        with torch.no_grad():
            model.weight.fill_(float(epoch))
        session.save(metric=-epoch, wait=True)


def damage(session, name):
    (file,) = (session.run_dir.checkpoints / name).glob("*.distcp")
    file.write_bytes(b"\0" + file.read_bytes()[1:])


@pytest.fixture
def trained():
    session, model = begin("run")
    train(session, model, 2)
    session._place.release_soon()
    return session


NAMES = ("00001-step-0", "00002-step-0")


def test_a_damaged_checkpoint_is_refused_with_the_whole_one_in_the_fix(trained):
    damage(trained, NAMES[1])
    session, _ = begin("run")
    with pytest.raises(RunError) as caught:
        session.restore("latest")
    finding = caught.value.finding
    assert finding.name == "checkpoint-damaged"
    assert f"intact: {session.run_dir.checkpoints / NAMES[0]}, step 0" in finding.evidence
    assert 'session.restore("latest", damaged="skip")' in finding.fix
    assert NAMES[0] in finding.fix


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_it_is_skipped_with_a_warning(trained, how, monkeypatch, capsys):
    damage(trained, NAMES[1])
    session, model = begin("run")
    if how == "environment":
        monkeypatch.setenv(env.DAMAGED, "skip")
    assert session.restore("latest", damaged="skip" if how == "argument" else None)
    assert model.weight.item() == 0
    err = capsys.readouterr().err
    assert "warning CKP001 checkpoint-damaged" in err
    assert f"resuming from run/checkpoints/{NAMES[0]}" in err


def test_where_none_is_whole_it_says_so(trained):
    for name in NAMES:
        damage(trained, name)
    session, _ = begin("run")
    with pytest.raises(RunError) as caught:
        session.restore("latest", damaged="skip")
    assert caught.value.finding.what == "all 2 checkpoints are damaged"
    with pytest.raises(RunError) as caught:
        session.restore("latest")
    assert "no older one is intact" in caught.value.finding.fix


def test_a_word_that_means_nothing_is_refused(trained):
    with pytest.raises(UsageError, match="neither 'refuse' nor 'skip'"):
        trained.restore("latest", damaged="ignore")


@pytest.mark.parametrize(
    ("which", "line"),
    [
        ("latest", f"resuming from run/checkpoints/{NAMES[1]}: step 0, saved by 1 rank"),
        ("best", f"loaded the best checkpoint run/checkpoints/{NAMES[0]}"),
        (NAMES[0], f"loaded the checkpoint run/checkpoints/{NAMES[0]}"),
    ],
)
def test_the_line_says_what_is_loaded(trained, which, line, capsys):
    begin("run")[0].restore(which)
    assert line in capsys.readouterr().err


def living(folder):
    """Another run that lives: this process, under another token, whose lease it does not know of."""
    lease.acquire(folder, lease_file.this_process(), say=print)


def test_a_reader_is_never_refused_and_who_trains_is(trained):
    living(trained.run_dir.root)
    reader, model = begin("run")
    assert reader.restore("best")
    assert reader.restore("latest")
    assert model.weight.item() == 1
    with pytest.raises(UsageError) as caught:
        next(reader.epochs(5))
    assert caught.value.finding.name == "run-folder-in-use"
    assert f"process {os.getpid()} on" in caught.value.finding.what
    with pytest.raises(SystemExit) as ended:
        reader.save()
    assert ended.value.code == 2


def test_nothing_is_committed_to_a_folder_that_another_run_has_taken(trained):
    session, model = begin("run")
    session.restore("latest")
    other = replace(lease_file.this_process(), job="4712")
    lease_file.write(session.run_dir.root, other)
    with pytest.raises(RunError) as caught:
        train(session, model, 4)
    assert caught.value.finding.name == "run-folder-taken-over"
    assert "job 4712" in caught.value.finding.what
    assert sorted(path.name for path in session.run_dir.checkpoints.iterdir()) == list(NAMES)


def test_a_script_that_keeps_nothing_leaves_no_folder():
    session, _ = begin()
    assert list(session.epochs(2)) == [0, 1]
    assert not session.run_dir.root.exists()


def test_two_sessions_share_a_folder_on_purpose(trained):
    run_folder.reset()
    first = Session(run_dir="run", loggers=())
    first.save(wait=True)
    with pytest.raises(UsageError, match="another Session of this process"):
        Session(run_dir="run", loggers=()).save()
    Session(run_dir=first.run_dir, loggers=()).save(wait=True)


def test_a_folder_that_takes_no_lease_costs_one_warning(monkeypatch, capsys):
    monkeypatch.setattr(
        lease_file,
        "create",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    session, model = begin("run")
    train(session, model, 2)
    assert capsys.readouterr().err.count("cannot be written: No space left on device") == 1
