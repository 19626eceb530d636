"""Functions as jobs of a real cluster: results, failures, and every way in which Slurm ends a job."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from paceline.rundir.files import RunDir

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

PROGRAM = """
import json, os, sys, time
import paceline

def told(job, timeout=100):
    error = job.exception(timeout)
    return {{
        "status": job.status,
        "finding": error and error.finding.name,
        "what": error and error.finding.what,
        "cause": error and repr(error.__cause__),
        "result": None if error else job.result(),
    }}

def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

{text}
"""


@pytest.fixture
def program(site):
    """Run a program on a login node; return what it printed as JSON."""

    def run(text):
        (site.folder / "program.py").write_text(PROGRAM.format(text=text))
        ended = site.run("python", "program.py", timeout=150)
        assert ended.status == 0, ended.err
        return json.loads(ended.out.splitlines()[-1])

    return run


def test_a_map_returns_results_and_the_exceptions_of_those_that_failed(program):
    told = program("""
def work(x):
    if x == 2:
        raise ValueError("two is missing")
    return x * x

jobs = paceline.map(work, range(5), parallel=3, time=5)
ended = list(paceline.as_completed(jobs, 100))
assert set(ended) == set(jobs) and len(ended) == 5
print(json.dumps([told(job) for job in jobs]))
""")
    assert [job["result"] for job in told] == [0, 1, None, 9, 16]
    assert (told[2]["finding"], told[2]["status"]) == ("user-exception", "failed")
    assert told[2]["cause"] == "ValueError('two is missing')"


def test_on_two_nodes_the_function_runs_on_all_ranks(program):
    told = program("""
def work(scale):
    session = paceline.Session(seed=0)
    return session.world_size, scale * session.reduce(session.rank + 1)

print(json.dumps(told(paceline.submit(work, 0.5, nodes=2, time=5))))
""")
    assert told["result"] == [2, 1.5]


def test_a_function_that_ends_unfinished_is_queued_again(program):
    told = program("""
def work():
    with open("steps", "a+") as file:
        file.write("x")
        file.seek(0)
        steps = file.read()
    if len(steps) < 2:
        sys.exit(75)
    return steps

print(json.dumps(told(paceline.submit(work, time=5))))
""")
    assert told["result"] == "xx"


def test_cancelled_jobs_say_so_also_those_that_have_not_started(program):
    told = program("""
def work(number):
    open(f"started-{number}", "w").close()
    time.sleep(100)

jobs = paceline.map(work, [0, 1], parallel=1, time=5)
wait_until(lambda: os.path.exists("started-0"))
for job in reversed(jobs):
    job.cancel()
print(json.dumps([told(job) for job in jobs]))
""")
    assert [job["status"] for job in told] == ["cancelled", "cancelled"]
    assert [job["finding"] for job in told] == ["slurm-job-ended", "slurm-job-ended"]
    assert "was cancelled" in told[0]["what"]
    assert "was cancelled before it started" in told[1]["what"]


def test_a_job_that_runs_out_of_time_is_told_its_limit(program):
    told = program("""
def work():
    time.sleep(300)

print(json.dumps(told(paceline.submit(work, time=1))))
""")
    assert (told["status"], told["finding"]) == ("timeout", "slurm-time-limit"), told


def test_a_process_that_is_killed_is_the_finding(program):
    told = program("""
def work():
    os.kill(os.getpid(), 9)

print(json.dumps(told(paceline.submit(work, time=5))))
""")
    assert (told["status"], told["finding"]) == ("failed", "rank-died-signal"), told


def test_a_result_larger_than_the_disk_is_no_result(site, program):
    """The limit of the size of files stands for the end of the disk."""
    told = program("""
def work():
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    return b"x" * (1 << 21)

job = paceline.submit(work, time=5)
print(json.dumps({**told(job), "folder": str(job.folder)}))
""")
    assert told["finding"] == "folder-not-writable"
    folder = RunDir(site.folder / told["folder"])
    assert not folder.result.exists()
    assert not list(folder.root.glob(".result*"))


def test_when_the_node_dies_the_job_says_so(site, program):
    """Without --requeue by Slurm, so that the job ends with its node."""
    (site.folder / "submit.py").write_text(
        "import os, time, paceline\n"
        "def work():\n"
        "    open('started', 'w').write(f'{os.getpid()}\\n')\n"
        "    time.sleep(100)\n"
        "job = paceline.submit(work, time=5, nodelist='node2', on_node_loss='fail')\n"
        "print(job.folder)\n"
    )
    folder = site.run("python", "submit.py").out.strip()
    pid = int(site.wait_for(site.folder / "started"))
    site.cluster.kill_node("node2")
    told = program(f"print(json.dumps(told(paceline.Job({folder!r}))))")
    os.kill(pid, signal.SIGKILL)  # it is on this machine, and so outlives its node
    assert told["status"] == "node_fail", told
    assert told["finding"] == "slurm-job-ended" and "node2 failed" in told["what"]


def test_those_that_failed_are_submitted_again(site, program):
    folder = program("""
def work(x):
    if x == 1 and not os.path.exists("repaired"):
        raise ValueError("one is missing")
    return x * x

jobs = paceline.map(work, range(3), time=5)
assert jobs[1].exception(100) is not None
print(json.dumps(str(jobs[0].folder.parent)))
""")
    (site.folder / "repaired").touch()
    deadline = time.monotonic() + 30  # a job ends a moment after its result is there
    while "not ended" in (again := site.run("paceline", "submit", "--again", "failed", folder)).err:
        assert time.monotonic() < deadline, again.err
        time.sleep(0.5)
    assert again.status == 0 and "1 element" in again.out, again.err
    told = program(f"print(json.dumps([told(job) for job in paceline.Job.load_all({folder!r})]))")
    assert [job["result"] for job in told] == [0, 1, 4]
