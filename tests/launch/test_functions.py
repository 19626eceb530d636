"""Functions as jobs of this machine, without Slurm: what they return and raise, on one rank and on many."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline
from paceline.functions import api, by_machine
from paceline.rundir.files import RunDir

pytestmark = pytest.mark.ci

WAIT_S = 50


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def submit(function, *args, **keywords):
    return paceline.submit(function, *args, where="local", **keywords)


def failed(job):
    error = job.exception(WAIT_S)
    assert error is not None
    return error


def wait_until(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_results_come_back_and_an_exception_with_its_traceback(here):
    offset = 10

    def work(x):
        print("working on", x)
        if x == 2:
            raise ValueError("three is " + "missing")
        return offset + x

    jobs = paceline.map(work, [1, 2, 3], parallel=2, where="local")
    assert {job.folder for job in paceline.as_completed(jobs, WAIT_S)} == {
        job.folder for job in jobs
    }
    assert (jobs[0].result(), jobs[2].result()) == (11, 13)
    assert "working on 1" in jobs[0].logs() == jobs[0].logs(rank=0)
    error = failed(jobs[1])
    assert error.finding.name == "user-exception"
    assert "in work" in error.traceback and "ValueError: three is missing" in str(error)
    assert repr(error.__cause__) == "ValueError('three is missing')"
    assert [job.status for job in jobs] == ["succeeded", "failed", "succeeded"]
    again = paceline.Job.load_all(jobs[0].folder.parent)
    assert [job.folder for job in again] == [job.folder for job in jobs]


def test_a_function_that_imports_no_torch_does_not_wait_for_it():
    assert submit(lambda: "torch" in __import__("sys").modules).result(WAIT_S) is False


@pytest.mark.parametrize("status", [3, "a text"])
def test_a_function_that_exits_otherwise_has_no_result(status):
    error = failed(submit(lambda: __import__("sys").exit(status)))
    assert error.finding.name == "user-exception"


def test_a_function_that_exits_with_0_returns_nothing():
    assert submit(lambda: __import__("sys").exit()).result(WAIT_S) is None


def test_a_function_that_ends_unfinished_is_queued_again(here):
    def work(path):
        with open(path, "a+") as file:
            file.write("x")
            file.seek(0)
            steps = file.read()
        if len(steps) < 3:
            raise SystemExit(75)
        return steps

    job = submit(work, str(here / "steps"))
    assert job.result(WAIT_S) == "xxx"


def test_a_crash_is_recorded_with_the_place(here):
    def crash():
        import ctypes

        ctypes.string_at(0)

    error = failed(submit(crash))
    assert error.finding.name == "rank-segfault"
    assert any("in crash" in line for line in error.finding.evidence)


def test_a_result_that_cannot_be_pickled_is_a_failure(here):
    job = submit(lambda: __import__("threading").Lock())
    assert failed(job).finding.name == "not-picklable"
    assert not RunDir(job.folder).result.exists()


def test_a_module_that_is_not_there_is_named():
    def work():
        import no_such_module_9217

        return no_such_module_9217

    assert failed(submit(work)).finding.name == "module-not-found"


def test_cancelled_jobs_end_and_those_that_wait_never_start(here):
    def work(number):
        import time

        with open(f"{here}/started-{number}", "w") as file:
            file.write("x")
        time.sleep(60)

    first, second = paceline.map(work, [1, 2], parallel=1, where="local")
    wait_until((here / "started-1").exists)
    assert (first.status, second.status) == ("running", "pending")
    for job in (second, first):
        job.cancel()
    for job in (first, second):
        assert "cancelled" in failed(job).finding.what
        assert job.status == "cancelled"
    assert not (here / "started-2").exists()


def test_when_the_queue_is_killed_its_jobs_end_and_are_called_killed(here):
    def work():
        import os
        import time

        with open(f"{here}/pid", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)

    job = submit(work)
    wait_until(lambda: (here / "pid").exists() and (here / "pid").read_text())
    queue = by_machine.read_queue(RunDir(job.folder).local_queue)
    os.kill(queue.pid, signal.SIGKILL)
    error = failed(job)
    assert (error.finding.name, job.status) == ("agent-died", "killed")
    wait_until(lambda: is_gone(int((here / "pid").read_text())))


def test_jobs_outlive_the_program_that_submitted_them(here):
    (here / "program.py").write_text(
        "import os, time, paceline\n"
        "def work():\n"
        "    time.sleep(1)\n"
        "    return 'whole'\n"
        "print(paceline.submit(work, where='local').folder, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True)
    assert ended.returncode == -9
    folder = Path(ended.stdout.strip())
    assert paceline.Job(folder).result(WAIT_S) == paceline.Job(folder.name).result(0) == "whole"


def test_jobs_that_run_together_have_gpus_of_their_own(monkeypatch):
    """No GPU is touched: what a job is told to use is what counts."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,7")
    monkeypatch.setattr(api.host, "gather", lambda _: SimpleNamespace(num_gpus=3))

    def work(_):
        import os
        import time

        time.sleep(0.5)
        return os.environ["CUDA_VISIBLE_DEVICES"]

    jobs = paceline.map(work, range(4), parallel=8, where="local", gpus_per_node=1)
    assert sorted(job.result(WAIT_S) for job in jobs[:3]) == ["3", "5", "7"]
    assert jobs[3].result(WAIT_S) in {"3", "5", "7"}


def test_more_gpus_than_the_machine_has_are_refused(here):
    with pytest.raises(paceline.PacelineError) as caught:
        submit(len, [], gpus_per_node=1000)
    assert caught.value.finding.name == "gpus-fewer-than-processes"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("per_job", "shares"),
    [(1, ("a", "b", "c", "d", "e")), (2, ("a,b", "c,d")), (5, ("a,b,c,d,e",))],
)
def test_gpus_are_shared_out_whole(per_job, shares):
    assert by_machine.shares("abcde", per_job=per_job) == shares


def test_on_ranks_the_result_is_that_of_rank_0(here):
    def work(scale):
        import paceline

        session = paceline.Session(seed=0)
        assert session.world_size == 2
        return session.rank, scale * session.reduce(session.rank + 1)

    job = submit(work, 0.5, nproc_per_node=2)
    assert job.result(WAIT_S) == (0, 1.5)
    assert "2 ranks" in job.logs()


def test_the_exception_of_another_rank_is_that_of_the_job(here):
    def work():
        import os

        if os.environ["RANK"] == "1":
            raise KeyError("label")
        import time

        time.sleep(30)

    error = failed(submit(work, nproc_per_node=2))
    assert error.finding.name == "script-error-on-one-rank"
    assert repr(error.__cause__) == "KeyError('label')"
    assert "KeyError: 'label'" in error.traceback
