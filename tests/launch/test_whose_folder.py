"""Whose checkpoint is it? The same script with other arguments, in an array, with several Sessions, started twice."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

SCRIPT = Path(__file__).parent / "scripts" / "whose_folder.py"
LINE = re.compile(r"fold (\d+) lr (\S+): (\d+) steps made here, weight (\S+)")
FAST = {"PACELINE_TEST_TIME_FACTOR": "0.1"}


@pytest.fixture
def preloaded(preloaded_for_training):
    return preloaded_for_training


@pytest.fixture
def python(command):
    """Start the script by hand; a copy in the folder, as people have it."""
    script = command.script(SCRIPT.read_text())

    def start(*words, env=None):
        return command.start(script.name, *words, program="python", env=env)

    return start


def made(ended):
    assert ended.status == 0, ended.err
    return [(int(steps), weight) for _, _, steps, weight in LINE.findall(ended.out)]


def wait_until(condition, timeout=40):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_other_arguments_are_another_training_and_the_line_continues_the_first(command, python):
    first = python("--lr", "0.1").wait()
    second = python("--lr", "0.01").wait()
    (steps, weight), (other_steps, other_weight) = made(first)[0], made(second)[0]
    assert (steps, other_steps) == (3, 3)
    assert weight != other_weight
    assert "this training starts from zero in paceline-runs/train-lr-0.01-" in second.err
    assert "differs in: arguments --lr 0.1, now --lr 0.01" in second.err
    line = re.search(r"to continue those: (PACELINE_RUN_DIR=\S+) ", second.err)[1]
    name, _, folder = line.partition("=")
    continued = python("--lr", "0.1", "--epochs", "5", env={name: folder}).wait()
    assert made(continued)[0][0] == 2
    assert f"resuming from {folder}/checkpoints" in continued.err
    assert f"{folder} is continued by another command" in continued.err
    assert "arguments without, now --epochs 5" in continued.err


def test_the_same_command_continues_and_says_when_nothing_is_left(python):
    made(python("--lr", "0.1", "--name", "run-77001", env={"SLURM_JOB_ID": "77001"}).wait())
    again = python("--lr", "0.1", "--name", "run-77002", env={"SLURM_JOB_ID": "77002"}).wait()
    assert made(again)[0][0] == 0
    assert "all 3 epochs are already done in paceline-runs/train-lr-0.1-" in again.err
    assert "to start over: another run folder, or rm -r paceline-runs/" in again.err


@pytest.mark.timeout(100)
def test_elements_of_an_array_have_folders_of_their_own(python):
    """Elements 2 and 3 of ``--array=0-3%2`` were the model of element 1, bit for bit, without one step."""
    weights = set()
    for task, rate in enumerate(("0.1", "0.05", "0.01")):
        ids = {
            "SLURM_JOB_ID": str(50 + task),
            "SLURM_ARRAY_JOB_ID": "50",
            "SLURM_ARRAY_TASK_ID": str(task),
        }
        ended = python(env={**ids, "WHOSE_LR": rate}).wait()
        assert made(ended)[0][0] == 3
        assert "starts from zero" not in ended.err, "its brothers are not meant"
        weights.add(made(ended)[0][1])
    assert len(weights) == 3


def test_an_array_in_one_folder_is_refused(python):
    ids = {"SLURM_JOB_ID": "50", "SLURM_ARRAY_JOB_ID": "50", "SLURM_ARRAY_TASK_ID": "0"}
    made(python("--folder", "fixed", env=ids).wait())
    second = python(
        "--folder", "fixed", env={**ids, "SLURM_JOB_ID": "51", "SLURM_ARRAY_TASK_ID": "1"}
    ).wait()
    assert second.status == 2
    assert "fixed belongs to element 0 of array 50, this is element 1 of array 50" in second.err
    assert "Traceback" not in second.err
    requeued = python(
        "--folder", "fixed", "--epochs", "4", env={**ids, "SLURM_RESTART_COUNT": "1"}
    ).wait()
    assert made(requeued)[0][0] == 1


@pytest.mark.parametrize("program", ["python", "paceline"])
def test_folds_of_one_process_are_trained_each(command, program):
    """Folds 2 and 3 evaluated data that they had been trained on."""
    script = command.script(SCRIPT.read_text())
    ended = command.run(
        *(["--nproc-per-node", 2] if program == "paceline" else []),
        script,
        "--folds",
        3,
        program=program,
    )
    assert [steps for steps, _ in made(ended)] == [3, 3, 3]
    assert "Session 2 of this process has its own run folder" in ended.err


def test_folds_in_one_folder_are_refused(python):
    ended = python("--folds", "2", "--folder", "fixed").wait()
    assert ended.status == 2
    assert len(LINE.findall(ended.out)) == 1
    assert "another Session of this process trains in fixed" in ended.err
    assert "Traceback" not in ended.err


def test_a_second_start_is_refused_and_one_after_a_kill_is_not_kept_waiting(command, python):
    first = python("--nap", "2", "--epochs", "30")
    wait_until(lambda: list(command.folder.glob("paceline-runs/*/checkpoints/[0-9]*")))
    second = python("--nap", "2", "--epochs", "30", env=FAST).wait()
    assert second.status == 2
    assert f"is in use by process {first.process.pid} on" in second.err
    assert f"end that run: kill {first.process.pid}" in second.err
    assert "Traceback" not in second.err
    first.signal(signal.SIGKILL)
    first.wait()
    again = python(
        "--folder", str(next(command.folder.glob("paceline-runs/*"))), "--epochs", "3"
    ).wait()
    assert again.status == 0, again.err
    assert "waiting" not in again.err


def test_a_launched_run_owns_its_folder(command):
    script = command.script(SCRIPT.read_text())
    first = command.start("--run-dir", "mine", script, "--nap", 2, "--epochs", 30)
    wait_until(lambda: list(command.folder.glob("mine/checkpoints/[0-9]*")))
    second = command.run("--run-dir", "mine", script, "--epochs", 30, env=FAST)
    assert second.status == 2
    assert "run-folder-in-use" in second.err
    assert f"process {first.process.pid} on" in second.err
    first.signal(signal.SIGTERM)
    assert first.wait().status == 75
    assert not (command.folder / "mine" / "lease.json").exists()
    resumed = command.run("--run-dir", "mine", "--nproc-per-node", 2, script, "--epochs", 3)
    assert resumed.status == 0, resumed.err
    assert "resuming from" in resumed.err


def test_a_job_that_is_queued_again_finds_its_folder(command):
    """Without ``--run-dir`` each start had a new one, and began anew."""
    script = command.script(SCRIPT.read_text())
    first = command.run(script, env={"SLURM_JOB_ID": "4711"})
    assert "-job-4711-" in first.run_dir
    again = command.run(script, env={"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "1"})
    assert again.status == 0, again.err
    assert again.run_dir == first.run_dir
    assert "all 3 epochs are already done" in again.err
    other = command.run(script, env={"SLURM_JOB_ID": "4712", "SLURM_RESTART_COUNT": "1"})
    assert other.run_dir != first.run_dir


def test_scripts_may_use_runs_themselves(command):
    script = command.script("import os\nos.mkdir('runs')\nprint('made')\n")
    ended = command.run("--nproc-per-node", 1, script)
    assert (ended.status, ended.out.strip()) == (0, "made"), ended.err
