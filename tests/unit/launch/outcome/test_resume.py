"""How a stopped run goes on: the line to type, and the loop that types it."""

from __future__ import annotations

import shlex

import pytest

from paceline.launch.outcome import resume
from paceline.launch.outcome.resume import (
    Checkpoint,
    ResumeCommand,
    after_failure,
    after_loss,
    after_stop,
    describe_short_grace,
)
from paceline.launch.plan.parsing import parse

LAST = Checkpoint("runs/x/checkpoints/00007-step-450", 7, 450)
LINE = "paceline run --run-dir runs/x train.py"
SAVED = "last checkpoint: step 450, runs/x/checkpoints/00007-step-450"
SENDER = "the sender of the signal must allow at least as long"
LOOP = f"auto-resume: (trap exit INT; until {LINE}; do sleep 10; done)"


def again(**where):
    return ResumeCommand(LINE, **where)


def options(script="train.py", args=(), **typed):
    return parse(script, tuple(args), typed=typed, inherited={"max_restarts": "9"})


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        (options(), "paceline run --run-dir runs/x train.py"),
        (
            options(nproc_per_node="2", max_time="1-12"),
            "--nproc-per-node 2 --max-time 1-12 --run-dir runs/x train.py",
        ),
        (
            options(run_dir="elsewhere", role="a b"),
            "paceline run --role 'a b' --run-dir runs/x train.py",
        ),
        (options("pkg.train", module=True), "paceline run --module --run-dir runs/x pkg.train"),
        (options(role="-x"), "paceline run --role=-x --run-dir runs/x train.py"),
        (
            options(args=["--lr", "0.1", "two words", "$HOME", ""]),
            "train.py --lr 0.1 'two words' '$HOME' ''",
        ),
    ],
)
def test_the_line_keeps_what_was_typed(asked, line):
    typed = resume.repeat(asked, run_dir="runs/x")
    assert typed.endswith(line)
    assert typed.startswith("paceline run ")


def test_the_line_means_the_same_when_it_is_parsed_again():
    asked = options(
        args=["--run-dir", "mine"], nproc_per_node="2", standalone=True, tee="3", run_dir="old dir"
    )
    words = shlex.split(resume.repeat(asked, run_dir="new dir"))
    place = words.index("train.py")
    assert words[place:] == ["train.py", "--run-dir", "mine"]
    assert words[:place] == [
        *(
            "paceline",
            "run",
            "--nproc-per-node",
            "2",
            "--standalone",
            "--tee",
            "3",
            "--run-dir",
            "new dir",
        )
    ]


@pytest.mark.parametrize(
    ("environ", "slurm", "step"),
    [
        ({}, False, False),
        ({"SLURM_JOB_ID": "7"}, True, False),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}, True, True),
    ],
)
def test_the_plan_knows_where_it_ran(environ, slurm, step):
    found = resume.plan(options(), run_dir="runs/x", function=False, numbered=True, environ=environ)
    assert found == ResumeCommand(LINE, nodes=1, numbered=True, slurm=slurm, step=step)


def test_a_function_is_called_again():
    found = resume.plan(
        options("work"), run_dir="runs/x", function=True, numbered=False, environ={}
    )
    assert found.line == "paceline.launch(work, ..., run_dir='runs/x')"
    assert after_stop(LAST, found)[1:] == [f"resume: {found.line}"], (
        "no loop of the shell can call it"
    )
    assert after_loss(LAST, found) == [f"resume from step 450: {found.line}"]


JOB = "in the job script, after that line: status=$?; [ $status -ne 75 ] || scontrol requeue $SLURM_JOB_ID; exit $status"


@pytest.mark.parametrize(
    ("last", "command", "lines"),
    [
        (
            LAST,
            again(),
            [
                SAVED,
                f"resume: {LINE}",
                f"auto-resume: (trap exit INT; until {LINE}; do [ $? -eq 75 ] || break; done)",
            ],
        ),
        (None, again(slurm=True), ["last checkpoint: none in the run folder", f"resume: {LINE}"]),
        (LAST, again(slurm=True), [f"auto-resume: {JOB}"]),
        (LAST, again(nodes=2), [f"resume, on all 2 nodes: {LINE}"]),
        (
            LAST,
            again(nodes=2, numbered=True),
            [f"resume, on all 2 nodes, each with its own --node-rank: {LINE}"],
        ),
        (LAST, ResumeCommand(), [SAVED]),
    ],
)
def test_after_a_stop(last, command, lines):
    told = after_stop(last, command)
    assert [line for line in told if line in lines] == lines
    assert len(told) == (3 if command.line else 1)


def test_after_a_failure_there_is_a_line_if_something_was_saved_and_no_loop():
    assert after_failure(LAST, again(slurm=True)) == [f"resume from step 450: {LINE}"]
    assert after_failure(None, again()) == []


@pytest.mark.parametrize(
    ("last", "command", "lines"),
    [
        (LAST, again(), [f"resume from step 450: {LINE}", LOOP]),
        (None, again(), [f"start again: {LINE}", LOOP]),
        (
            LAST,
            again(slurm=True, nodes=4),
            [
                f"resume from step 450, on all 4 nodes: {LINE}",
                "auto-resume: sbatch --requeue, or in the job script after that line: scontrol requeue $SLURM_JOB_ID",
            ],
        ),
        (LAST, ResumeCommand(), []),
    ],
)
def test_after_a_node_was_lost(last, command, lines):
    assert after_loss(last, command) == lines


@pytest.mark.parametrize(
    ("grace_s", "command", "fix"),
    [
        (30, again(), f"--grace-s 60; {SENDER}"),
        (5, again(), f"--grace-s 60; {SENDER}"),
        (300, again(slurm=True), "--grace-s 600, and #SBATCH --signal=B:TERM@630"),
        (30, again(slurm=True, step=True), "--grace-s 60, and #SBATCH --signal=TERM@90"),
    ],
)
def test_a_longer_grace_is_spelled_out(grace_s, command, fix):
    assert describe_short_grace(grace_s, command) == fix
